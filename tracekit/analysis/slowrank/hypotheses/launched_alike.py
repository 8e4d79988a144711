"""The length of a step if a rank issues its operations when a peer does.

Own time alone does not show what a slow host costs: its device computes no longer, but joins collectives and messages
of other streams later, and the others wait for it. The rank takes over the events of a peer at their readings of the
peer's own time, each with its own operation at the same place; it keeps its groups and the time at which it begins.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.same_places import Places
from tracekit.step_graph.replay import StepModel
from tracekit.steps.steps import F64
from tracekit.thresholds.launches import LAUNCH_PEERS
from tracekit.thresholds.slowrank import MIN_LOST_SHARE


def saved_as_peers(case: Case, places: Places, row: int) -> F64:
    """The saving of a step if the rank in `row` issues as a peer does, ns, for each of up to LAUNCH_PEERS peers.

    Takes the first peers that run the same operations, and stops after a peer that saves less than the threshold.
    """
    model = case.timeline
    if model is None:
        return np.zeros(0)
    stage = next(g for g in case.stages if row in g)
    saved: list[float] = []
    for mate in np.roll(stage, -int(np.flatnonzero(stage == row)[0]))[1:].tolist():
        quick = _as_peer(case, model, places, (row, mate))
        if quick is not None:
            saved.append(model.recorded_ns - quick.recorded_ns)
        if len(saved) == LAUNCH_PEERS or (saved and saved[-1] < MIN_LOST_SHARE * case.step_ns):
            break
    return np.array(saved)


def _as_peer(case: Case, model: StepModel, places: Places, pair: tuple[int, int]) -> StepModel | None:
    """`model` with the first row of `pair` issuing as the second does; None where they run different operations."""
    row, mate = pair
    mine, theirs = (places.rows_of(case.ops.of(case.steps.ranks[r])) for r in pair)
    if not np.array_equal(mine >= 0, theirs >= 0):
        return None
    own = np.full(len(case.ops.rank), -1, np.int64)
    own[theirs[theirs >= 0]] = mine[mine >= 0]
    runs = []
    for columns, lines in model.runs:
        by_row = {line.row: line for line in lines}
        if row not in by_row or mate not in by_row:
            return None
        other = by_row[mate]
        taken = replace(other, row=row, events=own[other.events].astype(np.int32), start=by_row[row].start)
        runs.append((columns, tuple(taken if line.row == row else line for line in lines)))
    return replace(model, runs=tuple(runs))
