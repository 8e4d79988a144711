"""Cells of ranks × steps for a page: few enough to draw, rounded, and None where unknown."""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from tracekit.findings.picture import F64
from tracekit.thresholds.report import MAP_CELLS


def blocks_of(steps: Sequence[int], ranks: int) -> list[slice]:
    """Return the columns of a heat map: steps, or blocks of consecutive steps where there are too many cells."""
    width = -(-len(steps) * ranks // MAP_CELLS) if steps else 1
    return [slice(i, i + width) for i in range(0, len(steps), max(width, 1))]


def steps_text(steps: Sequence[int], block: slice) -> str:
    """Return the name of a block of steps."""
    first, *rest = steps[block]
    return f"{first}-{rest[-1]}" if rest else str(first)


def columns_of(values: F64, blocks: Sequence[slice]) -> list[list[float | None]]:
    """Return a list for each rank: the mean of each block of columns; None where unknown."""
    columns = []
    for block in blocks:
        known = np.isfinite(values[:, block])
        total = np.where(known, values[:, block], 0.0).sum(axis=1)
        count = known.sum(axis=1)
        columns.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    return [rounded(row) for row in np.stack(columns, axis=1)] if columns else []


def rounded(values: F64) -> list[float | None]:
    """Return values for JSON: rounded to a thousandth, None where unknown."""
    return [number(v) for v in values.tolist()]


def number(value: float) -> float | None:
    """Return one value for JSON."""
    return round(value, 3) if isfinite(value) else None
