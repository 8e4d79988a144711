"""The tensors that differ most between two runs."""

from typing import Any

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.tensor_table import Status, TensorTable
from numerics.comparison.joins.value_distance import value_distance
from numerics.findings import TensorDifference
from numerics.keys import Ints
from numerics.schema import parse_boxes, parse_shape
from numerics.thresholds.comparison import MAX_ELEMENTS


def largest_differences(
    run: Columns, baseline: Columns, table: TensorTable, count: int
) -> tuple[TensorDifference, ...]:
    """Return the `count` tensors with the largest relative difference; ulps and cosine where both kept the values."""
    chosen = np.flatnonzero(table.status == Status.DIFFERENT)
    relative = np.nan_to_num(table.relative[chosen], nan=np.inf)
    by = np.lexsort((table.tensor[chosen], table.step[chosen], -relative))[:count]
    return tuple(_difference(run, baseline, table, int(entry)) for entry in chosen[by])


def _difference(run: Columns, baseline: Columns, table: TensorTable, entry: int) -> TensorDifference:
    name, step = run.names.text(int(table.tensor[entry])), int(table.step[entry])
    mine = _assembled(run, int(table.left[entry]))
    other = _assembled(baseline, int(table.right[entry]))
    if mine is not None and other is not None and mine.shape == other.shape:
        narrow = run.name("dtype", int(table.left[entry])) == "bfloat16"
        found = value_distance(mine, other, bfloat16=narrow)
        return TensorDifference(name, step, found.max_ulp, found.rel, found.cosine, found.ratio)
    relative = float(table.relative[entry])
    return TensorDifference(name, step, None, relative if np.isfinite(relative) else None, None, None)


def _assembled(run: Columns, row: int) -> np.ndarray[Any, Any] | None:
    """Return the whole global tensor of a row from the values of its parts, flat; None where they were not kept."""
    shape = parse_shape(run.name("global_shape", row))
    if run.values_key(row) is None or np.prod(np.array(shape, np.float64)) > MAX_ELEMENTS:
        return None
    whole: np.ndarray[Any, Any] | None = None
    covered = 0
    for part in _parts(run, row):
        key = run.values_key(int(part))
        if key is None:
            continue
        flat = run.capture.read_values(int(run["rank"][part]), key)
        boxes = parse_boxes(run.name("boxes", int(part))) if shape else ()
        if whole is None:
            whole = np.zeros(shape, flat.dtype)
        if not shape:
            return flat[:1].copy()
        start = 0
        for box in boxes:
            at = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
            whole[at] = flat[start : start + box.numel].reshape(box.sizes)
            start += box.numel
        covered += start
    return None if whole is None or covered != whole.size else whole.reshape(-1)


def _parts(run: Columns, row: int) -> Ints:
    """Return one row for each part of a row's global tensor."""
    same = np.ones(len(run), bool)
    for column in ("step", "phase", "kind", "tensor", "global_shape"):
        same &= run[column] == run[column][row]
    rows = np.flatnonzero(same & (run["replica"] == 0) & (run["partial"] < 0))
    _, first = np.unique(run["boxes"][rows], return_index=True)
    return rows[first]
