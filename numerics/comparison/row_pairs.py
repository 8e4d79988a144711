"""Vectors that stand for the rows of a run and of its replay: values where both kept them, else sketches."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from numerics.columns import Frame
from numerics.comparison.linear_relations import Vector
from numerics.comparison.row_table import RowTable
from numerics.schema import Box, parse_boxes
from tracekit.errors import InputError

_MOST_ELEMENTS: Final = 1 << 22


class Evidence:
    """A run, its replay and their joined rows, with one way to ask for numbers."""

    def __init__(self, run: Frame, replay: Frame, table: RowTable) -> None:
        self.run, self.replay, self.table = run, replay, table

    def match(self, row: int) -> int:
        """Row of the replay for a row of the run; -1 without."""
        return int(self.table.match[row])

    @cached_property
    def by_digest(self) -> dict[int, list[int]]:
        """Rows of the replay by digest, for values that stand in the wrong place."""
        found: dict[int, list[int]] = {}
        for row, digest in enumerate(self.replay.digest.tolist()):
            found.setdefault(digest, []).append(row)
        return found

    def array(self, frame: Frame, row: int) -> np.ndarray[Any, Any] | None:
        """Values of a row in the shape of the rank's own tensor; None where none were kept."""
        key = frame.values_key(row)
        if key is None or not 0 < int(frame["numel"][row]) <= _MOST_ELEMENTS:
            return None
        flat = frame.capture.read_values(int(frame["rank"][row]), key)
        if len(flat) != int(frame["numel"][row]):
            raise InputError(f"{frame.capture.folder}: values and rows do not fit; capture the run again")
        return in_boxes(flat, parse_boxes(frame.name("boxes", row)))

    def part_of(self, other: int, row: int) -> np.ndarray[Any, Any] | None:
        """Of a replay's row that holds more than a row of the run: the run's part of it; None where it does not."""
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
        """Whether values of these rows of the run and of their matches were kept."""
        total = sum(int(self.run["numel"][r]) for r in rows)
        return 0 < total <= _MOST_ELEMENTS and all(
            self.match(r) >= 0
            and self.run.values_key(r) is not None
            and self.replay.values_key(self.match(r)) is not None
            for r in rows
        )

    def vector(self, frame: Frame, row: int, *, values: bool) -> Vector:
        """Values of a row as a flat float64 vector, or its sketch."""
        if not values:
            return np.asarray(frame.sketch[row], np.float64)
        array = self.array(frame, row)
        if array is None:
            raise InputError(f"{frame.capture.folder}: values of {frame.name('tensor', row)} are missing")
        return np.asarray(array.reshape(-1), np.float64)

    def both(self, rows: Sequence[int], *, values: bool) -> tuple[Vector, Vector]:
        """Vectors of the run's rows and of the replay's, one behind another."""
        mine = [self.vector(self.run, r, values=values) for r in rows]
        right = [self.vector(self.replay, self.match(r), values=values) for r in rows]
        return np.concatenate(mine), np.concatenate(right)

    def relative(self, rows: Sequence[int]) -> float:
        """Norm of the difference over the norm of the right value; infinite where that is nothing."""
        a, b = self.both(rows, values=self.has_values(rows))
        with np.errstate(all="ignore"):
            size = float(np.linalg.norm(b))
            found = float(np.linalg.norm(a - b)) / size if size else math.inf
        return found if math.isfinite(found) else math.inf


def in_boxes(flat: np.ndarray[Any, Any], boxes: Sequence[Box]) -> np.ndarray[Any, Any]:
    """Shape flat values as their box; several boxes stand one behind another where they differ, as in `digest`."""
    if len(boxes) < 2:
        return flat.reshape(boxes[0].sizes) if boxes else flat.reshape(())
    dim = next((d for d in range(len(boxes[0].sizes)) if len({box.offsets[d] for box in boxes}) > 1), 0)
    others = {(*box.sizes[:dim], *box.sizes[dim + 1 :]) for box in boxes}
    if len(others) > 1:
        return flat
    ends = np.cumsum([box.numel for box in boxes])
    parts = [flat[end - box.numel : end].reshape(box.sizes) for end, box in zip(ends, boxes, strict=True)]
    return np.concatenate(parts, axis=dim)
