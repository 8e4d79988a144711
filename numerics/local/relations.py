"""How a recorded tensor relates to the one computed again, where rounding does not: right values in the wrong place."""

import numpy as np
import torch

from numerics.local.array_differences import few_places, moved, places_in_words
from numerics.thresholds.comparison import LEAST_FITTED, MAX_ELEMENTS


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
