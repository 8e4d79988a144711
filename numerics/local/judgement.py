"""Judges a recorded tensor by the same tensor computed again from recorded inputs."""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import torch

from numerics.formats import most_rewritten
from numerics.local.bounds.bounded import Bounded, unit
from numerics.local.records.recorded import Reading, same_bits
from numerics.thresholds.local import (
    LONE_ELEMENT_OF,
    LONE_ELEMENT_ULP,
)

_BITS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by bytes of an element."""

_REWRITTEN: Final = (
    "the same formula written in another form rounds by as much in a 16-bit format: capture in FP32 to see which "
    "it is"
)


class Standing(IntEnum):
    """From proved to wrong; the greater of two says more."""

    EQUAL = 0  # in every bit
    WITHIN = 1  # every element within the bound of its rounding
    UNCHECKED = 2  # not recorded, of another shape, or no bound is known
    BEYOND = 3  # an element misses by more than rounding can


@dataclass(frozen=True)
class Judged:
    """A recorded tensor beside the one computed again.

    `use` is the largest share of its bound that an element takes (None without a bound); `differ` of `elements`
    are not equal; `ratio` is <recorded, computed> / <computed, computed>. `factors` are the ends of the factors by
    which the computed tensor is the recorded one in every element, within its bound; None without such a factor.
    `why` says why nothing was checked, `how` in which way the recorded parts were put together, or what would make the
    recorded value right. `format` names a narrower format that it was computed in. `lone` says in words that a single
    element or rank differs, `relation` that right values are in the wrong place or, if `apart`, that ranks drew other
    random numbers for their copies. `beside` names a number in addition to the model's output on which the gradient
    would depend if it entered the loss. `pair` holds the recorded and the computed tensor until that is known.
    """

    standing: Standing
    use: float | None = None
    differ: int = 0
    elements: int = 0
    ratio: float | None = None
    why: str = ""
    how: str = ""
    factors: tuple[float, float] | None = None
    format: str = ""
    lone: str = ""
    relation: str = ""
    apart: bool = False
    beside: str = ""
    pair: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, compare=False, repr=False)


def judge(computed: torch.Tensor, readings: list[Reading]) -> tuple[Judged, torch.Tensor | None]:
    """Return the judgement of the recorded tensor by the reading that fits best, and that reading; None without one."""
    best: tuple[Judged, torch.Tensor | None] = (Judged(Standing.UNCHECKED, why="it was not recorded"), None)
    for number, reading in enumerate(readings):
        found = replace(_stand(computed, reading.tensor), how=reading.how)
        if not number or found.standing < best[0].standing:
            best = found, reading.tensor
    return best


def _stand(computed: torch.Tensor, recorded: torch.Tensor) -> Judged:
    """Return the judgement of one reading: by its bits or, if the computed tensor knows its error, by the bound."""
    if tuple(computed.shape) != tuple(recorded.shape):
        shapes = f"recorded as {tuple(recorded.shape)}, computed as {tuple(computed.shape)}"
        return Judged(Standing.UNCHECKED, why=shapes)
    if isinstance(computed, Bounded):
        return _in_narrower(within(computed.value, computed.error, recorded), computed.dtype, recorded.dtype)
    if same_bits(computed.detach(), recorded):
        return Judged(Standing.EQUAL, elements=recorded.numel())
    value = computed.detach()
    differ = int((value != recorded).sum())
    alone = lone_element(recorded, value) if differ == 1 else ""
    return Judged(
        Standing.BEYOND,
        None,
        differ,
        recorded.numel(),
        ratio(recorded, value),
        lone=alone,
        pair=(recorded, value),
    )


def _in_narrower(judged: Judged, computed: torch.dtype, recorded: torch.dtype) -> Judged:
    """Return a judgement that names the recorded format, where computing in it explains what one last cast does not."""
    if judged.why != _REWRITTEN or torch.finfo(recorded).bits >= torch.finfo(computed).bits:
        return judged
    name, other = (str(dtype).removeprefix("torch.") for dtype in (recorded, computed))
    words = f"computed in {name}, where the model gives {other}"
    return replace(judged, standing=Standing.BEYOND, why="", relation=words, format=name)


def moved(right: torch.Tensor, recorded: torch.Tensor) -> Judged:
    """Return the judgement of a recorded tensor that must be a copy of another: equal in every bit, or wrong."""
    if right.shape == recorded.shape and same_bits(right, recorded):
        return Judged(Standing.EQUAL, elements=recorded.numel())
    count = recorded.numel()
    differ = int((right != recorded).sum()) if right.shape == recorded.shape else count
    return Judged(Standing.BEYOND, None, differ, count)


def lone_element(recorded: torch.Tensor, value: torch.Tensor) -> str:
    """Return in words that one element of many differs alone, by more than a rounding that turned over; else "".

    A change of kernel rounds otherwise in many places.
    """
    a, b = recorded.reshape(-1), value.reshape(-1)
    if a.dtype != b.dtype or a.numel() < LONE_ELEMENT_OF or int((a != b).sum()) != 1:
        return ""
    at = int((a != b).nonzero()[0])
    if a.is_floating_point():
        size = max(abs(float(b[at])), float(b.double().square().mean().sqrt()))
        last_place = torch.finfo(a.dtype).eps * size
        if abs(float(a[at]) - float(b[at])) <= LONE_ELEMENT_ULP * last_place:
            return ""
    bits = _BITS[a.element_size()]
    turned = int((a[at : at + 1].view(bits) ^ b[at : at + 1].view(bits))[0])
    turned &= (1 << 8 * a.element_size()) - 1
    where = f"element {at} of {a.numel()} alone differs"
    return f"{where}, by one flipped bit: bit {turned.bit_length() - 1}" if turned.bit_count() == 1 else where


def flipped_beyond(recorded: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor) -> str:
    """Return in words which bit, turned back, brings the one element beyond its bound within it; "" where none does.

    All others of many are within their bounds, which may be wide: kernels round otherwise in many places.
    """
    beyond = ~(distance(recorded, value) <= allowed).reshape(-1)
    if recorded.numel() < LONE_ELEMENT_OF or int(beyond.sum()) != 1 or not recorded.is_floating_point():
        return ""
    at = int(beyond.nonzero()[0])
    kind, width = _BITS[recorded.element_size()], 8 * recorded.element_size()
    turns = [1 << bit for bit in range(width - 1)] + [-1 << (width - 1)]
    back = recorded.reshape(-1)[at : at + 1].view(kind) ^ torch.tensor(turns, dtype=kind)
    misses = distance(back.view(recorded.dtype), value.reshape(-1)[at])
    if not bool((misses <= allowed.reshape(-1)[at]).any()):
        return ""
    bit = int(misses.nan_to_num(torch.inf).argmin())
    return f"element {at} of {recorded.numel()} alone is beyond its bound, by one flipped bit: bit {bit}"


def within(value: torch.Tensor, error: torch.Tensor, recorded: torch.Tensor) -> Judged:
    """Return the judgement of a recorded tensor by `value`, with a tolerance of `error` and one last rounding.

    The same formula in another form (terms in another order, a factor multiplied out) rounds other intermediate
    values, at the size of the tensor's usual elements: such misses, small in the mean, are rounding too, and in 16-bit
    formats, where they may hide a bug, nothing is said of them.
    """
    finite = value.abs().where(value.isfinite(), 0.0)
    allowed = error + torch.finfo(recorded.dtype).eps / 2 * finite + torch.finfo(recorded.dtype).tiny
    apart = distance(recorded, value)
    differ, factor = int((apart > 0).sum()), ratio(recorded, value)
    if not bool(allowed.isfinite().all()):
        return Judged(
            Standing.UNCHECKED, None, differ, recorded.numel(), factor, "no bound of its rounding is known"
        )
    missed, size = (
        float(one.double().square().mean().sqrt()) if one.numel() else 0.0 for one in (apart, finite)
    )
    usual = most_rewritten(missed, size, unit(recorded.dtype), recorded.numel())
    wide = torch.finfo(recorded.dtype).bits >= torch.finfo(torch.float32).bits
    if wide:
        allowed = allowed.clamp_min(usual)
    use = largest_share(apart, allowed)
    if use <= 1:
        return Judged(Standing.WITHIN if differ else Standing.EQUAL, use, differ, recorded.numel(), factor)
    if largest_share(apart, allowed.clamp_min(usual)) <= 1:
        return Judged(Standing.UNCHECKED, use, differ, recorded.numel(), factor, _REWRITTEN)
    found, lone = factors_between(recorded, value, allowed), flipped_beyond(recorded, value, allowed)
    return Judged(Standing.BEYOND, use, differ, recorded.numel(), factor, factors=found, lone=lone)


def factors_between(
    recorded: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor
) -> tuple[float, float] | None:
    """Return the ends of all f with |recorded - f·value| <= |f|·allowed in every element; None where there is none."""
    wide, sign = recorded.double().reshape(-1), 1.0
    right, error = value.reshape(-1), allowed.reshape(-1)
    if not bool(wide.isfinite().all() & right.isfinite().all()):
        return None
    if float((wide * right).sum()) < 0:
        wide, sign = -wide, -1.0
    wide, right = torch.where(right < 0, -wide, wide), right.abs()
    # f·(right + error) >= wide and f·(right - error) <= wide, for f > 0
    firm, vague = right > error, right < error
    if bool((firm & (wide < 0)).any() | ((right == error) & (wide < 0)).any()):
        return None
    low = torch.where(vague & (wide < 0), wide / (right - error), wide / (right + error)).max()
    high = torch.where(firm, wide / (right - error), torch.inf).min()
    ends = sorted((sign * float(low), sign * float(high)))
    return (ends[0], ends[1]) if 0 < low <= high < torch.inf else None


def distance(recorded: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the error of each element, float64; 0 where both are the same infinity or no number."""
    wide = recorded.double()
    return torch.where((wide == value) | (wide.isnan() & value.isnan()), 0.0, (wide - value).abs())


def largest_share(apart: torch.Tensor, allowed: torch.Tensor) -> float:
    """Return the largest share of its bound that an element takes; infinite for what is not a number."""
    return float(torch.nan_to_num(apart / allowed, nan=torch.inf).max()) if apart.numel() else 0.0


def ratio(recorded: torch.Tensor, value: torch.Tensor) -> float | None:
    """Return the factor that brings `value` closest to the recorded tensor; None where it is zero."""
    wide = value.double()
    size = float((wide * wide).sum())
    return float((recorded.double() * wide).sum()) / size if size > 0 else None
