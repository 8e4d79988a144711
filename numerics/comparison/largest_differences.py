"""The tensors that differ most, and the picture of where: summaries of a comparison for its reports."""

from typing import Any, Final

import numpy as np

from numerics.columns import Frame, Ints
from numerics.comparison.tensor_table import Status, TensorTable
from numerics.comparison.value_distance import distance
from numerics.findings import Cell, Worst
from numerics.schema import parse_boxes, parse_shape

_MOST_ELEMENTS: Final = 1 << 22
_MODULES: Final = 120
_STEPS: Final = 60


def worst_tensors(run: Frame, baseline: Frame, table: TensorTable, count: int) -> tuple[Worst, ...]:
    """Rank the tensors that differ by relative size; values give ulps and cosine where both runs kept them."""
    chosen = np.flatnonzero(table.status == Status.DIFFERENT)
    relative = np.nan_to_num(table.relative[chosen], nan=np.inf)
    by = np.lexsort((table.tensor[chosen], table.step[chosen], -relative))[:count]
    return tuple(_worst(run, baseline, table, int(entry)) for entry in chosen[by])


def _worst(run: Frame, baseline: Frame, table: TensorTable, entry: int) -> Worst:
    name, step = run.names.text(int(table.tensor[entry])), int(table.step[entry])
    mine = _assembled(run, int(table.left[entry]))
    other = _assembled(baseline, int(table.right[entry]))
    if mine is not None and other is not None and mine.shape == other.shape:
        narrow = run.name("dtype", int(table.left[entry])) == "bfloat16"
        found = distance(mine, other, bfloat16=narrow)
        return Worst(name, step, found.max_ulp, found.rel, found.cosine, found.ratio)
    relative = float(table.relative[entry])
    return Worst(name, step, None, relative if np.isfinite(relative) else None, None, None)


def _assembled(frame: Frame, row: int) -> np.ndarray[Any, Any] | None:
    """Whole global tensor of a row from the values of its parts, flat; None where they were not kept."""
    shape = parse_shape(frame.name("global_shape", row))
    if frame.values_key(row) is None or np.prod(np.array(shape, np.float64)) > _MOST_ELEMENTS:
        return None
    whole: np.ndarray[Any, Any] | None = None
    covered = 0
    for part in _parts(frame, row):
        key = frame.values_key(int(part))
        if key is None:
            continue
        flat = frame.capture.read_values(int(frame["rank"][part]), key)
        boxes = parse_boxes(frame.name("boxes", int(part))) if shape else ()
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


def _parts(frame: Frame, row: int) -> Ints:
    same = np.ones(len(frame), bool)
    for column in ("step", "phase", "kind", "tensor", "global_shape"):
        same &= frame[column] == frame[column][row]
    rows = np.flatnonzero(same & (frame["replica"] == 0) & (frame["partial"] < 0))
    _, first = np.unique(frame["boxes"][rows], return_index=True)
    return rows[first]


def picture(run: Frame, baseline: Frame, table: TensorTable, unexplained: np.ndarray) -> tuple[Cell, ...]:
    """Fields of the picture: modules in execution order, by step and phase.

    `unexplained` marks entries of `table`.
    """
    left = table.left >= 0
    module = np.where(left, run["module"][table.left], baseline["module"][table.right])
    order = np.where(left, run["order"][table.left], baseline["order"][table.right])
    compared = table.status != Status.UNMATCHED
    fields: dict[tuple[int, int, int], list[int]] = {}
    place: dict[int, int] = {}
    for entry in np.flatnonzero(compared):
        code = int(module[entry])
        fields.setdefault((code, int(table.step[entry]), int(table.phase[entry])), []).append(int(entry))
        place[code] = min(place.get(code, 1 << 62), int(order[entry]))
    modules = sorted(place, key=lambda m: (place[m], run.names.text(m)))[:_MODULES]
    steps = sorted({step for _, step, _ in fields})[:_STEPS]
    kept = sorted(
        (key for key in fields if key[0] in set(modules) and key[1] in set(steps)),
        key=lambda k: (modules.index(k[0]), k[1], k[2]),
    )
    return tuple(_cell(run, table, key, np.array(fields[key]), unexplained) for key in kept)


def _cell(
    run: Frame, table: TensorTable, key: tuple[int, int, int], entries: Ints, unexplained: np.ndarray
) -> Cell:
    wrong = entries[table.status[entries] == Status.DIFFERENT]
    sizes = table.relative[wrong][np.isfinite(table.relative[wrong])]
    return Cell(
        module=run.names.text(key[0]) or "(model)",
        step=key[1],
        phase=run.names.text(key[2]),
        tensors=len(entries),
        differ=len(wrong),
        unexplained=int(unexplained[wrong].sum()),
        rel=float(sizes.max()) if len(sizes) else None,
    )
