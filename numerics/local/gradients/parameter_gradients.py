"""Parameter gradients of a step against the sum over all its micro-batches and data-parallel ranks.

Trainers scale that sum as they like: DDP and FSDP average, others divide by micro-batches or clip. One factor must
serve all parameters of a step; it is solved for, and stated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch

from numerics.local.bounds.bounded import Bounded, unit
from numerics.local.gradients.learned_orders import LearnedOrders
from numerics.local.gradients.sum_orders import Adder
from numerics.local.judgement import Judged, Standing, lone_element, ratio, within
from numerics.local.recorded_step import Place
from numerics.thresholds.comparison import LEAST_FITTED
from numerics.thresholds.local import ADDEND_MISFIT, FUNCTION_ROUNDINGS, SCALE_TOLERANCE, SUM_ROUNDINGS


@dataclass
class Sum:
    """A parameter's gradient by place: exact values, their errors, and as the run's formats hold them."""

    value: dict[Place, torch.Tensor] = field(default_factory=dict)  # float64
    error: dict[Place, torch.Tensor] = field(default_factory=dict)
    held: dict[Place, torch.Tensor] = field(default_factory=dict)  # in the run's format
    size: torch.Tensor | float = 0.0  # sum of magnitudes

    def add(self, place: Place, exact: torch.Tensor | None, bounded: torch.Tensor) -> None:
        """Add the gradient of a place: in the run's format, and with its bound."""
        if exact is not None:
            self.held[place] = exact
        value = bounded.value if isinstance(bounded, Bounded) else bounded.double()
        self.value[place] = value
        self.error[place] = bounded.error if isinstance(bounded, Bounded) else torch.zeros_like(value)
        self.size = self.size + value.abs()

    @property
    def total(self) -> torch.Tensor:
        """The sum over all micro-batches and data-parallel ranks, float64."""
        return torch.stack(list(self.value.values())).sum(0)

    def without(self, left_out: torch.Tensor) -> "Sum":
        """Return the sum with zeros where elements are left out."""
        value, error, held = (
            {place: one.masked_fill(left_out, 0) for place, one in of.items()}
            for of in (self.value, self.error, self.held)
        )
        size = self.size.masked_fill(left_out, 0) if isinstance(self.size, torch.Tensor) else self.size
        return Sum(value, error, held, size)

    @property
    def by_rank(self) -> list[list[torch.Tensor]] | None:
        """The gradients in the run's format, by data-parallel rank and micro-batch; None where some are missing."""
        ranks: dict[int, list[torch.Tensor]] = {}
        for place in sorted(self.held):
            ranks.setdefault(place[0], []).append(self.held[place].reshape(-1))
        whole = len(self.held) == len(self.value) and len({len(own) for own in ranks.values()}) == 1
        return list(ranks.values()) if whole else None


@dataclass(frozen=True)
class Scale:
    """The factor between the recorded gradients and the sums, and its name in words; `fitted` where none is known."""

    factor: float
    words: str
    fitted: bool = False


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
        middle,
        f"{middle:.6g} times the sum over micro-batches and data-parallel ranks (a mean, or clipped)",
        fitted=True,
    )


def judge_gradient(recorded: torch.Tensor, total: Sum, scale: Scale, learned: LearnedOrders) -> Judged:
    """Return the judgement of a recorded gradient by the scaled sum: equal in some order, within its bound, or not."""
    if _in_some_order(recorded, total, scale, learned):
        return Judged(Standing.EQUAL, 0.0, 0, recorded.numel(), 1.0)
    adding = (len(total.value) + FUNCTION_ROUNDINGS) * unit(recorded.dtype) * total.size
    error = abs(scale.factor) * (torch.stack(list(total.error.values())).sum(0) + adding)
    judged = within(scale.factor * total.total, error, recorded)
    alone = _alone(recorded, total, scale, learned)
    if alone:
        return replace(judged, standing=Standing.BEYOND, lone=alone)
    if judged.standing == Standing.BEYOND and judged.factors is None:
        judged = replace(judged, how=_addends(recorded, total, scale))
    return judged


