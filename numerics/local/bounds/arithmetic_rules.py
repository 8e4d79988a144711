"""How sums, products and functions carry values and errors. See `bounded`."""

import math
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from numerics.local.bounds.bounded import (
    Bounded,
    aten,
    bounded,
    bounded_in,
    error_of,
    errors_of,
    exact,
    format_of,
    now_carried,
    rule,
    summing_unit,
    unit,
)
from numerics.thresholds.local import FUNCTION_ROUNDINGS, MOST_EXPONENT

_MONOTONE: Final = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf"),
    *("neg", "relu", "reciprocal"),
)
_STEADY: Final = ("sin", "cos", "abs", "clamp", "clamp_min", "clamp_max")
_STEPS: Final = 4
"""Roundings of a logarithm of a sum of exponentials that do not depend on the values."""
_SCATTERS: Final = ("index_put", "_unsafe_index_put", "index_add", "scatter_add", "embedding_dense_backward")


@rule("var")
def _variance(_: Any, x: Bounded, dims: Any = None, correction: float = 1, **named: Any) -> Any:
    """Subtract the mean, square, add up."""
    apart = x - x.mean(dims, keepdim=True)
    keep = bool(named.get("keepdim"))
    total = (apart * apart).sum(dims, keepdim=keep)
    count = x.numel() // max(total.numel(), 1)
    return total / (count - correction)


