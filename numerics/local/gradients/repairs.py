"""What is wrong with a sum over ranks: the addend, rank, factor or format that would repair it, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from numerics.local.bounds.bounded import unit
from numerics.local.judgement import Standing, ratio, within
from numerics.local.records.recorded import same_bits
from numerics.thresholds.comparison import LEAST_FITTED
from numerics.thresholds.local import SUM_ROUNDINGS

NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Repair:
    """What would make a sum right, in words; `format` names a narrower format that it was made in."""

    words: str
    format: str = ""


def fits(
    parts: Sequence[torch.Tensor],
    out: torch.Tensor,
    weights: Sequence[float],
    scale: float,
    roundoff: float | None = None,
) -> bool:
    """Return whether `out` is the weighted and scaled sum of the parts, added in any order, within its rounding."""
    total = sum_of(parts, weights) * scale
    size = sum_of([part.abs() for part in parts], [abs(w) for w in weights]) * abs(scale)
    unit_of = max(unit(parts[0].dtype), unit(out.dtype)) if roundoff is None else roundoff
    error = (len(parts) + SUM_ROUNDINGS) * unit_of * size
    return within(total, error, out).standing in {Standing.EQUAL, Standing.WITHIN}


def sum_of(parts: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the weighted sum in float64."""
    total = torch.zeros_like(parts[0], dtype=torch.float64)
    for part, weight in zip(parts, weights, strict=True):
        total += part.double() * weight
    return total


def repair(
    parts: Sequence[torch.Tensor], out: torch.Tensor, names: Sequence[str], scale: float
) -> Repair | None:
    """Return what is wrong with `out`, which should be `scale` times the sum of the parts; None where nothing fits.

    `names` says which rank each part is of. A relation that is not the only one of its kind is not returned.
    """
    own = [name for name, part in zip(names, parts, strict=True) if same_bits(part, out)]
    if len(own) == 1 and out.numel() >= LEAST_FITTED:
        return Repair(f"it holds the addend of {own[0]} alone: nothing was summed")
    flipped = flipped_bit(sum_of(parts, [1.0] * len(parts)) * scale, out, parts, scale)
    if flipped:
        return Repair(flipped)
    if out.numel() < LEAST_FITTED:
        return None
    return _format(parts, out, scale) or _weight(parts, out, names, scale) or _factor(parts, out, scale)


def flipped_bit(
    right: torch.Tensor, out: torch.Tensor, parts: Sequence[torch.Tensor], scale: float
) -> str | None:
    """Return the flipped bit and its element in words, if all other elements are right within rounding."""
    size = sum_of([part.abs() for part in parts], [1.0] * len(parts)) * abs(scale)
    allowed = (len(parts) + SUM_ROUNDINGS) * unit(out.dtype) * size + unit(out.dtype) * right.abs()
    wrong = ~((out.double() - right).abs() <= allowed)
    if int(wrong.sum()) != 1 or out.numel() < LEAST_FITTED:
        return None
    at = int(wrong.nonzero()[0])
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]
    turned = [
        n
        for n in range(8 * out.element_size())
        if abs(float(_with_bit(out[at], n, bits).double() - right[at])) <= float(allowed[at])
    ]
    if len(turned) != 1:
        return None
    return f"one flipped bit: bit {turned[0]} of element {at} (of {out.numel()}), all others are right"


def _with_bit(value: torch.Tensor, bit: int, bits: torch.dtype) -> torch.Tensor:
    """Return a number with one bit turned."""
    width = torch.iinfo(bits).bits
    mask = -(1 << (width - 1)) if bit == width - 1 else 1 << bit
    return (value.reshape(1).view(bits) ^ mask).view(value.dtype)[0]


def _format(parts: Sequence[torch.Tensor], out: torch.Tensor, scale: float) -> Repair | None:
    ones = [1.0] * len(parts)
    for dtype in NARROW:
        name = str(dtype).removeprefix("torch.")
        narrower = torch.finfo(dtype).bits < torch.finfo(out.dtype).bits
        held = narrower and same_bits(out.to(dtype).to(out.dtype), out)
        if held and fits(parts, out, ones, scale, unit(dtype)):
            return Repair(f"it was summed in {name}, its addends are {str(parts[0].dtype)[6:]}", name)
    return None


def _weight(
    parts: Sequence[torch.Tensor], out: torch.Tensor, names: Sequence[str], scale: float
) -> Repair | None:
    """Return the one addend that is missing or counts twice."""
    found = []
    for n, name in enumerate(names):
        for weight, words in ((0.0, f"the addend of {name} is missing"), (2.0, f"{name} is added twice")):
            weights = [1.0] * len(parts)
            weights[n] = weight
            if fits(parts, out, weights, scale):
                found.append(words)
    return Repair(found[0]) if len(found) == 1 else None


def _factor(parts: Sequence[torch.Tensor], out: torch.Tensor, scale: float) -> Repair | None:
    """Return the factor by which the whole sum is off."""
    ones = [1.0] * len(parts)
    found, count = ratio(out, sum_of(parts, ones) * scale), len(parts)
    named = {1 / count: f"1/{count}, one over the ranks", float(count): f"{count}, the number of ranks"}
    if found is not None:
        named.setdefault(found, f"{found:.6g}")
    words = next((words for f, words in named.items() if fits(parts, out, ones, scale * f)), None)
    return None if words is None else Repair(f"it is the right sum times {words}")
