"""Inputs that differ though the examples are the same: crops, noise and masks that each run draws for itself.

Examples are known by their targets, or by most of their own elements where inputs are whole numbers. That a difference
was drawn shows in the generator: it moves on between forwards of a model that draws nothing.
"""

from collections import Counter

import torch

from numerics.columns import Columns
from numerics.comparison.random_numbers import generator_moves
from numerics.local.recorded import RecordedRun
from numerics.schema import TARGET
from numerics.thresholds.comparison import MAX_ELEMENTS, SAME_EXAMPLE


def drawn_inputs(run: Columns, baseline: Columns, *, draws: bool) -> tuple[str, bool] | None:
    """Return a sentence on the first inputs that differ for the same examples, and whether chance is the certain cause.

    `draws` says that the model's forwards draw random numbers too. None where inputs agree, belong to other
    examples, or were not kept.
    """
    if not run.capture.values or not baseline.capture.values:
        return None
    mine, other = RecordedRun(run), RecordedRun(baseline)
    for step in sorted(set(mine.steps) & set(other.steps)):
        for name in [name for name in mine.names(step, "forward", "input") if name.startswith("in.")]:
            here, there = _batch(mine, step, name), _batch(other, step, name)
            if here is None or there is None or len(here) != len(there):
                continue
            same = _same_but_for(mine, other, step, here, there)
            if same:
                return _told(f"{name} of step {step} {same}", [run, baseline], draws=draws)
    return None


def _told(what: str, runs: list[Columns], *, draws: bool) -> tuple[str, bool]:
    if not draws and all(generator_moves(one) for one in runs):
        return f"the runs drew other random numbers for their inputs: {what}", True
    return (
        f"{what}: drawn anew in each run (crops, noise, masks), or prepared otherwise, which no record tells",
        False,
    )


def _same_but_for(
    mine: RecordedRun, other: RecordedRun, step: int, here: torch.Tensor, there: torch.Tensor
) -> str:
    """Return in words how inputs of the same examples differ; "" where they do not, or are of others."""
    if _examples(here) == _examples(there):
        return ""
    if not here.is_floating_point() and not there.is_floating_point() and here.shape == there.shape:
        share = _shared(here, there)
        if SAME_EXAMPLE <= share < 1:
            return f"holds the baseline's sequences but for {1 - share:.2g} of their elements"
        return ""
    targets = [_batch(one, step, f"{TARGET}0") for one in (mine, other)]
    if targets[0] is None or targets[1] is None:
        return "holds other values than the baseline's (record the targets, which tell whether of the same examples)"
    return (
        "holds other values than the baseline's for the same targets"
        if _examples(targets[0]) == _examples(targets[1])
        else ""
    )


def _batch(recorded: RecordedRun, step: int, name: str) -> torch.Tensor | None:
    """Return an input of all sequences of a step, (sequences, …); None where some are unknown, or of unequal shapes."""
    run = recorded.run
    rows = recorded.rows(step, "forward", "input", name)
    first = min((int(run["pp"][row]) for row in rows), default=0)
    seen: set[tuple[int, int]] = set()
    parts, total = [], 0
    for row in (row for row in rows if int(run["pp"][row]) == first):
        place = (int(run["dp"][row]), int(run["micro_batch"][row]))
        if place in seen:
            continue
        seen.add(place)
        whole = recorded.whole([row], None, batch=True)
        total += int(run["numel"][row])
        if not whole or not whole[0].tensor.dim() or total > MAX_ELEMENTS:
            return None
        parts.append(whole[0].tensor)
    same = {tuple(part.shape[1:]) for part in parts}
    return torch.cat(parts) if len(same) == 1 else None


def _examples(batch: torch.Tensor) -> Counter[bytes]:
    """Return the examples of a batch, each as its bytes."""
    return Counter(
        one.contiguous().view(torch.uint8).numpy().tobytes() for one in batch.reshape(len(batch), -1)
    )


def _shared(here: torch.Tensor, there: torch.Tensor) -> float:
    """Return which share of its elements each sequence has in common with the nearest of the baseline's, the mean."""
    mine, other = here.reshape(len(here), -1), there.reshape(len(there), -1)
    if not mine.shape[1] or mine.numel() * len(other) > MAX_ELEMENTS:
        return 0.0
    agreement = (mine[:, None] == other[None]).double().mean(-1)
    return (
        float(agreement.max(1).values.mean()) if bool((agreement.max(1).values > SAME_EXAMPLE).all()) else 0.0
    )
