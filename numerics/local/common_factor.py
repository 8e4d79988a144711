"""A factor that all gradients of a run share, and that no convention explains: averaged twice, reduced twice.

Trainers divide by ranks or micro-batches before the backward (in the loss) or after it, and clip by a factor that is
another in each step. How much of the division the loss has done stands in the gradients that it sent back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isclose, prod

from numerics.local.forced_pass import ROOT, ROOT_GRADIENT
from numerics.local.local_check import Doubt
from numerics.local.parameter_gradients import Scale
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.token_weights import Weights
from numerics.thresholds.local import FACTOR_STEADY, LEAST_STEADY, SCALE_TOLERANCE

_SETTLED = (
    "look for what divides or multiplies gradients between the backward and `optimizer.step()`; if the factor is "
    "meant, put it into the loss"
)


@dataclass(frozen=True)
class _Share:
    """A step's factor of the gradients, and how many times those of a mean they are; `known` where the loss told."""

    factor: float
    share: float
    precision: float
    known: bool

    @property
    def many(self) -> bool:
        """Whether the gradients are larger than those of a mean."""
        return self.share > 1

    @property
    def beside(self) -> float:
        """How many times their own sum the gradients are where they are larger, else how many times a mean's."""
        return self.factor if self.many else self.share


@dataclass
class CommonFactor:
    """The factors of all gradients by step, and the sizes of the run that they may be made of."""

    steps: list[_Share] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, state: RecordedStep, scale: Scale | None, weights: dict[Place, Weights]) -> None:
        """Add a step whose gradients are `scale` times their sum; `weights` are those of the loss by place."""
        places = state.recorded.places(state.step)
        if scale is None or not scale.factor > 0:
            return
        ranks = len({p[0] for p in places})
        self.sizes = {
            "data-parallel ranks": ranks,
            "micro-batches": len({p[1] for p in places}),
            "ranks of one data-parallel index": state.parts,
        }
        total = _total(state, places, weights)
        precision = max((one.precision for one in weights.values()), default=SCALE_TOLERANCE)
        share = scale.factor * max(total or 0.0, float(ranks))
        known = total is not None
        self.steps.append(_Share(scale.factor, share, precision if known else SCALE_TOLERANCE, known))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """A doubt where one factor serves all steps, and neither an average nor clipping is like it."""
        shares = self.steps
        if not shares or not (_below(shares) or _above(shares)):
            return ()
        named = self._named(shares)
        steady = len(shares) >= LEAST_STEADY and (
            _steady([one.share for one in shares]) or _steady([one.factor for one in shares])
        )
        sharp = all(one.precision <= SCALE_TOLERANCE for one in shares)
        if not (named and sharp) and not (steady and all(one.known for one in shares)):
            return ()
        return (Doubt(_sentence(shares[0], named), _SETTLED),)

    def _named(self, shares: Sequence[_Share]) -> str:
        """Return of which sizes of the run the factor is made in every step, in words; else ""."""
        sizes = {name: size for name, size in self.sizes.items() if size > 1}
        for count in range(1, len(sizes) + 1):
            for names in combinations(sizes, count):
                size = prod(sizes[name] for name in names)
                if all(
                    isclose(one.beside, size if one.many else 1 / size, rel_tol=one.precision)
                    for one in shares
                ):
                    return " times ".join(names)
        return ""


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


def _below(shares: Sequence[_Share]) -> bool:
    """Return whether all gradients are smaller than those of a mean by more than the precision."""
    return all(one.share < 1 - one.precision for one in shares)


def _above(shares: Sequence[_Share]) -> bool:
    """Return whether all gradients are larger than their own sum, and than those of a mean."""
    return all(one.factor > 1 + SCALE_TOLERANCE and one.share > 1 + one.precision for one in shares)


def _steady(factors: Sequence[float]) -> bool:
    return max(factors) - min(factors) <= FACTOR_STEADY * max(factors)


def _sentence(one: _Share, named: str) -> str:
    """Return what the gradients are beside their sum, and beside a mean where the loss told that."""
    made = f" ({'' if one.many else '1 / '}{named})" if named else ""
    beside = "their sum over micro-batches and ranks" if one.many else "those of a mean of the loss"
    how = "reduced or counted more than once" if one.many else "divided more than once"
    return f"all gradients of all steps are {one.beside:.6g} times {beside}{made}: {how}"