def judge_in_weights(
    judged: Judged,
    recorded: torch.Tensor,
    total: Sum,
    scale: Scale,
    learned: LearnedOrders,
    weight: torch.dtype,
) -> Judged:
    """Return the judgement of a gradient wider than its weight as a sum in the weight's format, if that explains it.

    A weight's own gradient has its format, and a wider one that steps a master may be a copy of it.
    """
    if unit(weight) <= unit(recorded.dtype):
        return judged
    narrow = recorded.to(weight)
    made = judge_gradient(narrow, total, scale, learned)
    if made.standing == Standing.EQUAL and torch.equal(narrow.to(recorded.dtype), recorded):
        return made
    adding = (len(total.value) + FUNCTION_ROUNDINGS) * unit(weight) * total.size
    error = abs(scale.factor) * (torch.stack(list(total.error.values())).sum(0) + adding)
    made = within(scale.factor * total.total, error, recorded)
    return judged if made.standing == Standing.BEYOND else made


def in_format(judged: Judged, recorded: torch.Tensor, total: Sum, scale: Scale, dtype: torch.dtype) -> Judged:
    """Return the judgement with the name of a narrower format where a sum reduced in it explains the gradient."""
    ranks = len({place[0] for place in total.value})
    adding = (ranks + SUM_ROUNDINGS) * unit(dtype) * total.size
    error = abs(scale.factor) * (torch.stack(list(total.error.values())).sum(0) + adding)
    if within(scale.factor * total.total, error, recorded).standing > Standing.WITHIN:
        return judged
    name = str(dtype).removeprefix("torch.")
    text = f"the gradients were reduced in {name}"
    return replace(judged, how=text, factors=None, format=name)


def _in_some_order(recorded: torch.Tensor, total: Sum, scale: Scale, learned: LearnedOrders) -> bool:
    """Return whether an order of micro-batches and ranks gives the recorded gradient in every bit."""
    out = recorded.reshape(-1)
    ranks = _widened(total.by_rank, out.dtype)
    if not ranks or scale.factor == 0 or any(g.dtype != out.dtype for own in ranks for g in own):
        return False
    for words, made in _ways(ranks).items():
        name = f"gradients ({str(out.dtype)[6:]}), {words}"
        key = ("gradients", words, out.dtype)
        if learned.explains(key, name, made, out, len(ranks), 1 / scale.factor, only_found=True):
            return True
    return False


def _widened(ranks: list[list[torch.Tensor]] | None, dtype: torch.dtype) -> list[list[torch.Tensor]] | None:
    """Return gradients in the wider format that they are reduced in (FSDP2's `reduce_dtype`), which changes none."""
    if ranks is None or any(torch.promote_types(g.dtype, dtype) != dtype for own in ranks for g in own):
        return ranks
    return [[g.to(dtype) for g in own] for own in ranks]


def _alone(recorded: torch.Tensor, total: Sum, scale: Scale, learned: LearnedOrders) -> str:
    """Return in words that one element alone is not what the learned order gives; empty where it is not alone."""
    out = recorded.reshape(-1)
    ranks = _widened(total.by_rank, out.dtype)
    if not ranks or scale.factor == 0:
        return ""
    for words, made in _ways(ranks).items():
        right = learned.nearest(("gradients", words, out.dtype), made, out, len(ranks), 1 / scale.factor)
        alone = "" if right is None else lone_element(out, right)
        if alone:
            return alone
    return ""


def _ways(ranks: Sequence[Sequence[torch.Tensor]]) -> dict[str, Callable[[Adder], torch.Tensor]]:
    """Return how trainers accumulate micro-batches and reduce over ranks, by words."""

    def last(add: Adder) -> torch.Tensor:
        return add([reduce(torch.add, own) for own in ranks])

    def into(add: Adder) -> torch.Tensor:  # DDP without no_sync reduces what it has accumulated
        total = torch.zeros_like(ranks[0][0])
        for number in range(len(ranks[0])):
            total = add([total + own[number] for own in ranks])
        return total

    def each(add: Adder) -> torch.Tensor:  # FSDP2 adds what it has reduced
        return reduce(torch.add, (add([own[n] for own in ranks]) for n in range(len(ranks[0]))))

    if len(ranks[0]) == 1:
        return {"reduced once": last}
    return {
        "reduced after the last micro-batch": last,
        "reduced with what was accumulated, at each micro-batch": into,
        "reduced at each micro-batch, then accumulated": each,
    }


