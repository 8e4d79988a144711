"""A factor that all gradients of a run share, and that no convention explains: averaged twice, reduced twice.

Trainers divide by ranks or micro-batches before the backward (in the loss) or after it, and clip by a factor that is
another in each step. The gradients that the loss sent back show how much of the division it has done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isclose, isfinite, log2, prod

from numerics.local.forced_pass import ROOT, ROOT_GRADIENT
from numerics.local.gradients.parameter_gradients import Scale
from numerics.local.local_check import Doubt
from numerics.local.losses.token_weights import Weights
from numerics.local.recorded_step import Place, RecordedStep
from numerics.thresholds.local import (
    FACTOR_STEADY,
    LARGEST_LOSS_SCALE,
    LEAST_LOSS_SCALE,
    LEAST_STEADY,
    SCALE_TOLERANCE,
)

_SETTLED = (
    "look for code that divides or multiplies gradients between the backward and `optimizer.step()`; if the factor is "
    "intended, put it into the loss"
)
ACCUMULATED = "micro-batches"
"""A size by which many trainers do not divide on purpose: a factor of it is reported, and is no doubt."""

_TIMES = "times a mean's"

_UNDIVIDED = (
    "divide the loss or the gradients by that number, or let the function given by "
    "--model return the loss as the trainer counts it (model, optimiser, loss), and call `watcher.targets(...)`"
)
_UNSCALED = (
    "unscale the gradients before they are clipped and the optimiser steps (`scaler.unscale_(optimizer)`); if that is "
    "intended, let the function given by --model return the loss as the trainer counts it"
)


_OWN_COUNT = (
    "divide by the micro-batches that the step has (the last ones of an epoch may be fewer); if the smaller step is "
    "intended, let the function given by --model return the loss as the trainer counts it"
)


@dataclass(frozen=True)
class _Share:
    """A step's factor of the gradients, and how many times those of a mean they are; `known` if the loss shows it.

    `fitted` says that nothing names the factor, as for a clip; `norm` is the norm of all gradients (None if unknown);
    `summed` says that the loss counts each position once, and is not a mean. `averaged` is the share of the gradients
    when each data-parallel rank takes the mean of its own loss.
    """

    factor: float
    share: float
    precision: float
    known: bool
    fitted: bool = False
    norm: float | None = None
    summed: bool = False
    averaged: float = 0.0
    step: int = 0
    micro_batches: int = 1

    @property
    def mean(self) -> bool:
        """Whether the gradients are known to be those of a mean."""
        return self.known and abs(self.share - 1) <= self.precision

    @property
    def many(self) -> bool:
        """Whether the gradients are larger than their own sum."""
        return self.factor > 1 + SCALE_TOLERANCE

    @property
    def beside(self) -> float:
        """How many times their own sum the gradients are where they are larger, else how many times a mean's."""
        return self.factor if self.many else self.share


