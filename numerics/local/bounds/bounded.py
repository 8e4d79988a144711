"""Tensors that know how far rounding may have moved them: the exact value in FP64, and a bound of the error.

A module that runs on such tensors gives, for every element, the value without rounding and the most that a sound
computation in the run's formats may miss it by. The rules are those of forward error analysis (N. J. Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., sections 2.2, 3.1 and 3.5): one rounding adds u|x|, a sum of n terms in
any order adds (n-1)u times the sum of magnitudes, and a function passes its argument's error on by its slope.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final, Self

import torch
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_leaves, tree_map

aten: Final = torch.ops.aten

Rule = Callable[..., Any]
RULES: Final[dict[Any, Rule]] = {}
"""By operator (all its overloads): how it carries value and error."""

FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {}
"""By function of torch: what computes it on bounded tensors, rounding wherever one of its kernels may."""

_FORMATS: Final[dict[Any, torch.dtype]] = {}
"""Formats of results, by operator and kinds of its arguments."""


@dataclass(frozen=True)
class Carried:
    """What holds for a while: the run's way to compute, and the operators seen that no rule bounds.

    `parts` counts the parts that a run cuts a product into, each rounded to the output's format and added in it (tensor
    parallelism). The result of an operator in `without_rule` may miss by anything. `draws` says that random numbers are
    drawn as the run drew them.
    """

    parts: int = 1
    draws: bool = False
    without_rule: set[str] = field(default_factory=set)


_NOW: Final[ContextVar[Carried | None]] = ContextVar("bounded", default=None)


@contextmanager
def carrying(parts: int = 1, *, draws: bool = False) -> Iterator[Carried]:
    """Give the run's way to compute to all rules for a while; it collects the operators without one."""
    carried = Carried(parts, draws)
    token = _NOW.set(carried)
    try:
        yield carried
    finally:
        _NOW.reset(token)


def now_carried() -> Carried:
    """Return what holds now; outside of `carrying` a product is in one piece."""
    return _NOW.get() or Carried()


