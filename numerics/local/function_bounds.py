"""Functions on bounded tensors that have several formulas: the one with the most roundings stands for all."""

import torch
from torch.nn import functional

from numerics.local.bounded import FUNCTIONS


def silu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Return x times its sigmoid, which a formula written out rounds to the format of `x`."""
    del inplace
    return x * torch.sigmoid(x)


FUNCTIONS[functional.silu] = silu
