"""Weights that a trainer changes between two steps, outside its optimiser: projections, limits, averages.

All ranks change them alike, or they would not stay copies; an update that is lost puts back what was there before it.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from numerics.columns import Columns
from numerics.local.records.restored_steps import restored_steps
from numerics.local.records.skipped_updates import skipped_updates
from numerics.schema import Box, linear_index, parse_boxes, parse_shape

if TYPE_CHECKING:
    import torch

    from numerics.local.records.recorded import RecordedRun

Values: TypeAlias = "Callable[[int], torch.Tensor | None]"
"""Maps a row to its values, flat; None where none were kept."""


def changed_weights(run: Columns) -> dict[int, list[tuple[int, int]]]:
    """Return by step the pairs (row before the step, row at the start of the step) of unequal bits, by rank.

    The row before is what the last step's update left, or what that step started from where it skipped its update.
    Steps that start from a checkpoint are left out, and behind a skipped update weights that the trainer changes again
    before its update, as one does that takes a gradient beside them: the update is checked from what it started from.
    """
    restored = restored_steps(run)
    parameters = run.named("kind", "param")
    starts = run.named("phase", "init") & parameters
    kept = np.isin(np.maximum(run["step"], 0), list(skipped_updates(run)))
    left = np.flatnonzero((run.named("phase", "step") & parameters) | (starts & kept)).tolist()
    before = {_key(run, row, 1): row for row in left}
    parts = _parts(run, [row for row in left if run.name("phase", row) == "step"])
    stepped = np.flatnonzero(run.named("phase", "reduce") & parameters).tolist()
    beside = {_key(run, row, 0) for row in stepped}
    values = _reader(run)
    found: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(starts & (run["step"] > 0)).tolist():
        step = int(run["step"][row])
        own = before.get(_key(run, row, 0))
        held = parts.get(_tensor(run, row, 0), []) if own is None else [own]
        other = (
            None
            if step in restored
            else next((one for one in held if not _kept(run, one, row, values)), None)
        )
        if other is None:
            continue
        if run.name("phase", other) == "step" or _key(run, row, 0) not in beside:
            found.setdefault(step, []).append((other, row))
    return found


def intended(run: Columns, pairs: list[tuple[int, int]]) -> bool:
    """Return whether a step's changes may be the trainer's own: no rank kept its copy, and no update was lost."""
    changed = {row for _, row in pairs}
    starts = run.named("phase", "init") & run.named("kind", "param")
    step = int(run["step"][pairs[0][1]])
    parts = {(int(run["tensor"][row]), int(run["boxes"][row])) for row in changed}
    kept = [
        row
        for row in np.flatnonzero(starts & (run["step"] == step)).tolist()
        if (int(run["tensor"][row]), int(run["boxes"][row])) in parts and row not in changed
    ]
    if kept:
        return False
    old = {
        (int(run["rank"][row]), int(run["tensor"][row]), int(run.digest[row]))
        for row in np.flatnonzero(starts & (run["step"] >= step - 2) & (run["step"] < step)).tolist()
        if int(run["step"][row]) == step - 1 or step == 1
    }
    return not any(
        (int(run["rank"][row]), int(run["tensor"][row]), int(run.digest[row])) in old for row in changed
    )


def sentence_of(run: Columns, pair: tuple[int, int]) -> str:
    """Return that a parameter is not what the optimiser left."""
    row = pair[1]
    after = run.name("phase", pair[0]) == "step"
    due = (
        "what the optimiser left in the step before"
        if after
        else "what the step before, without an update, began with"
    )
    return (
        f"{run.name('tensor', row)} at the start of step {int(run['step'][row])} (rank {int(run['rank'][row])}) is not "
        f"{due}"
    )


def _reader(run: Columns) -> Values:
    """Return a function that reads the values of a row; most runs are compared by digests, without torch."""

    @cache
    def recorded() -> "RecordedRun":
        from numerics.local.records.recorded import RecordedRun

        return RecordedRun(run)

    return lambda row: recorded().local(row)


def _parts(run: Columns, rows: list[int]) -> dict[tuple[int, ...], list[int]]:
    """Return the rows of declared parts of a tensor by the step behind their own: ranks gather them before it."""
    found: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        if not run.name("partial", row):
            found.setdefault(_tensor(run, row, 1), []).append(row)
    return found


def _kept(run: Columns, left: int, row: int, values: Values) -> bool:
    """Return whether a weight holds what the row before it holds, rounded to the weight's format.

    Values in two formats, or of a part of the weight, that were not kept show nothing, and are taken as kept.
    """
    apart = run["boxes"][left] != run["boxes"][row]
    if not apart and run["dtype"][left] == run["dtype"][row]:
        return bool(run.digest[left] == run.digest[row])
    before, now = values(left), values(row)
    if before is None or now is None:
        return True
    if apart:
        part, whole = _elements(run, left), _elements(run, row)
        _, mine, other = np.intersect1d(part, whole, return_indices=True)
        before, now = before[mine], now[other]
    return bool((before.to(now.dtype) == now).all())


def _elements(run: Columns, row: int) -> np.ndarray:
    """Return which elements of the whole tensor a row holds, in its order, (numel,) int64."""
    shape, boxes = parse_shape(run.name("global_shape", row)), parse_boxes(run.name("boxes", row) or "")
    return np.concatenate([linear_index(shape, box) for box in boxes or [Box((), ())]])


def _key(run: Columns, row: int, ahead: int) -> tuple[int, ...]:
    return (int(run["rank"][row]), int(run["boxes"][row]), *_tensor(run, row, ahead))


def _tensor(run: Columns, row: int, ahead: int) -> tuple[int, ...]:
    step = max(int(run["step"][row]), 0) + ahead
    return (step, int(run["tensor"][row]), int(run["global_shape"][row]))
