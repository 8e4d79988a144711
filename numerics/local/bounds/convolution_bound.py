"""How convolutions carry values and errors: they are sums of products, forth and back. See `bounded`."""

from math import prod
from typing import Any

import torch

from numerics.local.bounds.bounded import Bounded, bounded, bounded_in, error_of, exact, rule, summing_unit

_KERNEL = 2
"""Dimensions of a weight before those of its kernel: channels out and in."""


def _terms(weight: torch.Tensor) -> int:
    """Return the most products that one element of the output adds up, forth or back."""
    return max(weight.shape[:_KERNEL]) * prod(weight.shape[_KERNEL:])


def _size(item: Any) -> Any:
    """Return the magnitudes of a tensor with its errors; anything else as it is."""
    return exact(item).abs() + error_of(item) if isinstance(item, torch.Tensor) else item


def _errors(item: Any) -> torch.Tensor:
    """Return the errors of a tensor, zeros where it is exact."""
    value: torch.Tensor = exact(item)
    return torch.zeros_like(value) + error_of(item)


@rule("convolution")
def _convolution(func: Any, x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    """Add up products in any order; each factor's error counts with the other's magnitude."""
    value = func(exact(x), exact(weight), exact(bias), *how)
    dtype = bounded_in((x, weight, bias))[0].dtype
    error = func(_errors(x), _size(weight), None, *how) + func(_size(x), _errors(weight), None, *how)
    size = func(_size(x), _size(weight), None if bias is None else _size(bias), *how)
    if bias is not None:
        shape = [1, -1, *[1] * (value.dim() - _KERNEL)]
        error = error + _errors(bias).reshape(shape)
    return bounded(value, error + (_terms(weight) + 1) * summing_unit(dtype) * size, dtype)


@rule("convolution_backward")
def _backward(func: Any, grad: Any, x: Any, weight: Any, *how: Any) -> Any:
    """Return the gradients of input, weight and bias: each a sum of products of `grad` with the other factor."""
    dtype = bounded_in((grad, x, weight))[0].dtype
    values = func(exact(grad), exact(x), exact(weight), *how)
    sizes = func(_size(grad), _size(x), _size(weight), *how)
    moved = [
        func(_errors(grad), _size(x), _size(weight), *how),
        func(_size(grad), _errors(x), _errors(weight), *how),
    ]
    places = grad.numel() // max(grad.shape[1], 1)
    terms = (_terms(weight), places, places)
    made: list[Bounded | None] = []
    for number, value in enumerate(values):
        if value is None:
            made.append(None)
            continue
        error = moved[0][number]
        if number < _KERNEL:  # the bias's gradient depends on `grad` alone
            error = error + moved[1][number]
        made.append(bounded(value, error + terms[number] * summing_unit(dtype) * sizes[number], dtype))
    return tuple(made)