@rule("add", "sub")
def _add(func: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    value = func(exact(a), exact(b), alpha=alpha)
    return bounded(value, error_of(a) + abs(alpha) * error_of(b), format_of(func, (a, b), {}))


@rule("rsub")
def _reversed(_: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return torch.sub(b, a, alpha=alpha) if isinstance(b, torch.Tensor) else torch.add(-alpha * a, b)


@rule("mul")
def _multiply(func: Any, a: Any, b: Any) -> Any:
    x, y = (v.double() if isinstance(v, torch.Tensor) else v for v in (exact(a), exact(b)))
    ex, ey = error_of(a), error_of(b)
    error = abs(x) * ey + abs(y) * ex + ex * ey
    return bounded(func(x, y), error, format_of(func, (a, b), {}))


@rule("div")
def _divide(func: Any, a: Any, b: Any, **named: Any) -> Any:
    x, y, ex, ey = exact(a), exact(b), error_of(a), error_of(b)
    value = func(x, y, **named)
    room = abs(y) - ey
    if not isinstance(room, torch.Tensor):
        room = torch.tensor(float(room), dtype=torch.float64)
    error = torch.where(room > 0, (ex + value.abs() * ey) / room, torch.inf)
    dtype = format_of(func, (a, b), named)
    if named.get("rounding_mode") is not None:
        return Bounded(value, torch.where(error > 0, torch.inf, 0.0).expand(value.shape), dtype)
    return bounded(value, error, dtype)


@rule("sgn", "sign")
def _sign(func: Any, x: Bounded) -> Any:
    """Take the sign: nothing is known where the error reaches zero."""
    value = func(x.value)
    return Bounded(value, torch.where((x.value.abs() <= x.error) & (x.error > 0), 2.0, 0.0), x.dtype)


@rule("maximum", "minimum")
def _either(func: Any, a: Any, b: Any) -> Any:
    value = func(exact(a), exact(b))
    error = torch.maximum(
        *(torch.as_tensor(error_of(t), dtype=torch.float64).expand(value.shape) for t in (a, b))
    )
    return Bounded(value, error, format_of(func, (a, b), {}))


@rule(*_MONOTONE)
def _monotone(func: Any, x: Bounded) -> Any:
    """Look at both ends of the argument's interval: the function only rises or only falls."""
    name = func.overloadpacket.__name__
    least = x.value - x.error
    least = least.clamp_min(0) if name == "sqrt" else least  # of sums of squares: never below zero
    value, low, high = func(x.value), func(least), func(x.value + x.error)
    error = torch.maximum((high - value).abs(), (value - low).abs())
    if name == "reciprocal":
        error = torch.where(x.value.abs() > x.error, error, torch.inf)
    dtype = format_of(func, (x,), {})
    if name == "erf":  # vectorised by a fit whose error is absolute
        error = error + FUNCTION_ROUNDINGS * summing_unit(dtype)
    exactly = name in {"neg", "relu"}
    return bounded(value, error, dtype, 0) if exactly else _function(value, error, dtype)


def _function(value: torch.Tensor, error: torch.Tensor | float, dtype: torch.dtype) -> Bounded:
    """Return the result of a function, which 16-bit formats have computed in FP32 and rounded once."""
    size = value.abs().where(value.isfinite(), 0.0)
    return bounded(value, error + FUNCTION_ROUNDINGS * summing_unit(dtype) * size, dtype)


@rule(*_STEADY)
def _steady(func: Any, x: Bounded, *args: Any, **named: Any) -> Any:
    """Pass the error on: the slope is at most one."""
    value = func(x.value, *args, **named)
    rounds = func.overloadpacket.__name__ in {"sin", "cos"}
    return _function(value, x.error, x.dtype) if rounds else bounded(value, x.error, x.dtype, 0)


@rule("pow")
def _power(func: Any, x: Any, power: Any) -> Any:
    if not isinstance(x, Bounded) or isinstance(power, torch.Tensor):
        base, high = exact(x), exact(power)
        value = func(base, high)
        slope = value.abs() * torch.log(torch.as_tensor(base, dtype=torch.float64)).abs()
        return _function(value, slope * error_of(power) * 2, format_of(func, (x, power), {}))
    value, size = func(x.value, power), x.value.abs()
    if power >= 1:
        error = abs(power) * (size + x.error) ** (power - 1) * x.error
    else:
        room = size - x.error
        error = torch.where(room > 0, abs(power) * room.clamp_min(0) ** (power - 1) * x.error, torch.inf)
    return _function(value, error, x.dtype)


@rule("sum", "mean", "cumsum")
def _sum(func: Any, x: Bounded, *args: Any, **named: Any) -> Any:
    """Return the sum in any order: n-1 additions that each round no more than the sum of magnitudes."""
    named.pop("dtype", None)
    value = func(x.value, *args, **named)
    dtype = format_of(func, (x, *args), named)
    terms = (
        x.value.shape[args[0]] if func.overloadpacket is aten.cumsum else x.numel() // max(value.numel(), 1)
    )
    added = func(x.value.abs() + x.error, *args, **named)
    error = func(x.error, *args, **named) + terms * summing_unit(dtype) * added
    return bounded(value, error, dtype, 2)


@rule("_softmax")
def _softmax(func: Any, x: Bounded, dim: int, half_to_float: bool = False) -> Any:
    """Move numerator and denominator by the factors that the arguments' errors allow; a probability is at most one."""
    value = func(x.value, dim, False)
    largest = x.error.where(x.value.isfinite(), 0.0).amax(dim, keepdim=True)
    dtype = torch.float32 if half_to_float else x.dtype
    rounds = (x.value.shape[dim] + 2 * FUNCTION_ROUNDINGS) * summing_unit(dtype)
    grown = torch.expm1((x.error + largest).clamp_max(MOST_EXPONENT) + rounds)
    return bounded(value, (value * grown).clamp_max(1.0), dtype)


@rule("_log_softmax")
def _log_softmax(func: Any, x: Bounded, dim: int, half_to_float: bool = False) -> Any:
    """Move the argument, and the logarithm of the sum by the largest error of an argument."""
    value = func(x.value, dim, False)
    dtype = torch.float32 if half_to_float else x.dtype
    largest = x.error.where(x.value.isfinite(), 0.0).amax(dim, keepdim=True)
    rounds = (x.value.shape[dim] + 2 * FUNCTION_ROUNDINGS) * summing_unit(dtype)
    return _function(value, x.error + largest + rounds, dtype)


@rule("logsumexp")
def _log_of_sum(func: Any, x: Bounded, *args: Any, **named: Any) -> Any:
    """Move by the largest error of an argument, and round exponentials, sum and logarithm (at most log n) each.

    The arguments of the exponentials lie log n below the largest in the mean, at the most. The sum of zeros is exact.
    """
    value = func(x.value, *args, **named)
    largest = aten.amax(x.error.where(x.value.isfinite(), 0.0), *args, **named)
    terms = x.numel() // max(value.numel(), 1)
    rounds = (terms + 2 * FUNCTION_ROUNDINGS) * summing_unit(x.dtype)
    rounds += (2 * math.log(max(terms, 1)) + _STEPS) * unit(x.dtype)
    return _function(value, (largest + rounds).where(value.isfinite(), 0.0), x.dtype)


@rule("logaddexp")
def _log_of_two(func: Any, a: Bounded, b: Bounded) -> Any:
    value = func(a.value, b.value)
    largest = torch.maximum(*(t.error.where(t.value.isfinite(), 0.0) for t in (a, b)))
    rounds = 2 * FUNCTION_ROUNDINGS * summing_unit(a.dtype)
    return _function(value, (largest + rounds).where(value.isfinite(), 0.0), a.dtype)


@rule("amax", "amin")
def _extreme(func: Any, x: Bounded, *args: Any, **named: Any) -> Any:
    return Bounded(func(x.value, *args, **named), aten.amax(x.error, *args, **named), x.dtype)


@rule("max", "min", "topk", "sort", "median")
def _chosen(func: Any, x: Bounded, *args: Any, **named: Any) -> Any:
    """Choose among elements: each choice misses by no more than the worst of them."""
    made = func(x.value, *args, **named)
    values = made if isinstance(made, torch.Tensor) else made[0]
    found = Bounded(values, x.error.max().expand(values.shape), x.dtype)
    return found if isinstance(made, torch.Tensor) else (found, *made[1:])


def _product(func: Any, a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix product and its error before the last rounding; its parts may be added in the output's format."""
    x, y = exact(a), exact(b)
    value = func(x, y)
    dtype = (a if isinstance(a, Bounded) else b).dtype
    size = func(x.abs(), y.abs())
    parts = now_carried().parts
    error = (x.shape[-1] * summing_unit(dtype) + (parts * unit(dtype) if parts > 1 else 0.0)) * size
    if isinstance(a, Bounded):
        error = error + func(a.error, y.abs())
    if isinstance(b, Bounded):
        error = error + func(x.abs() + error_of(a), b.error)
    return value, error


@rule("mm", "bmm", "mv", "dot")
def _multiplied(func: Any, a: Any, b: Any, **_: Any) -> Any:
    value, error = _product(func, a, b)
    return bounded(value, error, (a if isinstance(a, Bounded) else b).dtype)


@rule("addmm", "baddbmm", "addmv")
def _multiplied_and_added(func: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    inner = {aten.addmm: aten.mm, aten.baddbmm: aten.bmm, aten.addmv: aten.mv}[func.overloadpacket]
    value, error = _product(inner, a, b)
    dtype = (a if isinstance(a, Bounded) else b).dtype
    made = beta * exact(c) + alpha * value
    return bounded(made, abs(beta) * error_of(c) + abs(alpha) * error + unit(dtype) * value.abs(), dtype)


@rule(*_SCATTERS)
def _scatter(func: Any, *args: Any, **named: Any) -> Any:
    """Add rows into places: as many additions as there are rows, at the most."""
    values, errors = tree_map(exact, args), tree_map(errors_of, args)
    value = func(*values, **named)
    sizes = tree_map(
        lambda t: t.abs() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, values
    )
    terms = max((t.numel() for t in _integers(args)), default=1)
    dtype = next(b.dtype for b in bounded_in(args))
    error = func(*errors, **named) + terms * unit(dtype) * func(*sizes, **named)
    return bounded(value, error, dtype)


def _integers(args: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(
        lambda t: found.append(t) if isinstance(t, torch.Tensor) and not t.is_floating_point() else None, args
    )
    return found