@dataclass
class CommonFactor:
    """The factors of all gradients by step, and the sizes of the run that they may be made of.

    `declared` says that a loss function was given, and that the run's gradients are those of it, not a multiple.
    """

    steps: list[_Share] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    declared: bool = False

    def add(
        self,
        state: RecordedStep,
        scale: Scale | None,
        weights: dict[Place, Weights],
        loss_factor: float | None = None,
        norm: float | None = None,
    ) -> None:
        """Add a step with gradients that are `scale` times their sum; `weights` are those of the loss by place.

        `loss_factor` is how many times the gradient of a given loss function the recorded one is.
        """
        places = state.recorded.places(state.step)
        if scale is None or not scale.factor > 0:
            return
        ranks = len({p[0] for p in places})
        self.sizes = {
            ACCUMULATED: len({p[1] for p in places}),
            "data-parallel ranks": ranks,
            "ranks of one data-parallel index": state.parts,
        }
        self.declared = self.declared or loss_factor == 1
        total = _total(state, places, weights)
        precision = max((one.precision for one in weights.values()), default=SCALE_TOLERANCE)
        known = total is not None
        precision = precision if known else SCALE_TOLERANCE
        averaged = scale.factor * ranks
        counted = _counted(places, weights) if total is None else total
        share = averaged if counted is None else scale.factor * counted
        if not isfinite(share):
            return
        summed = any(abs(one.typical - 1) <= one.precision for one in weights.values() if one.count)
        at = state.step, self.sizes[ACCUMULATED]
        self.steps.append(
            _Share(scale.factor, share, precision, known, scale.fitted, norm, summed, averaged, *at)
        )

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """A doubt where one factor serves all steps, and neither an average nor clipping is like it."""
        shares = self.steps
        if not shares:
            return ()
        clipped = _clipped_scaled(shares, self.sizes["data-parallel ranks"])
        if clipped:
            return (Doubt(clipped, _UNSCALED),)
        short = "" if self.declared else _short_group(shares)
        if short:
            return (Doubt(short, _OWN_COUNT),)
        sharp = all(one.precision <= SCALE_TOLERANCE for one in shares)
        more = all(one.known and one.share > 1 + one.precision for one in shares) and not self.declared
        named = self._named(shares)
        if not (_below(shares) or _above(shares)):
            if more and named not in {"", ACCUMULATED} and sharp:
                return (Doubt(_sentence(shares[0], named), _UNDIVIDED),)
            return (
                (Doubt(f"{_sentence(shares[0], '')}, as a loss scale", _UNSCALED),)
                if more and _powers(shares)
                else ()
            )
        steady = len(shares) >= LEAST_STEADY and (
            _steady([one.share for one in shares]) or _steady([one.factor for one in shares])
        )
        if not (named and sharp) and not (steady and all(one.known for one in shares)):
            return ()
        return (Doubt(_sentence(shares[0], named), _SETTLED),)

    @property
    def undivided(self) -> tuple[int, str]:
        """The number of micro-batches where all gradients are as many times a mean's, and other sizes like it; 0, "".

        Ranks that are as many may make the same factor.
        """
        count = self.sizes.get(ACCUMULATED, 0)
        if not self.scale.endswith(ACCUMULATED) or self.steps[0].share < 1:
            return 0, ""
        others = [name for name, size in self.sizes.items() if size == count and name != ACCUMULATED]
        return count, " or ".join(others)

    @property
    def scale(self) -> str:
        """How many times the gradients of a mean of the loss those of all steps are, in words; "" where unknown."""
        shares = self.steps
        if not shares or not all(one.known for one in shares) or not _steady([one.share for one in shares]):
            return ""
        if abs(shares[0].share - 1) <= shares[0].precision:
            return "1"
        named = self._named(shares)
        return f"{shares[0].share:.6g}" + (
            f" {_TIMES}, as many as {named}" if named == ACCUMULATED else f" {_TIMES}"
        )

    def _named(self, shares: Sequence[_Share]) -> str:
        """Return in words the sizes of the run that make up the factor in every step; else ""."""
        sizes = {name: size for name, size in self.sizes.items() if size > 1}
        for count in range(1, len(sizes) + 1):
            for names in combinations(sizes, count):
                size = prod(sizes[name] for name in names)
                if all(
                    isclose(one.beside, size if one.beside > 1 else 1 / size, rel_tol=one.precision)
                    for one in shares
                ):
                    return " times ".join(names)
        return ""


def _clipped_scaled(shares: Sequence[_Share], ranks: int) -> str:
    """Return in words that gradients were clipped while they bore the loss's scale; else "".

    Their norm is one number in all clipped steps, and a round one only times the scale, which is a power of two.
    """
    clipped = [one for one in shares if one.fitted and one.norm]
    norms = [one.norm or 0.0 for one in clipped]
    scales = [one.share / one.factor / ranks for one in clipped]
    if len(norms) < LEAST_STEADY or not all(one.known for one in clipped):
        return ""
    if max(norms) - min(norms) > SCALE_TOLERANCE * max(norms) or max(scales) - min(scales) > max(scales) / 2:
        return ""
    scale = 2.0 ** round(log2(scales[0])) if 0 < scales[0] < LARGEST_LOSS_SCALE else 1.0
    limit = norms[0] * scale
    if scale < LEAST_LOSS_SCALE or not _round(limit) or _round(norms[0]):
        return ""
    return (
        f"all gradients enter the optimiser with the norm {norms[0]:.6g}, which is {limit:.3g} / {scale:.0f}, the "
        "scale of the loss: they were clipped before they were unscaled"
    )


