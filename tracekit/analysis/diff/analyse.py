"""The changes between two runs: from two ingested runs to a finding, each change tested over steps.

The test of Mann and Whitney uses only the order of steps, so that one long step decides nothing. All changes of one
kind are judged together (Benjamini and Hochberg), because among a thousand ranks some differ by chance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from math import comb
from typing import Final

import numpy as np
from scipy.stats import false_discovery_control, mannwhitneyu

from tracekit.analysis.diff.side import Kernels, Side, side_of
from tracekit.findings.diff import Change, ChangeKind, DiffFinding, DiffVerdict
from tracekit.store import Run
from tracekit.thresholds.diff import KERNELS_KEPT, LEAST_CHANGE, LEAST_STEPS, LEVEL, RESAMPLES, SEED
from tracekit.timing.measured import StepRange
from tracekit.units import F64, ms

_WITHIN: Final = (
    "steps show how much one run varies, not how much two runs of the same job on other machines vary"
)

_OTHERS: Final = "all other kernels"


def diff(
    before: Run,
    after: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DiffFinding:
    """Return the changes from `before` to `after`: the step, its parts, ranks at equal places, kernels; tested.

    Clocks and step numbers need not agree; with different worlds ranks are not compared. `mesh`, `order`, `steps` and
    `progress` are as for `tracekit.slowrank`, and hold for both runs. Raises UsageError, MeshError and InputError as
    `tracekit.breakdown` does.
    """
    one, two = (side_of(run, mesh, order, steps, progress) for run in (before, after))
    return compared(one, two)


def compared(one: Side, two: Side) -> DiffFinding:
    """Return the changes from the first side to the second. Raises InputError where events are unreadable."""
    sides = (one, two)
    same_mesh = _sizes(one) == _sizes(two)
    common = sorted(one.places.keys() & two.places.keys()) if same_mesh else []
    ranks = [[s.places[at] for at in common] if same_mesh else list(s.case.ops.ranks) for s in sides]
    (step,) = changes("step", ["step"], one.step()[:, None], two.step()[:, None])
    low, high = interval(one.step(), two.step())
    verdict, reason = _verdict(step, low, high, min(len(one.step()), len(two.step())))
    to_decide = None if verdict != "inconclusive" else "record more whole steps of both runs"
    parts, kernels = _parts(sides, ranks), _kernels(sides, ranks)
    by_rank = _ranks(sides, ranks) if same_mesh else ()
    few = _too_few((len(one.step()), len(two.step())), {"part": parts, "rank": by_rank, "kernel": kernels})
    return DiffFinding(
        one.compared, two.compared, verdict, reason, step, low, high, parts, by_rank, kernels, len(common), to_decide,
        (*_notes(sides, alike=same_mesh, common=len(common)), *few),
    )  # fmt: skip


def _too_few(steps: tuple[int, int], tested: Mapping[str, Sequence[Change]]) -> Iterator[str]:
    """The note on changes that so few steps cannot prove; nothing where the runs are too short for any test."""
    needed = {kind: steps_for_one(steps, len(changes)) for kind, changes in tested.items()}
    kinds = {kind: steps for kind, steps in needed.items() if steps is not None}
    if kinds and min(steps) >= LEAST_STEPS:
        yield (
            f"{steps[0]} and {steps[1]} steps cannot prove a change of a single {' or '.join(kinds)} among so many "
            f"that are tested; {max(kinds.values())} steps of both runs can"
        )


def _verdict(step: Change, low: float, high: float, steps: int) -> tuple[DiffVerdict, str]:
    """The verdict on the step, and its reason; no change is proven whose interval (ns) holds 0."""
    least = LEAST_CHANGE * step.before_ns
    share = step.change_ns / step.before_ns if step.before_ns else 0.0
    times = f"{ms(step.before_ns):.1f} → {ms(step.after_ns):.1f} ms a step ({share:+.1%})"
    if steps < LEAST_STEPS:
        return "inconclusive", f"{times}, but one run has fewer than {LEAST_STEPS} whole steps"
    if step.proven and abs(step.change_ns) >= least and not low <= 0 <= high:
        return ("slower" if step.change_ns > 0 else "faster"), times
    if -least < low and high < least:
        return "unchanged", f"{times}: less than {LEAST_CHANGE:.0%} of the step"
    return "inconclusive", f"{times}: steps of the same run differ by as much"


def _parts(sides: Sequence[Side], ranks: Sequence[Sequence[int]]) -> tuple[Change, ...]:
    """The changes of all parts of the step that either run has."""
    names = list(dict.fromkeys(name for s in sides for parts in s.parts.values() for name in parts))
    one, two = (_columns([s.part(n, r) for n in names], s) for s, r in zip(sides, ranks, strict=True))
    return changes("part", names, one, two)


def _ranks(sides: Sequence[Side], ranks: Sequence[Sequence[int]]) -> tuple[Change, ...]:
    """The changes of the own time of ranks at equal places, named as in the second run."""
    one, two = (_columns([s.own(r) for r in rs], s) for s, rs in zip(sides, ranks, strict=True))
    return changes("rank", [f"rank {r}" for r in ranks[1]], one, two)


def _kernels(sides: Sequence[Side], ranks: Sequence[Sequence[int]]) -> tuple[Change, ...]:
    """The changes of the kernels that take longest in either run, and of all others together."""
    one, two = (s.kernels(r) for s, r in zip(sides, ranks, strict=True))
    if not one or not two:
        return ()
    time = {n: max(sum(k.get(n, {}).values()) for k in (one, two)) for n in {*one, *two}}
    named = sorted(time, key=lambda n: (-time[n], n))
    named, rest = named[:KERNELS_KEPT], named[KERNELS_KEPT:]
    before, after = (
        np.stack([*(_times(k, [n], s) for n in named), *([_times(k, rest, s)] if rest else [])], axis=1)
        for k, s in zip((one, two), sides, strict=True)
    )
    return changes("kernel", [*named, *([_OTHERS] if rest else [])], before, after)


def _times(kernels: Kernels, names: Sequence[str], side: Side) -> F64:
    """The time of all these kernels in each step, shape (steps,), ns; 0 where none ran."""
    total = np.zeros(len(side.case.steps.numbers))
    for name in names:
        for column, ns in kernels.get(name, {}).items():
            total[column] += ns
    return total


def _columns(values: Sequence[F64], side: Side) -> F64:
    """The values side by side, shape (steps, quantities)."""
    return np.stack(values, axis=1) if values else np.zeros((len(side.case.steps.numbers), 0))


def _sizes(side: Side) -> dict[str, int]:
    """The axes longer than 1: in two meshes with equal ones, ranks at the same place do the same work."""
    return {
        axis: side.case.mesh.sizes[axis] for axis in side.case.mesh.order if side.case.mesh.sizes[axis] > 1
    }


def _notes(sides: Sequence[Side], *, alike: bool, common: int) -> list[str]:
    """The notes on what the comparison rests on."""
    read = [len(s.case.ops.ranks) for s in sides]
    if not alike:
        note = f"the meshes differ: means over all {read[0]} and {read[1]} recorded ranks are compared, no single rank"
    elif common < max(read):
        note = f"parts, ranks and kernels cover the {common} mesh places that both runs recorded"
    else:
        note = f"all {common} recorded places are compared"
    return [note, _WITHIN]


def changes(kind: ChangeKind, names: Sequence[str], before: F64, after: F64) -> tuple[Change, ...]:
    """Return the change of each quantity, the largest first.

    before, after: its values by step, shape (steps of the run, quantities), ns; NaN where a step lacks it.
    """
    tested = [
        _p(one[np.isfinite(one)], two[np.isfinite(two)]) for one, two in zip(before.T, after.T, strict=True)
    ]
    known = [p for p in tested if p is not None]
    judged = iter(false_discovery_control(known).tolist() if known else [])
    proven = [p is not None and next(judged) <= LEVEL for p in tested]
    found = [
        Change(kind, name, _median(before[:, i]), _median(after[:, i]), tested[i], proven[i])
        for i, name in enumerate(names)
    ]
    return tuple(sorted(found, key=lambda c: (-abs(c.change_ns), c.what)))


def steps_for_one(steps: tuple[int, int], tested: int) -> int | None:
    """Return the steps of each run that can prove one change among `tested`; None where `steps` suffice."""
    if not tested or _rarest(*steps) * tested <= LEVEL:
        return None
    return next(n for n in count(LEAST_STEPS) if _rarest(n, n) * tested <= LEVEL)


def _rarest(before: int, after: int) -> float:
    """The probability of the rarest order of two equal runs' steps, two-sided: all of one before all of the other."""
    return 2 / comb(before + after, before)


def interval(before: F64, after: F64) -> tuple[float, float]:
    """Return the interval of the change of the median, ns (bootstrap percentiles); shapes (steps,)."""
    draw = np.random.default_rng(SEED)
    shifts = np.median(draw.choice(np.sort(after), (RESAMPLES, len(after))), axis=1) - np.median(
        draw.choice(np.sort(before), (RESAMPLES, len(before))), axis=1
    )
    low, high = np.quantile(shifts, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _p(before: F64, after: F64) -> float | None:
    """The probability of so different an order in equal runs; None where a run has too few steps."""
    if min(len(before), len(after)) < LEAST_STEPS:
        return None
    if np.ptp(np.concatenate([before, after])) == 0:
        return 1.0
    return round(float(mannwhitneyu(before, after, alternative="two-sided").pvalue), 9)


def _median(values: F64) -> float:
    """The median of the known values; 0 without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0
