"""Whether the members of slow transfers are certain, where no recorded argument names them.

A collective of an inferred group that lasts longer than any transfer may wait for a rank that the group lacks. Groups
without recorded names are inferred from ranks that leave a collective together. Replicas in step leave together as
well, so that the wait of a stage for another one may be taken for the transfer of its own groups. Where all ranks were
recorded on one clock and no other rank leaves together with the members, the group is complete.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.unrecorded.quickest import slowest_ns
from tracekit.matching.clock import aligned
from tracekit.thresholds.slowrank import MAJORITY
from tracekit.thresholds.tables import TAIL_NS


def beyond_inferred_group(case: Case, numbers: Sequence[int]) -> bool:
    """Whether most of the collectives `numbers` may wait for ranks that are not their members.

    That is: their group is inferred, they last longer than on the slowest network, and another rank may leave with
    them.
    """
    ops = case.ops
    beyond = []
    for number, row in zip(numbers, case.waits.first_row[np.array(numbers)].tolist(), strict=True):
        rank = int(ops.rank[row])
        inferred = ops.per_rank[rank].inferred
        guessed = inferred is not None and bool(inferred[row - ops.of(rank).start])
        beyond.append(guessed and float(case.waits.delivery[number]) > slowest_ns(str(ops.token[row])))
    return float(np.mean(beyond)) > MAJORITY and not _leave_alone(case, numbers)


def _leave_alone(case: Case, numbers: Sequence[int]) -> bool:
    """Whether every other rank was recorded on a common clock, and rarely leaves together with the members.

    Among many ranks some leave at the same moment by chance; a missing member does so most of the time, to within the
    doubt of its clock and its drift.
    """
    ops, clocks = case.ops, case.clocks
    members = ops.channels[int(ops.channel[case.waits.first_row[numbers[0]]])].members
    if case.missing or len({clocks.island[rank] for rank in ops.ranks}) > 1:
        return False
    end = aligned(ops, clocks, ops.end)
    left = end[case.waits.first_row[np.array(numbers)]].astype(np.float64)  # members leave together
    for rank in sorted(set(ops.ranks) - set(members)):
        error = TAIL_NS + clocks.error_ns(rank, members[0], float(np.ptp(left)))
        ends = np.sort(end[ops.of(rank)]).astype(np.float64)
        at = np.searchsorted(ends, left - error)
        together = (at < len(ends)) & (ends[np.minimum(at, len(ends) - 1)] <= left + error)
        if len(ends) and float(together.mean()) > MAJORITY:
            return False
    return True


def _guessed(case: Case, ends: tuple[int, ...]) -> bool:
    """Whether the peers of messages between two ranks, in either direction, were inferred from end times only."""
    return any(c.inferred and set(c.members) == set(ends) for c in case.ops.channels)


def is_sure(case: Case, channel: int, numbers: list[int], *, clockless: bool) -> bool:
    """Whether the slow instances `numbers` belong to `channel` for certain.

    Messages with inferred peers must be slow without any clock (`clockless`), and their ends must leave together.
    """
    if not case.ops.channels[channel].p2p:
        return not beyond_inferred_group(case, numbers)
    if not _guessed(case, case.ops.channels[channel].members):
        return True
    return clockless and not _loosely_joined(case, numbers)


def _loosely_joined(case: Case, numbers: list[int]) -> bool:
    """Whether the ends of a typical exchange of `numbers` leave apart on the common clock: the match may be wrong."""
    ops = case.ops
    rows = np.flatnonzero(np.isin(ops.instance, numbers) & ops.among(("send_recv",)))
    ends = [int(case.clocks.align(int(ops.rank[row]), ops.end[row : row + 1])[0]) for row in rows.tolist()]
    left: dict[int, list[int]] = defaultdict(list)
    for number, end in zip(ops.instance[rows].tolist(), ends, strict=True):
        left[number].append(end)
    return bool(left) and float(np.median([max(e) - min(e) for e in left.values()])) > TAIL_NS
