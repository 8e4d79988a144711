"""Orders in which a collective may add its ranks' tensors, and which of them give a recorded sum in every bit.

An order is one of: rank after rank; a ring, which starts each piece of the buffer at another rank (Gloo, NCCL's rings;
where the pieces end is not known, so it is found); pairs at growing or shrinking distance (recursive doubling and
halving, binomial trees); a binary tree. Each may keep its sums in the ranks' format or in a wider one, and may scale by
1/n before or after, by a product or a quotient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

import torch

from numerics.local.records.recorded import same_bits
from numerics.thresholds.local import LEAST_PIECE

Parts = Sequence[torch.Tensor]
Adder = Callable[[Parts], torch.Tensor]
"""Adds the tensors of a group's ranks, and scales the sum."""


@dataclass(frozen=True)
class SumOrder:
    """One way to add n tensors: the order, whether sums are kept in a wider format, and how they are scaled.

    `scaling` is "", "product before", "quotient before", "product after" or "quotient after".
    """

    name: str
    wide: bool = False
    scaling: str = ""

    @property
    def words(self) -> str:
        """The order in words."""
        wide = ", sums kept in a wider format" if self.wide else ""
        return self.name + wide + (f", scaled by a {self.scaling} the sum" if self.scaling else "")

    def adders(self, count: int, divisor: float) -> list[Adder]:
        """Return what adds `count` tensors and scales by 1/`divisor`: for a ring one for each rank it may start at."""
        if self.name not in _RINGS:
            return [partial(self._added, _ORDERS[self.name], divisor)]
        step = _RINGS[self.name]
        rounds = [[(first + step * hop) % count for hop in range(count)] for first in range(count)]
        return [partial(self._added, partial(_along, ranks), divisor) for ranks in rounds]

    def _added(self, add: Adder, divisor: float, parts: Parts) -> torch.Tensor:
        dtype = parts[0].dtype
        held = [_scaled(part, self.scaling, divisor) if "before" in self.scaling else part for part in parts]
        total = add([part.to(_wider(dtype)) for part in held] if self.wide else held)
        return (_scaled(total, self.scaling, divisor) if "after" in self.scaling else total).to(dtype)

    def gives(
        self, made: Callable[[Adder], torch.Tensor], out: torch.Tensor, count: int, divisor: float = 1.0
    ) -> bool:
        """Return whether this order gives the flat tensor `out` in every bit.

        `made` returns the whole result for one way to add `count` tensors; a ring may use another way for each piece.
        """
        sums = [made(adder).to(out.dtype) for adder in self.adders(count, divisor)]
        return same_bits(sums[0], out) if len(sums) == 1 else _in_pieces(sums, out)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in {torch.bfloat16, torch.float16} else torch.float64


def _scaled(value: torch.Tensor, scaling: str, divisor: float) -> torch.Tensor:
    return value * (1 / divisor) if scaling.startswith("product") else value / divisor


def _in_turn(parts: Parts) -> torch.Tensor:
    return reduce(torch.add, parts)


def _backwards(parts: Parts) -> torch.Tensor:
    return reduce(torch.add, parts[::-1])


def _folded(parts: Parts, *, neighbours: bool) -> list[torch.Tensor]:
    """Return a power of two of tensors: those beyond it are added to their neighbours, or to the first ones."""
    power = 1 << (len(parts).bit_length() - 1)
    rest = len(parts) - power
    if neighbours:
        return [parts[2 * n] + parts[2 * n + 1] for n in range(rest)] + list(parts[2 * rest :])
    return [parts[n] + parts[n + power] if n < rest else parts[n] for n in range(power)]


def _doubling(parts: Parts) -> torch.Tensor:
    """Add neighbours first, then pairs at twice the distance (recursive doubling)."""
    held = _folded(parts, neighbours=True)
    while len(held) > 1:
        held = [held[n] + held[n + 1] for n in range(0, len(held), 2)]
    return held[0]


def _halving(parts: Parts) -> torch.Tensor:
    """Add the two halves first, then pairs at half the distance (recursive halving)."""
    held = _folded(parts, neighbours=False)
    while len(held) > 1:
        half = len(held) // 2
        held = [held[n] + held[n + half] for n in range(half)]
    return held[0]


def _binary(parts: Parts, root: int = 0) -> torch.Tensor:
    """Add to each rank n the sums of ranks 2n+1 and 2n+2 (a binary tree)."""
    total = parts[root]
    for child in (2 * root + 1, 2 * root + 2):
        if child < len(parts):
            total = total + _binary(parts, child)
    return total


_ORDERS: Final[dict[str, Adder]] = {
    "rank after rank": _in_turn,
    "rank after rank, from the last": _backwards,
    "recursive doubling": _doubling,
    "recursive halving": _halving,
    "a binary tree": _binary,
}
_RINGS: Final = {"a ring, downwards": -1, "a ring, upwards": 1}
"""By name: the step from one rank of a ring to the next."""


def _along(ranks: Sequence[int], parts: Parts) -> torch.Tensor:
    """Add the parts in the order of `ranks`."""
    return reduce(torch.add, (parts[rank] for rank in ranks))


def _in_pieces(sums: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
    """Return whether `out` consists of few pieces that each equal one of `sums` in every bit."""
    fits = torch.stack([_equal(total, out) for total in sums])  # (starts, elements)
    count = out.numel()
    most = max(len(sums), count // LEAST_PIECE)
    # the next element at which each start fails, from every element on
    places = torch.arange(count).expand_as(fits)
    fails = torch.where(fits, count, places).flip(1).cummin(1).values.flip(1).max(0).values.tolist()
    at = pieces = 0
    while at < count:
        if fails[at] == at or pieces == most:
            return False
        at = fails[at]
        pieces += 1
    return True


def _equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return where two tensors are equal but for signs of zeros and kinds of NaN."""
    return (a == b) | (a.isnan() & b.isnan())


def all_orders(*, scaled: bool) -> list[SumOrder]:
    """Return all orders, the simplest first: in the ranks' own format, and without a scale unless `scaled`."""
    scalings = ("product before", "quotient after", "product after", "quotient before") if scaled else ("",)
    names = [*_ORDERS, *_RINGS]
    return [SumOrder(name, wide, how) for wide in (False, True) for how in scalings for name in names]
