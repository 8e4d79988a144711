"""How fast a pipeline stage does the work that other stages do as well.

Stages differ by design: one has more layers, or embeds tokens. Kernels at the same place of the program (on a CPU:
operators) do the same work on every stage, so that they separate a stage that is slow from one that has more to do.
"""

import numpy as np

from tracekit.rank_events.event_columns import ints, matches, truth
from tracekit.steps.features import COMMUNICATION
from tracekit.steps.medians import weighted_median
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.steps.steps import windows_of
from tracekit.thresholds.slowrank import MAJORITY, NEARLY_ALL, OTHER_WORK
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64

Place = tuple[str, str, str]
"""The names of a kernel, of the one before and of the one behind."""


def stage_pace(run: Measured, rows: I64, others: list[I64]) -> float | None:
    """Return how many times as long the ranks in `rows` take as other stages for the work that both do.

    rows, others: rows of Steps of one stage, and of each other one; a rank of each is read. None where no place is
    common, or where nearly all of the time does not share the factor: then the stages differ by their work.
    """
    mine = _at_places(run, rows)
    read = [_at_places(run, stage) for stage in others]
    common = sorted(place for place in mine if any(place in other for other in read))
    if not common:
        return None
    usual = np.array([np.median([other[place] for other in read if place in other]) for place in common])
    ratio = np.array([mine[place] for place in common]) / np.maximum(usual, 1.0)
    pace = weighted_median(ratio, usual, 1.0)
    sharing = ratio - 1.0 >= MAJORITY * (pace - 1.0)
    return pace if usual[sharing].sum() >= NEARLY_ALL * usual.sum() > 0 else None


def _at_places(run: Measured, rows: I64) -> dict[Place, float]:
    """The median length of what a stage's middle rank runs at each place, ns; not where they vary as other work."""
    own = np.nan_to_num(np.nanmean(run.steps.own[rows], axis=1))
    row = int(rows[np.argsort(own, kind="stable")[(len(rows) - 1) // 2]])
    names, lasted = _pieces(run, row)
    ends = ["", *names, ""]
    found: dict[Place, list[float]] = {}
    for place, ns in zip(zip(ends[1:-1], ends[:-2], ends[2:], strict=True), lasted.tolist(), strict=True):
        found.setdefault(place, []).append(ns)
    usual = {place: float(np.median(ns)) for place, ns in found.items()}
    return {
        place: usual[place]
        for place, ns in found.items()
        if np.median(np.abs(np.array(ns) - usual[place])) <= OTHER_WORK * usual[place]
    }


def _pieces(run: Measured, row: int) -> tuple[list[str], F64]:
    """(names, lengths in ns) of the kernels of a rank, or of a CPU's outermost operators, in order of time."""
    rank = run.steps.ranks[row]
    if run.ops.per_rank[rank].on_gpu:
        kernels = kernels_in_steps(run.run, run.ops, run.steps, row)
        return kernels.name.tolist(), kernels.lasted
    columns = [c for c in range(len(run.steps.numbers)) if np.isfinite(run.steps.own[row, c])]
    begins, ends = windows_of(run.ops, run.steps, rank, columns)
    events = run.run.events(rank, ["ts", "dur", "cat", "name"])
    operator = matches(events, "cat", lambda cat: cat == "cpu_op").astype(bool)
    events = events.filter(operator & ~truth(events, "name", COMMUNICATION))
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    names = matches(events, "name", lambda name: name or "")
    order = np.lexsort((-end, start))
    start, end, names = start[order], end[order], names[order]
    outer = start >= np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])[: len(start)]
    at = np.searchsorted(begins, start, "right") - 1
    inside = outer & (at >= 0) & (start < ends[np.maximum(at, 0)]) if columns else np.zeros(len(start), bool)
    return names[inside].tolist(), (end - start)[inside].astype(np.float64)
