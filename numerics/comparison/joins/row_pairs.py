"""Rows of a run paired with rows of its replay, and the vectors that represent them: values, else sketches."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.linear_relations import Vector
from numerics.comparison.joins.row_table import RowTable
from numerics.formats import least_roundoff
from numerics.schema import Box, parse_boxes
from numerics.thresholds.comparison import LEAST_TOLERANCE, MAX_ELEMENTS, SKETCH_TOLERANCE, VALUES_TOLERANCE
from tracekit.errors import InputError


class RowPairs:
    """A run, its replay and their joined rows; the vectors of both come from here."""

    def __init__(self, run: Columns, replay: Columns, table: RowTable) -> None:
        self.run, self.replay, self.table = run, replay, table

    def match(self, row: int) -> int:
        """Return the replay's row for a row of the run, -1 where there is none."""
        return int(self.table.match[row])

    @cached_property
    def by_digest(self) -> dict[int, list[int]]:
        """Rows of the replay by digest, to find values in the wrong place."""
        found: dict[int, list[int]] = {}
        for row, digest in enumerate(self.replay.digest.tolist()):
            found.setdefault(digest, []).append(row)
        return found

    def array(self, side: Columns, row: int) -> np.ndarray[Any, Any] | None:
        """Return a row's values in the shape of the rank's own tensor; None where none were kept, or too many."""
        key = side.values_key(row)
        if key is None or not 0 < int(side["numel"][row]) <= MAX_ELEMENTS:
            return None
        flat = side.capture.read_values(int(side["rank"][row]), key)
        if len(flat) != int(side["numel"][row]):
            raise InputError(f"{side.capture.folder}: values and rows do not fit; capture the run again")
        return in_boxes(flat, parse_boxes(side.name("boxes", row)))

    def part_of(self, other: int, row: int) -> np.ndarray[Any, Any] | None:
        """Return the part of a replay's row that a row of the run holds; None where the replay's holds less."""
        outer = parse_boxes(self.replay.name("boxes", other))
        inner = parse_boxes(self.run.name("boxes", row))
        if len(outer) != 1 or len(inner) != 1 or len(inner[0].sizes) != len(outer[0].sizes):
            return None
        places = list(zip(outer[0].offsets, outer[0].sizes, inner[0].offsets, inner[0].sizes, strict=True))
        if any(o > i or i + n > o + m for o, m, i, n in places):
            return None
        array = self.array(self.replay, other)
        return None if array is None else array[tuple(slice(i - o, i - o + n) for o, _, i, n in places)]

    def has_values(self, rows: Sequence[int]) -> bool:
        """Return whether values of these rows of the run and of their matches were kept."""
        total = sum(int(self.run["numel"][r]) for r in rows)
        return 0 < total <= MAX_ELEMENTS and all(
            self.match(r) >= 0
            and self.run.values_key(r) is not None
            and self.replay.values_key(self.match(r)) is not None
            for r in rows
        )

    def elements(self, rows: Sequence[int]) -> int:
        """Return how many elements rows of the run hold together; copies on several ranks count once."""
        names = ("step", "kind", "tensor", "micro_batch", "boxes", "partial")
        parts = {tuple(int(self.run[n][r]) for n in names): int(self.run["numel"][r]) for r in rows}
        return sum(parts.values())

    def tolerance(self, rows: Sequence[int], *, values: bool) -> float:
        """Return the residual that rounding alone may leave in a relation of these rows to their matches."""
        run, right = self.run, self.replay
        formats = {run.name("dtype", r) for r in rows} | {right.name("dtype", self.match(r)) for r in rows}
        unit = max(least_roundoff(dtype) for dtype in formats)
        return max((VALUES_TOLERANCE if values else SKETCH_TOLERANCE) * unit, LEAST_TOLERANCE)

    def vector(self, side: Columns, row: int, *, values: bool) -> Vector:
        """Return a row's values as a flat float64 vector, or its sketch. InputError where values were not kept."""
        if not values:
            return np.asarray(side.sketch[row], np.float64)
        array = self.array(side, row)
        if array is None:
            raise InputError(f"{side.capture.folder}: values of {side.name('tensor', row)} are missing")
        return np.asarray(array.reshape(-1), np.float64)

    def both(self, rows: Sequence[int], *, values: bool) -> tuple[Vector, Vector]:
        """Return the vectors of the run's rows and of their matches, each one after another."""
        mine = [self.vector(self.run, r, values=values) for r in rows]
        right = [self.vector(self.replay, self.match(r), values=values) for r in rows]
        return np.concatenate(mine), np.concatenate(right)

    def relative(self, rows: Sequence[int]) -> float:
        """Return the norm of the difference over the norm of the right value; infinite where that is 0."""
        a, b = self.both(rows, values=self.has_values(rows))
        with np.errstate(all="ignore"):
            size = float(np.linalg.norm(b))
            found = float(np.linalg.norm(a - b)) / size if size else math.inf
        return found if math.isfinite(found) else math.inf


def in_boxes(flat: np.ndarray[Any, Any], boxes: Sequence[Box]) -> np.ndarray[Any, Any]:
    """Return flat values in the shape of their box; several boxes follow one another where they differ."""
    if len(boxes) < 2:
        return flat.reshape(boxes[0].sizes) if boxes else flat.reshape(())
    dim = next((d for d in range(len(boxes[0].sizes)) if len({box.offsets[d] for box in boxes}) > 1), 0)
    others = {(*box.sizes[:dim], *box.sizes[dim + 1 :]) for box in boxes}
    if len(others) > 1:
        return flat
    ends = np.cumsum([box.numel for box in boxes])
    parts = [flat[end - box.numel : end].reshape(box.sizes) for end, box in zip(ends, boxes, strict=True)]
    return np.concatenate(parts, axis=dim)
