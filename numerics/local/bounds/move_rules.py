"""How operators that move, fill, choose or convert elements carry values and errors. See `bounded`."""

from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from numerics.local.bounds.bounded import (
    Bounded,
    bounded,
    bounded_in,
    errors_of,
    exact,
    format_of,
    rule,
    unit,
)

_MOVES: Final = (
    *(
        "view",
        "reshape",
        "_unsafe_view",
        "_reshape_alias",
        "expand",
        "expand_as",
        "broadcast_in_dim",
    ),
    *(
        "transpose",
        "permute",
        "t",
        "movedim",
        "unsqueeze",
        "squeeze",
        "diagonal",
        "unfold",
        "flip",
        "roll",
        "repeat",
    ),
    *(
        "select",
        "slice",
        "narrow",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "cat",
        "stack",
        "tril",
        "triu",
    ),
    *("index_select", "gather", "index", "_unsafe_index", "slice_scatter", "select_scatter"),
    *("clone", "contiguous", "detach", "alias", "lift_fresh"),
)
_FILLS: Final = {
    "masked_fill": 2,
    "scatter": 3,
    "constant_pad_nd": 2,
    "where": None,
    "full_like": 1,
    "fill": 1,
}


@rule(*_MOVES)
def _move(func: Any, *args: Any, **named: Any) -> Any:
    """Move errors with their values."""
    dtype = next(b.dtype for b in bounded_in(args))
    values = func(*tree_map(exact, args), **tree_map(exact, named))
    errors = func(*tree_map(errors_of, args), **tree_map(errors_of, named))
    if isinstance(values, torch.Tensor):
        return Bounded(values, errors, dtype)
    return type(values)(Bounded(v, e, dtype) for v, e in zip(values, errors, strict=True))


@rule("as_strided")
def _strided(func: Any, x: Bounded, *args: Any, **named: Any) -> Any:
    """Read both in memory of their own from element 0 on, as a bounded tensor's views count it."""
    value, error = (
        torch.empty_strided(x.shape, x.stride(), dtype=torch.float64).copy_(t) for t in (x.value, x.error)
    )
    return Bounded(func(value, *args, **named), func(error, *args, **named), x.dtype)


@rule(*_FILLS)
def _fill(func: Any, *args: Any, **named: Any) -> Any:
    """Move errors, and fill with what is exact."""
    dtype = format_of(func, args, named)
    errors = [errors_of(a) for a in args]
    at = _FILLS[func.overloadpacket.__name__]
    if at is not None and at < len(errors) and not isinstance(errors[at], torch.Tensor):
        errors[at] = 0.0
    if at is None:  # where: numbers on either side are exact
        errors = [errors[0], *(0.0 if isinstance(e, int | float) else e for e in errors[1:])]
    namederrors_of = {k: 0.0 if k == "value" else errors_of(v) for k, v in named.items()}
    value = func(*map(exact, args), **tree_map(exact, named))
    return Bounded(value, func(*errors, **namederrors_of).double().expand(value.shape), dtype)


@rule(
    "zeros_like",
    "ones_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "empty_like",
    "new_empty_strided",
)
def _made(func: Any, *args: Any, **named: Any) -> Any:
    """Return new tensors, which are exact."""
    made = func(*tree_map(_stand_in, args), **named)
    return bounded(made.double(), 0.0, made.dtype, 0) if made.is_floating_point() else made


def _stand_in(item: Any) -> Any:
    return torch.zeros_like(item.value, dtype=item.dtype) if isinstance(item, Bounded) else item


@rule("_to_copy")
def _convert(_func: Any, x: Bounded, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Convert to another format: one rounding where it is narrower."""
    wanted = dtype or x.dtype
    if not wanted.is_floating_point:
        return x.value.to(wanted)
    return bounded(x.value.clone(), x.error, wanted, float(unit(wanted) > unit(x.dtype)))


@rule("convert_element_type")
def _converted(func: Any, x: Bounded, dtype: torch.dtype) -> Any:
    return _convert(func, x, dtype=dtype)


@rule("copy_")
def _copy_in(func: Any, to: Any, source: Any, *_: Any) -> Any:
    """Write into a tensor."""
    if not isinstance(to, Bounded):
        return func(to, exact(source).to(to.dtype))
    made = _convert(func, source if isinstance(source, Bounded) else _as_bounded(source), dtype=to.dtype)
    to.value, to.error = made.value.expand(to.shape).clone(), made.error.expand(to.shape).clone()
    return to


def _as_bounded(tensor: torch.Tensor) -> Bounded:
    return bounded(tensor.double(), 0.0, tensor.dtype if tensor.is_floating_point() else torch.float64, 0)


@rule("copy")
def _copy(func: Any, to: Any, source: Any, *_: Any) -> Any:
    made = _convert(func, source if isinstance(source, Bounded) else _as_bounded(source), dtype=to.dtype)
    return Bounded(made.value.expand(to.shape).clone(), made.error.expand(to.shape).clone(), made.dtype)


@rule("embedding")
def _embedding(func: Any, weight: Any, index: torch.Tensor, *args: Any, **_: Any) -> Any:
    return Bounded(func(weight.value, index, *args), func(weight.error, index, *args), weight.dtype)