class Bounded(torch.Tensor):
    """A tensor of `dtype` as a run would hold it; `value` and `error` are float64 tensors of its shape.

    A sound computation's element lies within `error` of `value`. An infinite error says that no rule is known.
    """

    value: torch.Tensor
    error: torch.Tensor

    @staticmethod
    def __new__(cls: type[Self], value: torch.Tensor, error: torch.Tensor, dtype: torch.dtype) -> Self:
        """Return a tensor without a gradient."""
        make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001 - torch documents no other way
        made: Self = make(cls, value.shape, strides=value.stride(), dtype=dtype, device=value.device)
        made.value, made.error = value.double(), _laid_out_as(value, error.double())
        return made

    def __repr__(self) -> str:  # type: ignore[override] # torch passes a keyword that only it uses
        return f"Bounded({self.value}, error={self.error}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Use `FUNCTIONS` for functions with kernels that round differently from their parts."""
        stand_in = FUNCTIONS.get(func)
        if stand_in is not None:
            return stand_in(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch documents it
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch types it as a method of one tensor
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry values and errors through one operator."""
        named = kwargs or {}
        if func in PLAIN or func.overloadpacket in PLAIN:
            return func(*tree_map(exact, args), **tree_map(exact, named))
        rule = RULES.get(func.overloadpacket)
        if rule is not None:
            return rule(func, *args, **named)
        if func._schema.is_mutable:  # noqa: SLF001 - there is no public way to ask
            return _in_place(func, args, named)
        if func in decomposition_table:
            return decomposition_table[func](*args, **named)
        made = func.decompose(*args, **named)
        return _unknown(func, args, named) if made is NotImplemented else made


def _laid_out_as(value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return the error in its value's memory layout, so that views of both mean the same elements."""
    if error.stride() == value.stride() or error.shape != value.shape or 0 in value.stride():
        return error
    return torch.empty_strided(value.shape, value.stride(), dtype=error.dtype).copy_(error)


PLAIN: Final[set[Any]] = {
    aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isnan, aten.isinf, aten.argmax, aten.argmin,
    aten.logical_not, aten.logical_and, aten.logical_or, aten.nonzero, aten.any, aten.all,
    aten._local_scalar_dense,  # noqa: SLF001 - the operator behind `item` has no other name
    aten.is_same_size, aten.isfinite, aten.signbit,
}  # fmt: skip
"""Operators that answer with integers or truths: they are asked of the exact values."""


def exact(item: Any) -> Any:
    """Return the float64 value of a tensor; anything else as it is."""
    if isinstance(item, Bounded):
        return item.value
    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def error_of(item: Any) -> torch.Tensor | float:
    """Return the error of a tensor; a number that FP32 does not hold was rounded to it, anything else is exact."""
    if isinstance(item, Bounded):
        return item.error
    rounded = (
        isinstance(item, float) and isfinite(item) and float(torch.tensor(item, dtype=torch.float32)) != item
    )
    return abs(item) * unit(torch.float32) if rounded else 0.0


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a format."""
    return torch.finfo(dtype).eps / 2


def summing_unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff in which sums of a format are kept: 16-bit formats are summed in FP32."""
    return unit(torch.float32 if torch.finfo(dtype).bits < torch.finfo(torch.float32).bits else dtype)


def bounded(
    value: torch.Tensor, error: torch.Tensor | float, dtype: torch.dtype, roundings: float = 1.0
) -> Bounded:
    """Return a result that was rounded `roundings` times to `dtype`; what is not a number may miss by anything."""
    rounded = unit(dtype) * roundings * value.abs() + (torch.finfo(dtype).tiny if roundings else 0.0)
    rounded = rounded.where(value.isfinite(), 0.0)  # masks are infinite, and exactly so
    total = torch.nan_to_num(error + rounded, nan=torch.inf, posinf=torch.inf)
    return Bounded(value, total.expand(value.shape), dtype)


def known(value: torch.Tensor, error: torch.Tensor | None = None) -> Bounded:
    """Return a recorded tensor: it is what the run held, within `error` where the run put it together unseen."""
    none = torch.zeros_like(value, dtype=torch.float64)
    return Bounded(value.double(), none if error is None else error, value.dtype)


def format_of(func: Any, args: Any, named: Any) -> torch.dtype:
    """Return the format of an operator's first floating-point result."""
    key = (func, *map(_kind_of, tree_leaves(args)), *named, *map(_kind_of, tree_leaves(named)))
    if key not in _FORMATS:
        _FORMATS[key] = _format_of(func, args, named)
    return _FORMATS[key]


def _kind_of(item: Any) -> Any:
    """Return what of an argument can decide the format of the result."""
    if isinstance(item, torch.Tensor):
        return item.dtype, item.dim() > 0
    return item if isinstance(item, torch.dtype | bool) else type(item)


def _format_of(func: Any, args: Any, named: Any) -> torch.dtype:
    """Return the format from torch's own shape inference, else that of the first bounded argument.

    Not every operator has a meta kernel, and some have no floating-point result.
    """

    def meta(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")

    given = [item for item in _tensors((args, named)) if isinstance(item, Bounded)]
    try:
        made = _tensors(func(*tree_map(meta, args), **tree_map(meta, named)))
        return next(item.dtype for item in made if item.is_floating_point())
    except (RuntimeError, NotImplementedError, StopIteration):
        return given[0].dtype


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda item: found.append(item) if isinstance(item, torch.Tensor) else None, tree)
    return found


def _in_place(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Carry an operator that writes into its first argument, by the one that does not."""
    packet = getattr(aten, func.overloadpacket.__name__.removesuffix("_"), None)
    name = func._overloadname  # noqa: SLF001 - as above
    if packet is None or name not in packet.overloads() or not isinstance(args[0], Bounded):
        return _unknown(func, args, named)
    made = getattr(packet, name)(*args, **named)
    args[0].value, args[0].error = made.value, made.error
    return args[0]


def _unknown(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the operator's exact results with infinite errors, and remember its name."""
    now_carried().without_rule.add(func.overloadpacket.__name__)
    dtype = format_of(func, args, named)

    def wrapped(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or not item.is_floating_point():
            return item
        return Bounded(item, torch.full_like(item, torch.inf), dtype)

    return tree_map(wrapped, func(*tree_map(exact, args), **tree_map(exact, named)))


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function the rule of operators."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            for packet in (getattr(aten, name, None), getattr(torch.ops.prims, name, None)):
                if packet is not None:
                    RULES[packet] = function
        return function

    return keep


def sum_in_any_order(parts: Sequence[torch.Tensor]) -> Bounded:
    """Return the sum of equally shaped tensors of one format, which may be added and rounded in any order."""
    dtype = parts[0].dtype
    values, errors = (torch.stack([f(part) for part in parts]) for f in (exact, errors_of))
    size = (values.abs() + errors).sum(0)
    return Bounded(values.sum(0), errors.sum(0) + (len(parts) - 1) * unit(dtype) * size, dtype)


def errors_of(item: Any) -> Any:
    """Return the error of a tensor, zeros where it is exact, anything else as it is."""
    if isinstance(item, Bounded):
        return item.error
    floating = isinstance(item, torch.Tensor) and item.is_floating_point()
    return torch.zeros_like(item, dtype=torch.float64) if floating else item


def bounded_in(args: Any) -> list[Bounded]:
    """Return the bounded tensors among an operator's arguments."""
    found: list[Bounded] = []
    tree_map(lambda item: found.append(item) if isinstance(item, Bounded) else None, args)
    return found
