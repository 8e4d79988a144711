"""Work that one rank does in one step: a checkpoint, an evaluation, a report.

Its trace names it: a span of the program or kernels that neither the rank's other steps nor its peers have. Such a step
is long by what the program does, which no accident and no fault explains better.
"""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.intervals import Intervals, union
from tracekit.rank_events.event_columns import ints, matches, strings
from tracekit.steps.features import COLLECTOR, LOADER
from tracekit.steps.medians import sampled
from tracekit.steps.step_kernels import StepKernels, kernels_in_steps
from tracekit.steps.steps import idle_within, inside_each, windows_of
from tracekit.thresholds.slowrank import NAMED_SHARE


def lone_work(case: Case, row: int, column: int) -> str:
    """Return what work explains the excess of the rank in `row` in one step, as words after "in"; "" where none does.

    row, column: of Steps. A span counts while the device is idle. Raises InputError where events cannot be read.
    """
    longer = float(case.found.value[row, column])
    peers = sampled([int(r) for r in case.stage_of(row) if r != row])
    if case.table is not None or not longer > 0 or not peers:
        return ""
    spans = _spans(case, row)
    usual = {name for at, names in spans.items() if at != column for name in names}
    usual |= {name for peer in peers for name in _spans(case, peer).get(column, {})}
    own = {name: ns for name, ns in spans.get(column, {}).items() if name not in usual}
    name = max(own, key=lambda n: (own[n], n), default="")
    if name and own[name] >= NAMED_SHARE * longer:
        return f"{name}, which its other steps and its peers lack"
    kernels = _added(case, row, column, peers)
    if sum(kernels.values()) < NAMED_SHARE * longer:
        return ""
    name = max(kernels, key=lambda n: (kernels[n], n))
    return f"more kernels than in its other steps and than its peers (most are {name})"


def _spans(case: Case, row: int) -> dict[int, dict[str, float]]:
    """By column, the time that each annotation of the program fills while the device of the rank is idle, ns.

    Those of a data loader or of the garbage collector are waits that recur by chance, and no work.
    """
    ops, steps, rank = case.ops, case.steps, case.steps.ranks[row]
    columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
    events = case.run.events(rank, ["ts", "dur", "cat", "name"])
    events = events.filter(matches(events, "cat", lambda cat: cat == "user_annotation").astype(bool))
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    names = np.array([name or "" for name in strings(events.column("name"))], object)
    begins, ends = windows_of(ops, steps, rank, columns)
    found: dict[int, dict[str, float]] = {}
    for column, begin, stop in zip(columns, begins, ends, strict=True):
        window = np.array([begin]), np.array([stop])
        idle = idle_within(ops, rank, window)
        inside = (start < stop) & (end > begin)
        found[column] = {
            name: _within(union(start[mine], end[mine]), idle)
            for name in sorted(set(names[inside].tolist()))
            if not (COLLECTOR.search(name) or LOADER.search(name))
            and (mine := inside & (names == name)).any()
        }
    return found


def _within(spans: Intervals, idle: Intervals) -> float:
    return float(sum(inside_each(spans, idle)))


def _added(case: Case, row: int, column: int, peers: list[int]) -> dict[str, float]:
    """The time of the kernels that the rank runs more often in the step than in its others and than its peers, ns."""
    if not case.ops.per_rank[case.steps.ranks[row]].on_gpu:
        return {}
    mine = kernels_in_steps(case.run, case.ops, case.steps, row)
    others = [_by_name(mine, int(c)) for c in np.unique(mine.column) if c != column]
    others += [_by_name(kernels_in_steps(case.run, case.ops, case.steps, peer), column) for peer in peers]
    added = {}
    for name, (count, took) in _by_name(mine, column).items():
        usual = [other.get(name, (0, 0.0)) for other in others]
        if usual and count > max(many for many, _ in usual):
            added[name] = took - max(ns for _, ns in usual)
    return added


def _by_name(kernels: StepKernels, column: int) -> dict[str, tuple[int, float]]:
    """The number of kernels of each name in a step, and their time, ns."""
    here = kernels.column == column
    names, code = np.unique(kernels.name[here].astype(str), return_inverse=True)
    took = np.bincount(code, kernels.lasted[here], len(names))
    return dict(zip(names.tolist(), zip(np.bincount(code).tolist(), took.tolist(), strict=True), strict=True))
