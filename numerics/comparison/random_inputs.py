"""Inputs that differ though the examples are the same: crops, noise and masks that each run draws for itself.

Examples are known by their targets, or by most of their own elements where inputs are whole numbers. That a difference
was drawn shows in the generator: it moves on between forwards of a model that draws nothing.
"""

from collections import Counter

import torch

from numerics.columns import Columns
from numerics.comparison.broken_invariants.random_numbers import generator_moves
from numerics.local.places.rank_positions import positions_begin_anew
from numerics.local.read_sequences import other_sequences
from numerics.local.records.recorded import RecordedRun
from numerics.schema import TARGET
from numerics.thresholds.comparison import MAX_ELEMENTS, SAME_EXAMPLE
from numerics.thresholds.report import NAMES_IN_SENTENCE


def drawn_inputs(run: Columns, baseline: Columns, *, draws: bool) -> tuple[str, bool] | None:
    """Return a sentence on the first inputs that differ for the same examples, and whether chance is the certain cause.

    `draws` says that the model's forwards draw random numbers too. Runs that have no example in common read other
    data, or in another order. None where inputs agree, some belong to other examples, or they were not kept.
    """
    mine, other = RecordedRun(run), RecordedRun(baseline)
    for step in sorted(set(mine.steps) & set(other.steps)):
        for name in [name for name in mine.names(step, "forward", "input") if name.startswith("in.")]:
            here, there = _batch(mine, step, name), _batch(other, step, name)
            if here is None or there is None or len(here) != len(there):
                continue
            same = _same_but_for(mine, other, step, here, there)
            if same and not positions_begin_anew(mine, step, name):
                beside = _equal_beside(mine, other, step, name)
                return _in_words(f"{name} of step {step} {same}{beside}", [run, baseline], draws=draws)
    others = other_sequences(mine, other)
    return (others, False) if others else None


def _equal_beside(mine: RecordedRun, other: RecordedRun, step: int, name: str) -> str:
    """Return in words which other inputs of a step are the baseline's; "" where none is."""
    names = [one for one in mine.names(step, "forward", "input") if one.startswith("in.") and one != name]
    pairs = [(one, _batch(mine, step, one), _batch(other, step, one)) for one in names]
    equal = [n for n, a, b in pairs if a is not None and b is not None and _examples(a) == _examples(b)]
    are = "are" if len(equal) > 1 else "is"
    return f", while {', '.join(equal[:NAMES_IN_SENTENCE])} {are} the baseline's" if equal else ""


def _in_words(what: str, runs: list[Columns], *, draws: bool) -> tuple[str, bool]:
    if not draws and all(generator_moves(one) for one in runs):
        return f"the runs drew other random numbers for their inputs: {what}", True
    return (
        f"{what}: drawn again in each run (crops, noise, masks) or prepared differently; the records do not show which",
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
        return "holds other values than the baseline's (record the targets to see whether the examples are the same)"
    return (
        "holds other values than the baseline's for the same targets"
        if _examples(targets[0]) == _examples(targets[1])
        else ""
    )


def _batch(recorded: RecordedRun, step: int, name: str) -> torch.Tensor | None:
    """Return an input of all sequences of a step, (sequences, …); None where some are unknown, or of unequal shapes."""
    parts, total = [], 0
    for place in recorded.places(step):
        whole = recorded.input(step, name, place)
        total += 0 if whole is None else whole.numel()
        if whole is None or not whole.dim() or total > MAX_ELEMENTS:
            return None
        one = whole.dim() == 1 and not whole.is_floating_point() and not name.startswith(TARGET)
        parts.append(whole[None] if one else whole)
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
    nearest = [
        agreement.max(dim).values for dim in (0, 1)
    ]  # each run's, or sequences were left out for repeated ones
    return float(nearest[1].mean()) if all(bool((one > SAME_EXAMPLE).all()) for one in nearest) else 0.0
