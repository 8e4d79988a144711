"""The waits of recorded ranks beyond a replay in which ranks without a trace work like typical peers, or need no time.

Where the first reproduces the recording better than one of the recorded ranks alone, and leaves no long wait of any
rank unexplained, the recorded ranks explain the recording without a slow unrecorded rank. The second bounds what such
ranks cost, however many are slow: no cure of theirs makes a step shorter than the recorded ranks need.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.nodes import nodes_with_unseen
from tracekit.analysis.slowrank.unrecorded.unrecorded import (
    Unseen,
    beyond_network,
    beyond_others,
    partial_rows,
    waited_for_missing,
)
from tracekit.step_graph.unseen_ranks import longer_ns, with_unseen
from tracekit.thresholds.slowrank import CLEAR_SHARE, MOST_STRETCHED
from tracekit.units import F64


def with_typical_unseen(case: Case) -> Case | None:
    """`case` with unrecorded ranks in its model; None where they do not matter, or the model misses the recording."""
    least = case.threshold_ns
    unseen = waited_for_missing(case)
    if case.timeline is None or max(unseen.known, unseen.undecided) < least:
        return None
    model = with_unseen(case, case.timeline, case.found, nodes_with_unseen(case))
    if model is None:
        return None
    found = replace(case, model=model, seen=case.model)
    allowed = max(case.residual_ns, CLEAR_SHARE * case.step_ns)
    return found if found.residual_ns < allowed and _left(found) < least else None


def waited_for_unseen(case: Case, own: F64) -> Unseen:
    """The wait of recorded ranks for ranks without a trace; reduced by both replays.

    Time without anything to compare with stays undecided as far as it makes steps longer: a replay with typical ranks
    that fits can name a rank, but does not prove health. `own` are times without slow recorded ranks, as in
    `saved_without_waits_ns`: these may hide such a wait.
    """
    unseen = waited_for_missing(case)
    if case.seen is not None:
        left, rows = _left(case), partial_rows(case, frozenset(case.missing))
        model = case.timeline
        transfers = {} if model is None else {r: float(model.transfer[model.instance[r]]) for r in rows}
        awaited = max(left, beyond_network(case, transfers), beyond_others(case, transfers))
        unseen = replace(unseen, known=min(unseen.known, left), awaited=min(unseen.awaited, awaited))
    if max(unseen.known, unseen.undecided) < case.threshold_ns:
        return unseen
    most = saved_without_waits_ns(case, own)
    return replace(unseen, known=min(unseen.known, most), undecided=min(unseen.undecided, most))


def saved_without_waits_ns(case: Case, own: F64) -> float:
    """Return the most that a step saves if no rank waits for ranks without a trace, ns; infinite for a table.

    Recorded ranks take the times `own` (ranks × steps, ns), without the most that communication not matched with all
    members adds to kernels beside it; such operations take no time. The model's own error is added.
    """
    model = case.pinned_model.of_traces
    if model is None:
        return np.inf
    rows = np.flatnonzero(case.analysed & ~case.matched)
    number = model.instance[rows]
    fixed, transfer = model.fixed.copy(), model.transfer.copy()
    fixed[rows] = np.minimum(fixed[rows], 0.0)  # -1 where it does not complete by itself
    transfer[number[number >= 0]] = 0.0
    hidden = case.by_step(rows, (case.ops.end - case.ops.start - case.ops.exposed)[rows].astype(np.float64))
    quick = model.retimed(fixed=fixed, transfer=transfer)
    least = quick.step_ns(np.maximum(own - MOST_STRETCHED * hidden, 0.0))
    return max(model.recorded_ns - least, 0.0) + case.pinned_residual_ns


def _left(case: Case) -> float:
    """The most that a rank waits longer on one axis than in the model of `case`, ns a step."""
    if case.timeline is None:
        return 0.0
    over, left = longer_ns(case, case.timeline), defaultdict[tuple[int, str], float](float)
    for row in np.flatnonzero(over).tolist():
        left[int(case.ops.rank[row]), str(case.axis[row])] += float(over[row])
    return max(left.values(), default=0.0) / case.steps.count