def _short_group(shares: Sequence[_Share]) -> str:
    """Return in words that a step of fewer micro-batches than usual is divided by the usual number; else ""."""
    most = max(one.micro_batches for one in shares)
    full = [one for one in shares if one.micro_batches == most]
    if not all(one.mean for one in full):
        return ""
    for one in shares:
        due = one.micro_batches / most
        if due < 1 and one.known and isclose(one.share, due, rel_tol=one.precision):
            return (
                f"step {one.step} has {one.micro_batches} of {most} micro-batches, and its gradients are "
                f"{one.share:.6g} times a mean's: its losses are divided by {most} all the same"
            )
    return ""


def _powers(shares: Sequence[_Share]) -> bool:
    """Return whether the gradients are those of a mean times a power of two that a loss is scaled by."""
    return all(
        one.share > LEAST_LOSS_SCALE / 2
        and not one.summed
        and isclose(log2(one.share), round(log2(one.share)), abs_tol=one.precision)
        for one in shares
    )


def _round(number: float) -> bool:
    """Return whether a number has two digits at the most, within the tolerance of factors."""
    return isclose(number, float(f"{number:.1e}"), rel_tol=SCALE_TOLERANCE / 2)


def _total(state: RecordedStep, places: Sequence[Place], weights: dict[Place, Weights]) -> float | None:
    """Return how often the loss counts a mean, over all places: by positions, or by what a model's loss was sent."""
    if weights and len(weights) == len(places):
        known = [one for one in weights.values() if one.count]
        alike = known and all(one.alike for one in known)
        return sum(one.typical * one.count for one in known) if alike else None
    total = 0.0
    for place in places:
        loss = state.given(place, "activation", ROOT)
        sent = state.activation_gradient(place, ROOT_GRADIENT, 0, 1, ()) if loss is not None else []
        if loss is None or loss.numel() != 1 or not sent:
            return None
        total += float(sent[0].tensor)
    return total


def _counted(places: Sequence[Place], weights: dict[Place, Weights]) -> float | None:
    """Return what unequal weights add up to, a mean of means to the number of its means; None if unknown."""
    known = [one for one in weights.values() if one.count]
    if not known or len(weights) != len(places):
        return None
    return sum(float(one.rows[one.rows != 0].nanmean()) * one.count for one in known)


def _below(shares: Sequence[_Share]) -> bool:
    """Return whether all gradients are smaller than those of a mean, of a rank or of all, beyond the precision."""
    return all(max(one.share, one.averaged) < 1 - one.precision for one in shares)


def _above(shares: Sequence[_Share]) -> bool:
    """Return whether all gradients are larger than their own sum, and than those of a mean."""
    return all(one.factor > 1 + SCALE_TOLERANCE and one.share > 1 + one.precision for one in shares)


def _steady(factors: Sequence[float]) -> bool:
    return max(factors) - min(factors) <= FACTOR_STEADY * max(factors)


def _sentence(one: _Share, named: str) -> str:
    """Return how the gradients relate to their sum, and to a mean if the loss shows that."""
    made = f" ({'' if one.beside > 1 else '1 / '}{named})" if named else ""
    beside = "their sum over micro-batches and ranks" if one.many else "the gradients of a mean of the loss"
    how = "divided more than once" if one.share < 1 else "added up without being divided"
    how = "reduced or counted more than once" if one.many else how
    return f"all gradients of all steps are {one.beside:.6g} times {beside}{made}: {how}"
