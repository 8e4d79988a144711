"""Collectives of inferred groups that last longer than any transfer: they wait for somebody whom the group leaves out.

Groups that no argument names are told by who leaves together. Replicas in step leave together as well, so that the wait
of a stage for another one may be taken for the transfer of its own groups.
"""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.tables.buffered_sends import bytes_of
from tracekit.thresholds.slowrank import MAJORITY, ROUND_TRIP, SLOWEST_BYTES_PER_NS, SLOWEST_START_NS


def beyond_inferred_group(case: Case, numbers: Sequence[int]) -> bool:
    """Whether most of the collectives `numbers` are of an inferred group, and last longer than the slowest network."""
    ops = case.ops
    beyond = []
    for number, row in zip(numbers, case.waits.first_row[np.array(numbers)].tolist(), strict=True):
        rank = int(ops.rank[row])
        inferred = ops.per_rank[rank].inferred
        size = max(bytes_of(str(ops.token[row])), 0)
        most = SLOWEST_START_NS + ROUND_TRIP * size / SLOWEST_BYTES_PER_NS
        guessed = inferred is not None and bool(inferred[row - ops.of(rank).start])
        beyond.append(guessed and float(case.waits.delivery[number]) > most)
    return float(np.mean(beyond)) > MAJORITY
