"""Weights that a trainer changes between two steps, outside its optimiser: projections, limits, averages.

All ranks change them alike, or they would not stay copies; an update that is lost puts back what was there before it.
"""

import numpy as np

from numerics.columns import Columns
from numerics.local.records.restored_steps import restored_steps
from numerics.local.records.skipped_updates import skipped_updates


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
    stepped = np.flatnonzero(run.named("phase", "reduce") & parameters).tolist()
    beside = {_key(run, row, 0) for row in stepped}
    found: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(starts & (run["step"] > 0)).tolist():
        other, step = before.get(_key(run, row, 0)), int(run["step"][row])
        if other is None or step in restored or _kept(run, other, row):
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


def _kept(run: Columns, left: int, row: int) -> bool:
    """Return whether a weight is what the row before it holds, rounded to the weight's format.

    Values in two formats that were not kept show nothing, and are taken as kept.
    """
    if run["dtype"][left] == run["dtype"][row]:
        return bool(run.digest[left] == run.digest[row])
    import torch  # the comparison of equal formats needs no torch

    from numerics.local.records.recorded import RecordedRun

    recorded = RecordedRun(run)
    before, now = recorded.local(left), recorded.local(row)
    return before is None or now is None or torch.equal(before.to(now.dtype), now)


def _key(run: Columns, row: int, ahead: int) -> tuple[int, ...]:
    columns = ("rank", "tensor", "boxes", "global_shape")
    return (max(int(run["step"][row]), 0) + ahead, *(int(run[c][row]) for c in columns))
