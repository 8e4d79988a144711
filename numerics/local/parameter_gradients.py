"""Parameter gradients of a step against the sum over all its micro-batches and data-parallel ranks.

Trainers scale that sum as they like: DDP and FSDP average, others divide by micro-batches or clip. One factor must
serve all parameters of a step; it is solved for, and stated.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from numerics.local.bounded import Bounded, unit
from numerics.local.judgement import Judged, Standing, ratio, within
from numerics.thresholds import (
    ADDEND_MISFIT,
    FUNCTION_ROUNDINGS,
    MAX_ORDERED,
    MAX_RINGED,
    SCALE_TOLERANCE,
)


@dataclass
class Sum:
    """A parameter's gradient by data-parallel index: exact values, their errors, and as the run's formats add them."""

    value: dict[int, torch.Tensor] = field(default_factory=dict)  # float64
    error: dict[int, torch.Tensor] = field(default_factory=dict)
    added: dict[int, torch.Tensor] = field(
        default_factory=dict
    )  # micro-batch after micro-batch, in the run's format
    size: torch.Tensor | float = 0.0  # sum of magnitudes
    terms: int = 0

    def add(self, rank: int, exact: torch.Tensor | None, bounded: torch.Tensor | None) -> None:
        """Add a micro-batch's gradient of a data-parallel index: computed in the run's format, and with its bound."""
        if exact is not None:
            self.added[rank] = self.added[rank] + exact if rank in self.added else exact
        if bounded is None:
            return
        value = bounded.value if isinstance(bounded, Bounded) else bounded.double()
        error = bounded.error if isinstance(bounded, Bounded) else torch.zeros_like(value)
        self.value[rank] = self.value.get(rank, torch.zeros_like(value)) + value
        self.error[rank] = self.error.get(rank, torch.zeros_like(value)) + error
        self.size = self.size + value.abs()
        self.terms += 1

    @property
    def total(self) -> torch.Tensor:
        """The sum over all micro-batches and data-parallel ranks, float64."""
        return torch.stack(list(self.value.values())).sum(0)


@dataclass(frozen=True)
class Scale:
    """The factor between the recorded gradients and the sums, and its name in words."""

    factor: float
    words: str


def solve_scale(
    sums: Mapping[str, Sum], recorded: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> Scale:
    """Return the factor that most parameters agree on; `sizes` are numbers of the run that it may be made of."""
    ratios = sorted(r for name in recorded if (r := ratio(recorded[name], sums[name].total)) is not None)
    middle = ratios[len(ratios) // 2] if ratios else 1.0
    named = {"the sum over micro-batches and data-parallel ranks": 1.0}
    for name, size in sizes.items():
        named[f"the sum over micro-batches and data-parallel ranks, divided by {name} ({size})"] = 1 / size
    for words, factor in named.items():
        if abs(middle - factor) <= SCALE_TOLERANCE * factor:
            return Scale(factor, words)
    return Scale(
        middle, f"{middle:.6g} times the sum over micro-batches and data-parallel ranks (a mean, or clipped)"
    )


def judge_gradient(recorded: torch.Tensor, total: Sum, scale: Scale) -> Judged:
    """Return how a recorded gradient stands to the scaled sum: equal in some order, within the bound, or beyond it."""
    if total.added and _some_order(recorded, list(total.added.values()), scale.factor):
        return Judged(Standing.EQUAL, 0.0, 0, recorded.numel(), 1.0)
    adding = (total.terms + FUNCTION_ROUNDINGS) * unit(recorded.dtype) * total.size
    error = abs(scale.factor) * (torch.stack(list(total.error.values())).sum(0) + adding)
    judged = within(scale.factor * total.total, error, recorded)
    if judged.standing == Standing.BEYOND and not judged.scaled:
        judged = replace(judged, how=_addends(recorded, total, scale))
    return judged


def _some_order(recorded: torch.Tensor, addends: Sequence[torch.Tensor], factor: float) -> bool:
    """Return whether every element is the sum of the addends in some order, scaled before or after, bit for bit."""
    count = len(addends)
    if count > MAX_RINGED or any(a.dtype != recorded.dtype for a in addends):
        return False
    indices = range(count)
    rings = [[(start + way * i) % count for i in indices] for start in indices for way in (1, -1)]
    orders = list(itertools.permutations(indices)) if count <= MAX_ORDERED else rings
    found = torch.zeros(recorded.shape, dtype=torch.bool)
    for scaled_first in (False, True) if factor != 1 else (False,):
        parts = [a * factor for a in addends] if scaled_first else list(addends)
        for order in orders:
            total = parts[order[0]]
            for index in order[1:]:
                total = total + parts[index]
            if scaled_first or factor == 1:
                found |= total == recorded
            else:
                found |= (total * factor == recorded) | (total / (1 / factor) == recorded)
    return bool(found.all())


def _addends(recorded: torch.Tensor, total: Sum, scale: Scale) -> str:
    """Return which data-parallel ranks' gradients are missing or doubled; empty where no such relation holds."""
    ranks = sorted(total.value)
    if len(ranks) < 2 or recorded.numel() < len(ranks) * 2:
        return ""
    matrix = torch.stack([total.value[r].reshape(-1) * scale.factor for r in ranks], 1)
    wanted = recorded.double().reshape(-1)
    weights = torch.linalg.lstsq(matrix, wanted[:, None]).solution[:, 0]
    apart = float(
        (matrix @ weights - wanted).norm() / wanted.norm().clamp_min(torch.finfo(torch.float64).tiny)
    )
    if apart > ADDEND_MISFIT:
        return ""
    each = list(zip(ranks, weights.tolist(), strict=True))
    held = [f"{w:.4g} times the share of dp rank {r}" for r, w in each if abs(w) > ADDEND_MISFIT]
    none = ", ".join(str(r) for r, w in each if abs(w) <= ADDEND_MISFIT)
    lacks = f", and nothing of dp rank {none}" if none else ""
    return f"holds {', '.join(held) or 'no share'}{lacks}, where each share is due once"
