"""Cells of ranks × steps as a page holds them: few enough to draw, rounded, and None where nothing is known."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from tracekit.findings.picture import F64
from tracekit.thresholds.report import MAP_CELLS


def blocks_of(steps: Sequence[int], ranks: int) -> list[slice]:
    """Columns of a heat map: steps, or blocks of consecutive ones where all of them would be too many cells."""
    width = -(-len(steps) * ranks // MAP_CELLS) if steps else 1
    return [slice(i, i + width) for i in range(0, len(steps), max(width, 1))]


def steps_text(steps: Sequence[int], block: slice) -> str:
    """The name of a block of steps."""
    first, *rest = steps[block]
    return f"{first}-{rest[-1]}" if rest else str(first)


def columns_of(values: F64, blocks: Sequence[slice]) -> list[list[float | None]]:
    """One list a rank: the mean of each block of columns; None where nothing is known."""
    columns = []
    for block in blocks:
        known = np.isfinite(values[:, block])
        total = np.where(known, values[:, block], 0.0).sum(axis=1)
        count = known.sum(axis=1)
        columns.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    return [rounded(row) for row in np.stack(columns, axis=1)] if columns else []


def rounded(values: F64) -> list[float | None]:
    """Values as JSON takes them: rounded to a thousandth, None where nothing is known."""
    return [number(v) for v in values.tolist()]


def number(value: float) -> float | None:
    """One value as JSON takes it."""
    return round(value, 3) if isfinite(value) else None
