"""The quantities over windows: the step, its parts, and each rank's own time, alone and beyond its peers'."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.diff.side import Side
from tracekit.findings.trend import TrendPoint
from tracekit.steps.steps import windows_of
from tracekit.thresholds.trend import MOST_POINTS
from tracekit.units import F64

OWN_PARTS = ("compute", "host", "idle")
"""Parts of the step that are a rank's own time."""


@dataclass(frozen=True)
class Point:
    """One window or step: medians over its steps; by rank the own time, its excess over peers, and its parts; ns."""

    shown: TrendPoint
    own: dict[int, float]
    beyond: dict[int, float]
    parts: dict[int, tuple[float, ...]]


@dataclass(frozen=True)
class Series:
    """All points in order of time; arrays are ranks × points, ns, NaN where a rank has no such point."""

    points: tuple[TrendPoint, ...]
    ranks: tuple[int, ...]
    own: F64
    beyond: F64
    parts: F64  # ranks × OWN_PARTS × points

    @property
    def times(self) -> F64:
        """The begin of each point, ns since the first."""
        return np.array([p.at_ns for p in self.points], np.float64)

    @property
    def step(self) -> F64:
        """The length of the step at each point, ns."""
        return np.array([p.step_ns for p in self.points], np.float64)

    def part(self, name: str) -> F64:
        """The part of the step at each point, ns; 0 where the point lacks it."""
        return np.array([p.parts.get(name, 0.0) for p in self.points], np.float64)


def of_window(side: Side, number: int, at_ns: int) -> Point:
    """Return the window `side` as one point."""
    return _point(side, list(range(len(side.case.steps.numbers))), number, at_ns)


def of_steps(side: Side) -> list[Point]:
    """Return each step of the one window `side` as a point, in order of time on the common clock."""
    begins = _begins(side)
    order = sorted(begins, key=lambda c: begins[c])
    return [_point(side, [c], side.case.steps.numbers[c], begins[c] - begins[order[0]]) for c in order]


def series_of(points: Sequence[Point]) -> Series:
    """Return the points as arrays; more than MOST_POINTS are merged in blocks of consecutive ones."""
    ranks = tuple(sorted({r for p in points for r in p.own}))
    none = (np.nan,) * len(OWN_PARTS)
    own = np.array([[p.own.get(r, np.nan) for p in points] for r in ranks])
    beyond = np.array([[p.beyond.get(r, np.nan) for p in points] for r in ranks])
    parts = np.array([[p.parts.get(r, none) for p in points] for r in ranks]).transpose(0, 2, 1)
    blocks = _blocks(len(points))
    merged = tuple(_together([p.shown for p in points[b]]) for b in blocks)
    return Series(merged, ranks, *(_medians(values, blocks) for values in (own, beyond, parts)))


def _point(side: Side, columns: list[int], number: int, at_ns: int) -> Point:
    """The steps in `columns` of `side` as one point."""
    case, steps = side.case, side.case.steps
    chosen = _chooser(columns)
    names = dict.fromkeys(name for (_, c), parts in side.parts.items() if c in columns for name in parts)
    point = TrendPoint(
        number, at_ns,
        tuple(steps.numbers[c] for c in columns), int(np.isfinite(steps.wall[:, columns]).any(axis=1).sum()),
        chosen(side.step()), {name: chosen(side.part(name, steps.ranks)) for name in names},
    )  # fmt: skip
    own = steps.own - case.met.explained
    rows = [row for row in range(len(steps.ranks)) if np.isfinite(own[row, columns]).any()]
    parts = {steps.ranks[row]: _own_parts(side, steps.ranks[row], columns) for row in rows}
    return Point(
        point,
        {steps.ranks[row]: chosen(own[row]) for row in rows},
        {steps.ranks[row]: chosen(case.found.value[row]) for row in rows},
        parts,
    )


def _own_parts(side: Side, rank: int, columns: list[int]) -> tuple[float, ...]:
    """The parts of a rank's own time: medians over the steps in `columns` that it recorded."""
    held = [side.parts[rank, c] for c in columns if (rank, c) in side.parts]
    return tuple(float(np.median([parts[name] for parts in held])) for name in OWN_PARTS)


def _chooser(columns: list[int]) -> Callable[[F64], float]:
    """The function that takes the median of known values in `columns`; NaN without any."""

    def median(values: F64) -> float:
        known = values[columns][np.isfinite(values[columns])]
        return float(np.median(known)) if len(known) else np.nan

    return median


def _begins(side: Side) -> dict[int, int]:
    """The begin of each step, ns on the common clock of the first rank's island: the median over its ranks."""
    case = side.case
    found: dict[int, list[int]] = {}
    home = case.clocks.island[case.steps.ranks[0]]
    for row, rank in enumerate(case.steps.ranks):
        columns = np.flatnonzero(np.isfinite(case.steps.wall[row])).tolist()
        if columns and case.clocks.island[rank] == home:
            at = case.clocks.align(rank, windows_of(case.ops, case.steps, rank, columns)[0])
            for column, begin in zip(columns, at.tolist(), strict=True):
                found.setdefault(column, []).append(begin)
    return {column: int(np.median(times)) for column, times in found.items()}


def _blocks(count: int) -> list[slice]:
    """The blocks of consecutive points that are merged."""
    width = -(-count // MOST_POINTS)
    return [slice(i, i + width) for i in range(0, count, width)]


def _together(points: Sequence[TrendPoint]) -> TrendPoint:
    """The medians of several points as one point."""
    names = dict.fromkeys(name for p in points for name in p.parts)
    return TrendPoint(
        points[0].number,
        points[0].at_ns,
        tuple(n for p in points for n in p.steps),
        max(p.ranks for p in points),
        float(np.median([p.step_ns for p in points])),
        {name: float(np.median([p.parts.get(name, 0.0) for p in points])) for name in names},
    )


def _medians(values: F64, blocks: Sequence[slice]) -> F64:
    """The medians of blocks of the last axis; NaN is left out, and stays where a block holds nothing else."""
    found = np.full((*values.shape[:-1], len(blocks)), np.nan)
    for place, block in enumerate(blocks):
        held = values[..., block]
        known = np.isfinite(held).any(axis=-1)
        found[known, place] = np.nanmedian(held[known], axis=-1)
    return found
