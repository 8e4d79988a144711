"""Functions on bounded tensors that have several formulas: the one with the most roundings is used."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch._decomp import decompositions
from torch.nn import functional

from numerics.local.bounds.bounded import FUNCTIONS


def silu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Return x times its sigmoid, which a formula written out rounds to the format of `x`."""
    del inplace
    return x * torch.sigmoid(x)


def recurrent(whole: Callable[..., Any], packed: Callable[..., Any], batch_sizes: int) -> Callable[..., Any]:
    """Return a recurrent layer written out step by step: torch's own works in place, on tensors that it reshapes.

    `packed` is used for sequences of several lengths: their argument number `batch_sizes` is a tensor.
    """

    def layer(*args: Any, **named: Any) -> Any:
        several = len(args) > batch_sizes and isinstance(args[batch_sizes], torch.Tensor)
        return (packed if several else whole)(*args, **named)

    return layer


_RECURRENT: Final[Mapping[str, tuple[str, str, int]]] = {
    "gru": ("gru_impl", "gru_impl_data", 2),
    "lstm": ("lstm_impl", "lstm_data_impl", 1),
    "rnn_tanh": ("rnn_tanh_input", "rnn_tanh_data", 2),
    "rnn_relu": ("rnn_relu_input", "rnn_relu_data", 2),
}
"""By function of torch: its decompositions for equal and for several lengths, and the argument that separates them."""

FUNCTIONS[functional.silu] = silu
for _name, (_whole, _packed, _at) in _RECURRENT.items():
    if hasattr(decompositions, _whole) and hasattr(decompositions, _packed):
        _layer = recurrent(getattr(decompositions, _whole), getattr(decompositions, _packed), _at)
        FUNCTIONS[getattr(torch, _name)] = _layer
