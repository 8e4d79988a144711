"""Gradients that were summed over the wrong group: an axis is missing in it, or its ranks hold other parameters.

Each rank's own backward is in the record. So the sum over the ranks that share one coordinate is held against what a
rank of that coordinate holds after the reduction, as a copy or as its share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from numerics.local.bounds.bounded import unit
from numerics.local.gradients.parameter_gradients import Scale, Sum
from numerics.local.judgement import Standing, ratio, within
from numerics.local.recorded_step import RecordedStep
from numerics.schema import parse_boxes
from numerics.thresholds.comparison import LEAST_FITTED
from numerics.thresholds.local import SCALE_TOLERANCE, SUM_ROUNDINGS
from tracekit.axes import AXES

UNSUMMED: Final = "it was not summed over {}: each rank holds the sum over the ranks with its own coordinate"
"""What a wrong gradient is, by the axis."""

OTHERS: Final = "it was summed with the gradients of other parameters, which other data-parallel ranks hold"


@dataclass(frozen=True)
class _Held:
    """A part of a gradient behind its reduction, and what each rank's backwards added to it, both flat.

    `coordinate` is that of the rank on the axis, `own` has the coordinates and the addends of all ranks.
    """

    value: torch.Tensor
    coordinate: int
    own: Sequence[tuple[int, torch.Tensor]]


def unsummed_axis(state: RecordedStep, grads: Mapping[str, torch.Tensor]) -> str | None:
    """Return the one axis over which gradients were not summed; None without one.

    One factor must make every part of them the sum of the addends of the ranks with its own coordinate, within
    rounding.
    """
    run = state.recorded.run
    axes = [axis for axis in AXES if len(np.unique(run[axis])) > 1]
    found = [axis for axis in axes if _explains(state, grads, axis)]
    return found[0] if len(found) == 1 else None


def summed_with_others(
    state: RecordedStep,
    recorded: Mapping[str, torch.Tensor],
    sums: Mapping[str, Sum],
    scale: Scale,
    names: Sequence[str],
) -> bool:
    """Return whether each gradient was summed with those of other parameters, of other data-parallel ranks.

    These bear its name but for one number, as experts do, and all of them make up what was recorded, within rounding.
    """
    for name in names:
        family = next((own for own in _families(name, sums) if _is_sum(recorded[name], own, sums, scale)), [])
        owners = [frozenset(state.recorded.owners(one)) for one in family]
        if len(set(owners)) != len(owners) or not owners:
            return False
    return bool(names)


def _families(name: str, sums: Mapping[str, Sum]) -> Iterator[list[str]]:
    """Yield the names that are equal to this one but for one number in it, and this one."""
    parts = name.split(".")
    for n in (n for n, part in enumerate(parts) if part.isdecimal()):
        split = [(other, other.split(".")) for other in sums]
        alike = [
            other
            for other, own in split
            if len(own) == len(parts)
            and own[n].isdecimal()
            and own[:n] + own[n + 1 :] == parts[:n] + parts[n + 1 :]
        ]
        if len(alike) > 1:
            yield alike


def _is_sum(grad: torch.Tensor, family: Sequence[str], sums: Mapping[str, Sum], scale: Scale) -> bool:
    """Return whether a gradient is the scaled sum of those of a family of parameters, within rounding."""
    held = [sums[one] for one in family if sums[one].total.shape == grad.shape]
    if len(held) < len(family) or grad.numel() < LEAST_FITTED:
        return False
    total = torch.stack([one.total for one in held]).sum(0)
    adding = SUM_ROUNDINGS + sum(len(one.value) for one in held)
    error = torch.stack([error for one in held for error in one.error.values()]).sum(0)
    size = torch.stack([torch.as_tensor(one.size) for one in held]).sum(0)
    error = abs(scale.factor) * (error + adding * unit(grad.dtype) * size)
    return within(scale.factor * total, error, grad).standing <= Standing.WITHIN


def _explains(state: RecordedStep, grads: Mapping[str, torch.Tensor], axis: str) -> bool:
    """Return whether no gradient was summed over an axis, and each was over all others."""
    factor: float | None = None
    several = False
    for held in (one for name, grad in grads.items() for one in _held(state, name, tuple(grad.shape), axis)):
        if not held.own:
            return False
        own = [value for coordinate, value in held.own if coordinate == held.coordinate]
        total = torch.stack(own).sum(0)
        if factor is None and held.value.numel() >= LEAST_FITTED:
            factor = ratio(held.value.double(), total)
        size = torch.stack([value.abs() for value in own]).sum(0)
        error = (len(own) + SUM_ROUNDINGS) * unit(held.value.dtype) * size + SCALE_TOLERANCE**2 * size
        if not factor or within(factor * total, abs(factor) * error, held.value).standing > Standing.WITHIN:
            return False
        several = several or len(own) < len(held.own)
    return several


def _held(state: RecordedStep, name: str, shape: tuple[int, ...], axis: str) -> Iterator[_Held]:
    """Yield the parts of a gradient that ranks hold; without addends where these or the part's place are unknown."""
    recorded, run = state.recorded, state.recorded.run
    added: dict[int, torch.Tensor] = {}
    for row in recorded.rows(state.step, "backward", "param_grad_local", f"{name}.grad"):
        value = recorded.local(row)
        if value is not None:
            rank = int(run["rank"][row])
            added[rank] = added.get(rank, 0.0) + value.double()
    whole = len({value.numel() for value in added.values()} | {int(np.prod(shape))}) == 1
    rows = recorded.rows(state.step, "reduce", "param_grad", f"{name}.grad")
    every = {int(run["rank"][row]) for row in rows}
    for row in rows:
        value, boxes = recorded.local(row), parse_boxes(run.name("boxes", row) or "")
        known = (
            value is not None
            and whole
            and every <= added.keys()
            and all(len(b.sizes) == len(shape) for b in boxes)
        )
        own = []
        for rank, part in added.items() if known else ():
            picked = [
                part.view(shape)[
                    tuple(slice(o, o + n) for o, n in zip(b.offsets, b.sizes, strict=True))
                ].reshape(-1)
                for b in boxes
            ]
            at = int(run[axis][run["rank"] == rank][0])
            own.append((at, torch.cat(picked) if picked else part))
        flat = torch.zeros(0) if value is None else value
        fits = all(one.numel() == flat.numel() for _, one in own)
        yield _Held(flat, int(run[axis][row]), own if fits else [])
