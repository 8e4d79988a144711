"""How a recorded tensor relates to the one computed again, where rounding does not: right values in the wrong place.

Two relations are of values: elements dropped again in the backward, and a bias that is added another number of times.
"""

from math import isfinite
from typing import Final

import numpy as np
import torch

from numerics.formats import least_roundoff
from numerics.local.array_differences import few_places, moved, places_in_words
from numerics.thresholds.comparison import LEAST_FITTED, MAX_ELEMENTS
from numerics.thresholds.local import ELEMENT_ROUNDOFFS

DROPPED_AGAIN: Final = (
    "the backward drops other elements than the forward did, as recomputation (activation checkpointing) without "
    "the state of the generator of random numbers does (`preserve_rng_state=False`)"
)
"""The relation of a gradient to the right one where the forward's own elements are known."""


def relation(recorded: torch.Tensor, computed: torch.Tensor) -> str:
    """Return the relation in words; empty where none holds in every bit, or the tensors are too small or too large."""
    if recorded.shape != computed.shape or recorded.dtype != computed.dtype:
        return ""
    if not LEAST_FITTED <= recorded.numel() <= MAX_ELEMENTS:
        return ""
    bad = int((~recorded.isfinite()).sum()) - int((~computed.isfinite()).sum())
    if bad > 0:
        return f"{bad} elements are infinite or not a number, none ought to be"
    if not bool(recorded.any()) and bool(computed.any()):
        return "the value is missing: all elements are zero"
    mine, right = _array(recorded), _array(computed)
    order = moved(mine, right)
    if order is not None:
        return f"moved: {order}"
    few = few_places(mine, right)
    return "" if few is None else f"differs {places_in_words(few[1], mine.shape[few[0]], few[0])}"


def _array(value: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array; 16-bit numbers are widened, which changes none."""
    narrow = value.is_floating_point() and torch.finfo(value.dtype).bits < torch.finfo(torch.float32).bits
    return (value.float() if narrow else value).detach().numpy()


def dropped_again(recorded: torch.Tensor, computed: torch.Tensor) -> str:
    """Return in words that a gradient is right but for the elements that are zero, which are others; else "".

    Each of the two must be zero where the other is not: a mask applied twice, or left out, is another mistake.
    """
    if recorded.shape != computed.shape or recorded.dtype != computed.dtype:
        return ""
    mine, right = recorded != 0, computed != 0
    both, apart = mine & right, min(int((mine & ~right).sum()), int((right & ~mine).sum()))
    if (
        apart < LEAST_FITTED
        or int(both.sum()) < LEAST_FITTED
        or not torch.equal(recorded[both], computed[both])
    ):
        return ""
    return DROPPED_AGAIN


def bias_added(recorded: torch.Tensor, computed: torch.Tensor, bias: torch.Tensor, ranks: int) -> str:
    """Return in words how many times an output holds its module's bias, where this alone is wrong; else "".

    `ranks` share the output. Every element must miss by one whole multiple of its channel's bias, within roundings.
    """
    dims = [d for d in (-1, 1) if computed.dim() > 1 and computed.shape[d] == bias.numel()]
    if recorded.shape != computed.shape or computed.numel() < LEAST_FITTED or bias.dim() != 1 or not dims:
        return ""
    right, addend = computed.double().movedim(dims[0], -1), bias.double()
    away = recorded.double().movedim(dims[0], -1) - right
    rows, square = away.numel() // bias.numel(), float(addend.square().sum())
    times = float((away * addend).sum()) / (rows * square) if square else 0.0
    more = round(times) if isfinite(times) else 0
    unit = least_roundoff(str(recorded.dtype).removeprefix("torch."))
    sizes = right.abs() + (abs(more) + 1) * addend.abs() + right.square().mean().sqrt()
    if not more or not bool(((away - more * addend).abs() <= ELEMENT_ROUNDOFFS * unit * sizes).all()):
        return ""
    if more == -1:
        return "its bias is missing"
    each = f", once by each of the {ranks} ranks that share it" if more + 1 == ranks else ""
    return f"its bias is added {more + 1} times{each}" if more > 0 else ""
