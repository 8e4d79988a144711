"""Where in a step a suspect takes longer than its peers, so that a cure shortens only these parts."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.intervals import I64, covered_until, subtract
from tracekit.step_graph.own_parts import Parts
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.replay import Usual
from tracekit.step_graph.waiting_parts import WaitingParts
from tracekit.steps.steps import F64


def usual_of(case: Case, rows: I64) -> Usual:
    """Return the work of each of `rows` in each part of the steps if it works like its unsuspected peers; ns.

    Where compute alone shows that a rank is slow, only its compute becomes shorter, because its gaps are as long by
    chance. A rank with gaps by its role is compared with others of that role, if its stage has any. The parts of other
    ranks that communication lengthens while it waits are returned as well.
    """
    peers = _peers(case, rows)
    found = case.model.usual(peers)
    spared: dict[tuple[int, int], WaitingParts] = {}
    if case.timeline is not None:
        runs = case.timeline.runs
        others = [(row, parts) for row, parts in case.waiting_parts.items() if row not in peers]
        spared = {(n, row): parts for n in range(len(runs)) for row, parts in others}
        for (n, row), (which, _) in found.items():
            if row in case.met.by_compute:
                lines = {line.row: line for line in runs[n][1]}
                mates = [lines[o] for o in peers[row].tolist() if o in lines]
                found[n, row] = which, _quick_compute(case, lines[row], lines[row].parts[which], mates)
    return {**spared, **found}


def _peers(case: Case, rows: I64) -> dict[int, I64]:
    """The unsuspected ranks of the same work for each of `rows`; all others of the stage where all are suspected."""
    peers = {}
    for group in case.stages:
        others = np.setdiff1d(group, rows)
        for row in np.intersect1d(group, rows):
            mine = others if len(others) else np.setdiff1d(group, row)
            same = np.intersect1d(mine, case.met.of_role) if row in case.met.of_role else mine
            peers[int(row)] = same if len(same) else mine
    return peers


def _quick_compute(case: Case, line: RankTimeline, parts: Parts, mates: list[RankTimeline]) -> F64:
    """The own time of a rank in each of its `parts` if its compute takes the median of its `mates` there, ns."""
    width = np.diff(parts.cuts)
    theirs = [_compute(case, mate, found) for mate in mates if (found := mate.alike(parts)) is not None]
    if not theirs:
        return width
    beyond = _compute(case, line, parts) - np.median(theirs, axis=0)
    return np.asarray(width - np.clip(beyond, 0.0, width), np.float64)


def _compute(case: Case, line: RankTimeline, parts: Parts) -> F64:
    """The compute of a rank in each of its `parts`, ns."""
    rank = case.steps.ranks[line.row]
    progress = case.ops.progress[rank]
    computing = subtract(case.ops.per_rank[rank].computed, progress.exposed)
    on_own_time = progress.at(computing[0]), progress.at(computing[1])
    return np.diff(covered_until(on_own_time, np.asarray(parts.cuts, np.int64))).astype(np.float64)
