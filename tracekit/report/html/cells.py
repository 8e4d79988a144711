"""Ranks, and cells of ranks × steps, as a page holds them: few, short, and None where nothing is known."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from tracekit.page.scale import Scale
from tracekit.text import plain
from tracekit.thresholds.report import CELL_PARTS, MAP_CELLS
from tracekit.units import F64


def field_of(
    ranks: Sequence[int], hosts: Sequence[str | None], places: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return ranks as the script takes them: each with its host and, on every axis, outermost first, its index."""
    names = list(dict.fromkeys(plain(h) for h in hosts if h is not None))
    number = {name: i for i, name in enumerate(names)}
    return {
        "ranks": list(ranks),
        "hosts": {"names": names, "of": [-1 if h is None else number[plain(h)] for h in hosts]},
        "places": {axis: list(index) for axis, index in places.items() if len(set(index)) > 1},
    }


def shown_of(name: str, colour: str, scale: Scale, values: F64, blocks: Sequence[slice]) -> dict[str, Any]:
    """Return one quantity of ranks × steps, ms, with its colour: means of ranks, and cells in parts of a unit."""
    unit = max(scale.high, -scale.low) / CELL_PARTS or 1.0
    return {
        "name": name,
        "colour": colour,
        "scale": scale.document(),
        "means": rounded(_means(values)),
        "unit": unit,
        "cells": [
            [None if v is None else round(v / unit) for v in row] for row in columns_of(values, blocks)
        ],
    }


def blocks_of(steps: Sequence[int], ranks: int) -> list[slice]:
    """Return columns of a heat map: steps, or blocks of consecutive ones where all would be too many cells."""
    width = -(-len(steps) * ranks // MAP_CELLS) if steps else 1
    return [slice(i, i + width) for i in range(0, len(steps), max(width, 1))]


def steps_text(steps: Sequence[int], block: slice) -> str:
    """Return the name of a block of steps."""
    first, *rest = steps[block]
    return f"{first}-{rest[-1]}" if rest else str(first)


def columns_of(values: F64, blocks: Sequence[slice]) -> list[list[float | None]]:
    """Return one list a rank: the mean of each block of columns; None where nothing is known."""
    columns = [_means(values[:, block]) for block in blocks]
    return [rounded(row) for row in np.stack(columns, axis=1)] if columns else []


def _means(values: F64) -> F64:
    """Return the mean of each row over what is known of it; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def rounded(values: F64) -> list[float | None]:
    """Return values as JSON takes them: rounded to a thousandth, None where nothing is known."""
    return [number(v) for v in values.tolist()]


def number(value: float) -> float | None:
    """Return one value as JSON takes it."""
    return round(value, 3) if isfinite(value) else None