def _shares(total: Sum) -> tuple[dict[Place, torch.Tensor], dict[Place, torch.Tensor]]:
    """Return the shares of a sum by data-parallel rank, and by rank and micro-batch."""
    by_rank: dict[Place, torch.Tensor] = {}
    for rank, number in sorted(total.value):
        by_rank[rank, -1] = by_rank.get((rank, -1), 0.0) + total.value[rank, number]
    return by_rank, {place: total.value[place] for place in sorted(total.value)}


def share_held(recorded: torch.Tensor, total: Sum, scale: Scale) -> int | None:
    """Return the data-parallel rank if a gradient holds only its share, with any scale; None if it holds others."""
    by_rank, _ = _shares(total)
    weights = _weights(recorded, list(by_rank.values()), scale)
    if weights is None or len(by_rank) == 1:
        return None
    largest = max(map(abs, weights))
    held = [place[0] for place, w in zip(by_rank, weights, strict=True) if abs(w) > ADDEND_MISFIT * largest]
    return held[0] if len(held) == 1 else None


def _addends(recorded: torch.Tensor, total: Sum, scale: Scale) -> str:
    """Return which ranks' or micro-batches' gradients are missing or doubled; empty where no such relation holds."""
    by_rank, by_place = _shares(total)
    for shares in (by_rank, by_place) if len(by_place) > len(by_rank) else (by_rank,):
        weights = _weights(recorded, list(shares.values()), scale)
        if weights is not None and len(shares) > 1:
            return _in_words(list(zip(shares, weights, strict=True)), fitted=scale.fitted)
    return ""


def _weights(recorded: torch.Tensor, shares: Sequence[torch.Tensor], scale: Scale) -> list[float] | None:
    """Return how often each share counts in a gradient; None where they do not make it up, or not uniquely."""
    if recorded.numel() < max(LEAST_FITTED, 2 * len(shares)):
        return None
    matrix = torch.stack([share.reshape(-1) * scale.factor for share in shares], 1)
    wanted = recorded.double().reshape(-1)
    solved = torch.linalg.lstsq(matrix, wanted[:, None], driver="gelsd")
    weights = solved.solution[:, 0]
    size = wanted.norm().clamp_min(torch.finfo(torch.float64).tiny)
    apart = float((matrix @ weights - wanted).norm() / size)
    return weights.tolist() if apart <= ADDEND_MISFIT and int(solved.rank) == len(shares) else None


def _in_words(weights: Sequence[tuple[Place, float]], *, fitted: bool) -> str:
    """Return in words which shares do not count exactly once.

    If most shares count equally, that is once: the factor common to all gradients may be solved from wrong ones. If it
    was `fitted` and there is no such majority, "once" is undefined, and the text is empty.
    """
    held = sorted(w for _, w in weights if abs(w) > ADDEND_MISFIT)
    middle = held[len(held) // 2] if held else 0.0
    alike = sum(abs(w / middle - 1) <= ADDEND_MISFIT for w in held)
    most = 2 * alike > len(held) and len(weights) > 1
    if fitted and not most:
        return ""
    once = middle if most else 1.0
    other = [
        f"{w / once:.4g} times the share of {_place(p)}"
        for p, w in weights
        if abs(w) > ADDEND_MISFIT and abs(w / once - 1) > ADDEND_MISFIT
    ]
    none = [f"nothing of {_place(p)}" for p, w in weights if abs(w) <= ADDEND_MISFIT]
    if len(none) == len(weights) - 1 and not other:
        alone = next(p for p, w in weights if abs(w) > ADDEND_MISFIT)
        return f"holds the share of {_place(alone)} alone, where each share is due once"
    text = ", ".join([*other, *none])
    return f"holds {text}, where each share is due once" if text else ""


def another_gradient(grad: torch.Tensor, name: str, sums: Mapping[str, Sum], scale: Scale) -> str:
    """Return which other parameter's gradient a wrong one is; empty where none or several fit."""
    if grad.numel() < LEAST_FITTED:
        return ""
    fits = [
        other
        for other, total in sums.items()
        if other != name
        and total.total.shape == grad.shape
        and judge_gradient(grad, total, scale, LearnedOrders()).standing in {Standing.EQUAL, Standing.WITHIN}
    ]
    return f"equals the gradient of {fits[0]}" if len(fits) == 1 else ""


def _place(place: Place) -> str:
    return f"dp rank {place[0]}" + (f", micro-batch {place[1]}" if place[1] >= 0 else "")
