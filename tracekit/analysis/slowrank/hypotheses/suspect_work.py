"""How suspects spend their time compared with their peers: loaders, pauses, and launches."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracekit.case.case import Case
from tracekit.intervals import inside_each, union
from tracekit.rank_events.event_columns import Values, categories, ints, matches
from tracekit.steps.features import COLLECTOR, Features, loads_longer
from tracekit.steps.host_need import FREE, MOSTLY, launch_pace
from tracekit.steps.host_work import LOADER
from tracekit.steps.medians import sampled
from tracekit.steps.step_kernels import StepKernels
from tracekit.steps.steps import idle_within, windows_of
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    KIND_RATIO,
    MAJORITY,
    MIN_LOST_SHARE,
    NEARLY_ALL,
    NO_ACCIDENT,
    PEERS_SAMPLED,
)
from tracekit.units import I64, ms


def peers_of(case: Case, row: int, suspects: Sequence[int], *, other_stages: bool = False) -> list[Features]:
    """The features of a sample of unsuspected peers of `row`, or of ranks in any stage."""
    pool = range(len(case.steps.ranks)) if other_stages else case.beside(row, suspects)
    rows = [r for r in pool if r not in suspects and np.isfinite(case.steps.own[r]).any()]
    return [f for r in sampled(rows) if (f := case.features(r)) is not None]


def late_loaders(case: Case, rows: Sequence[int]) -> tuple[int, ...]:
    """The ranks among `rows` with data loading that explains most of their excess over other stages."""
    peers = peers_of(case, rows[0], rows, other_stages=True)
    if not peers:
        return ()
    own, loader = (float(np.median([getattr(p, name) for p in peers])) for name in ("own", "loader"))
    late = []
    for row in rows:
        beyond = float(np.nan_to_num(case.steps.mean(case.steps.own[row]) - own))
        rank = case.steps.ranks[row]
        if beyond > 0 and loads_longer(case.run, case.ops, case.steps, rank, loader, MAJORITY * beyond):
            late.append(row)
    return tuple(late)


def stalled_often(case: Case, row: int, excess: float) -> bool:
    """Whether several gaps, each far longer than the peers' longest, make up most of `excess` (ns in all) of `row`.

    One gap is an accident of one operation; several mean that the host stalls repeatedly, although in one step only.
    """
    mine, peers = case.features(row), peers_of(case, row, (row,))
    if mine is None or not peers:
        return False
    usual = CLEARLY_MORE * float(np.median([p.gaps.max(initial=0) for p in peers]))
    long = mine.gaps[mine.gaps > max(usual, MIN_LOST_SHARE * excess)]
    return len(long) >= NO_ACCIDENT and float(long.sum()) >= MAJORITY * excess


def launches_alike(case: Case, rows: Sequence[int], others: Sequence[int]) -> bool:
    """Whether hosts of `rows` launch as fast as hosts of `others`, by samples of each; False where unknown.

    Hosts that are delayed at nearly every launch show no pace of their own. If `others` are faster at most launches all
    the same, the hosts of `rows` are slow.
    """
    paces = [pace_among(case, rows, others, percentile) for percentile in (FREE, MOSTLY)]
    return all(p is not None and p[0] <= KIND_RATIO * p[1] for p in paces)


def pace_beside(case: Case, row: int, suspects: Sequence[int] = ()) -> tuple[float, float] | None:
    """The ns between two launches of the host of `row`, and of unsuspected hosts; None where unknown."""
    return pace_among(case, (row,), case.unsuspected(row, suspects))


def pace_among(
    case: Case, rows: Sequence[int], others: Sequence[int], percentile: float = FREE
) -> tuple[float, float] | None:
    """Return the median ns between two launches of the hosts of `rows`, and of `others`; None where either is unknown.

    The pace of one host is a `percentile` over its launches.
    """
    ranks = case.steps.ranks
    mine, theirs = (
        [p for r in some[:PEERS_SAMPLED] if (p := launch_pace(case.run, ranks[r], percentile)) is not None]
        for some in (rows, others)
    )
    return (float(np.median(mine)), float(np.median(theirs))) if mine and theirs else None


def compute_spared(case: Case, row: int, suspects: Sequence[int]) -> float:
    """Return what the rank in `row` computes less than its peers, ns a step, although its device is no faster.

    It computes beside fewer waits, or less by chance where idle time alone shows it to be slow. Negative where its
    kernels on a GPU overlap each other less, and may wait for unmatched messages in between.
    """
    by_chance = case.steps.mean(case.met.chance[row]) if row in case.met.by_idle else 0.0
    spared = max(-case.steps.mean(case.met.beside[row]), 0.0) - by_chance
    mine, peers = case.features(row), peers_of(case, row, suspects)
    if case.coverage.matched == 1 or mine is None or not (peers and mine.on_gpu):
        return spared
    return spared - max(float(np.median([p.overlap for p in peers])) - mine.overlap, 0.0)


# Work that ranks do in one step: a checkpoint, an evaluation, a report. Their traces name it: a span of the program or
# kernels that neither their other steps nor their peers have. No accident and no fault explains the step better.


_DIGITS: Final = re.compile(r"\d+")


def lone_work(case: Case, row: int, column: int, struck: Sequence[int] = ()) -> str:
    """Return what work explains the excess of the rank in `row` in one step, as words after "in"; "" where none does.

    row, column: of Steps; `struck`: the rows that are slow in that step, which are no peers. A span counts while the
    device is idle. Raises InputError where events cannot be read.
    """
    longer, its = float(case.found.value[row, column]), "their" if len(struck) > 1 else "its"
    peers = sampled([int(r) for r in case.stage_of(row) if r != row and r not in struck])
    alone = np.isfinite(case.found.value[row]).sum() < 2  # no other step to compare with
    if case.table is not None or not longer > 0 or not peers or alone:
        return ""
    own = _lone_spans(case, row, column, peers)
    name = max(own, key=lambda n: (own[n], n), default="")
    if name and own[name] >= NEARLY_ALL * longer:
        return f"{name}, which {its} other steps and {its} peers lack"
    kernels = _added(case, row, column, peers)
    if sum(kernels.values()) < NEARLY_ALL * longer:
        return ""
    name = max(kernels, key=lambda n: (kernels[n], n))
    return f"more kernels than in {its} other steps and than {its} peers (most are {name})"


def _lone_spans(case: Case, row: int, column: int, peers: list[int]) -> dict[str, float]:
    """Those of `_span_times` that the rank has in this step alone.

    Left out are names that occur outside the step or in the recording of a peer, and waits that recur by chance: those
    of a data loader or of the garbage collector. Numbers in a name count as equal, as programs number their steps. A
    host may run ahead of its device, so that spans of other steps lie in no window of the device.
    """
    rank = case.steps.ranks[row]
    start, end, names = _annotations(case, rank)
    (begin,), (stop,) = windows_of(case.ops, case.steps, rank, [column])
    usual = set(names[(start >= stop) | (end <= begin)].tolist())
    usual |= {name for peer in peers for name in _annotations(case, case.steps.ranks[peer])[2].tolist()}
    spent = _span_times(case, row, column)
    return {n: spent[n] for n in spent if not (n in usual or COLLECTOR.search(n) or LOADER.search(n))}


def _span_times(case: Case, row: int, column: int) -> dict[str, float]:
    """The time that annotations of the program fill in a step while the device of the rank is idle, by name, ns."""
    rank = case.steps.ranks[row]
    start, end, names = _annotations(case, rank)
    window = windows_of(case.ops, case.steps, rank, [column])
    inside = (start < window[1][0]) & (end > window[0][0])
    idle = idle_within(case.ops, rank, window)
    found = {}
    for name in sorted(set(names[inside].tolist())):
        mine = inside & (names == name)
        found[name] = float(sum(inside_each(union(start[mine], end[mine]), idle)))
    return found


def shared_wait(case: Case, row: int, column: int, struck: Sequence[int]) -> str:
    """Return the words on the loader or collector that fills a step of `row`, one of `struck`; "" without one."""
    if case.table is not None or not np.isfinite(case.steps.own[row, column]):
        return ""
    spent = _span_times(case, row, column)
    spent = {name: spent[name] for name in spent if COLLECTOR.search(name) or LOADER.search(name)}
    name = max(spent, key=lambda n: (spent[n], n), default="")
    its = "their" if len(struck) > 1 else "its"
    if not name or spent[name] < NEARLY_ALL * case.found.value[row, column]:
        return ""
    calm = sampled([r for r in case.stage_of(row).tolist() if r not in struck])
    calm = [r for r in calm if np.isfinite(case.steps.own[r, column])]
    theirs = [_span_times(case, r, column).get(name, 0.0) for r in calm]
    peers = f" and {ms(float(np.median(theirs))):.1f} ms of {its} peers'" if theirs else ""
    return f"{name}, which fills {ms(spent[name]):.1f} ms of it{peers}"


def _annotations(case: Case, rank: int) -> tuple[I64, I64, Values]:
    """Begin, end and name, without its numbers, of each annotation of the program; ns."""
    events = case.run.events(rank, ["ts", "dur", "cat", "name"])
    chosen = categories(events) == "user_annotation"
    start = ints(events, "ts", 0)[chosen]
    names = matches(events, "name", lambda name: _DIGITS.sub("#", name or ""))[chosen]
    return start, start + ints(events, "dur", 0)[chosen], names


def _added(case: Case, row: int, column: int, peers: list[int]) -> dict[str, float]:
    """The time of the kernels that the rank runs more often in the step than in its others and than its peers, ns.

    Nothing for fewer than NO_ACCIDENT of them.
    """
    if not case.on_gpu(row):
        return {}
    mine = case.kernels(row)
    others = [_by_name(mine, int(c)) for c in np.unique(mine.column) if c != column]
    others += [_by_name(case.kernels(peer), column) for peer in peers]
    added, pieces = {}, 0
    for name, (count, took) in _by_name(mine, column).items():
        usual = [other.get(name, (0, 0.0)) for other in others]
        if usual and count > max(many for many, _ in usual):
            added[name] = took - max(ns for _, ns in usual)
            pieces += count - max(many for many, _ in usual)
    return added if pieces >= NO_ACCIDENT else {}


def _by_name(kernels: StepKernels, column: int) -> dict[str, tuple[int, float]]:
    """The number of kernels of each name in a step, and their time, ns."""
    here = kernels.column == column
    names, code = np.unique(kernels.name[here].astype(str), return_inverse=True)
    took = np.bincount(code, kernels.lasted[here], len(names))
    return dict(zip(names.tolist(), zip(np.bincount(code).tolist(), took.tolist(), strict=True), strict=True))
