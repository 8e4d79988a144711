"""Whether a run's loss weighs as its baseline's: a local proof takes the loss's gradient as it was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Final

import numpy as np
import torch

from numerics.columns import Columns
from numerics.comparison.first_divergence import at_row, first_of
from numerics.comparison.joins.mesh_axes import axis_sizes
from numerics.comparison.proofs.copies_in_norm import copies_in_norm
from numerics.findings import Divergence
from numerics.formats import least_roundoff
from numerics.local.losses.common_factor import ACCUMULATED
from numerics.local.proof import LocalProof
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.comparison import FACTOR_MARGIN, NO_DIVISOR
from numerics.thresholds.local import ELEMENT_ROUNDOFFS, LOSS_SCALE, WEIGHT_TOLERANCE
from tracekit.axes import AXES

_SCALED: Final = "the loss is scaled or weighted otherwise, or a reduction averages otherwise"

_UNDIVIDED: Final = (
    "the losses of {} micro-batches are added up without being divided by their number, as where loss or gradients are "
    "not divided when gradients accumulate, and with `scale_grads=False` in torch's pipeline schedules"
)

_DIVIDED: Final = (
    "they are divided by the number of {} once more than the baseline's, by the loss or a reduction"
)

_SAME: Final = FACTOR_MARGIN * WEIGHT_TOLERANCE
"""Relative distance within which a factor is a size of the run."""


@dataclass(frozen=True)
class Pair:
    """A parameter's gradient in the run and in the baseline, float64, and the roundoff of its format."""

    name: str
    mine: torch.Tensor
    other: torch.Tensor
    unit: float

    @property
    def apart(self) -> float:
        """The norm of the difference over that of the run's gradient."""
        return float((self.mine - self.other).norm() / self.mine.norm().clamp_min(NO_DIVISOR))


def other_loss(proof: LocalProof, run: Columns, baseline: Columns | None, why: str = "") -> str | None:
    """Return a sentence where the first step's gradients as a whole are not those of the baseline; None otherwise.

    A factor is named only where every element is that many times the baseline's, within roundings: of any two sets of
    gradients there is a ratio. `why` explains a factor where the run's records do. For runs that draw the same random
    numbers; see `other_weights` for others.
    """
    if baseline is None or not baseline.capture.values:
        return None
    pairs = _pairs(proof, baseline)
    ratio, step = _ratio(pairs), proof.first_step
    exact = times(pairs, ratio)
    if exact and not times(pairs, 1.0):
        why = why or _scaled(proof, ratio, copies_in_norm(proof, run, baseline))
        return (
            f"every element of all gradients of step {step} is {ratio:.6g} times the baseline's, though each follows "
            f"from the recorded gradient of the loss: {why}"
        )
    if abs(ratio - 1) <= LOSS_SCALE:
        return None
    worst = max(pairs, key=lambda one: one.apart)
    return (
        f"the gradients of step {step} are not the baseline's, and no multiple of them ({worst.name} differs most, by "
        f"{worst.apart:.2g} of its size), though each follows from the recorded gradient of the loss"
    )


def place_of_factor(proof: LocalProof, run: Columns, baseline: Columns | None) -> Divergence | None:
    """Return the place of gradients that are all one multiple of the baseline's; None where they are not.

    It names the first gradient, and the axis if one alone has as many ranks as the factor or its inverse, and there are
    not as many micro-batches.
    """
    pairs = [] if baseline is None or not baseline.capture.values else _pairs(proof, baseline)
    ratio, step = _ratio(pairs), proof.first_step
    if not times(pairs, ratio) or times(pairs, 1.0):
        return None
    sizes = {**axis_sizes(run), **proof.sizes}
    alike = [
        name
        for name, size in sizes.items()
        if size > 1 and any(isclose(ratio, one, rel_tol=_SAME) for one in (size, 1 / size))
    ]
    axes = [name for name in alike if name in AXES]
    rows = np.flatnonzero(
        (run["step"] == step) & run.named("phase", "reduce") & run.named("kind", "param_grad")
    )
    place = at_row(
        run, first_of(run, rows), f"all gradients of the step are {ratio:.6g} times the baseline's"
    )
    counted = ACCUMULATED in alike
    ranks = tuple(sorted(set(run["rank"][rows].tolist())))
    return replace(place, axis=axes[0] if len(axes) == 1 and not counted else None, ranks=ranks)


def _ratio(pairs: Sequence[Pair]) -> float:
    """Return how many times the baseline's all gradients are in the mean."""
    square = sum(float(one.other.square().sum()) for one in pairs)
    return sum(float((one.mine * one.other).sum()) for one in pairs) / square if square else 1.0


def _pairs(proof: LocalProof, baseline: Columns) -> list[Pair]:
    """Return the first step's gradients that both runs recorded."""
    recorded, found = RecordedRun(baseline), []
    for name, mine in proof.first_gradients.items():
        rows = recorded.rows(proof.first_step, "reduce", "param_grad", name)
        other = recorded.whole(rows, tuple(mine.shape), batch=False)
        if other:
            found.append(pair_of(name, mine, other[0].tensor))
    return found


def pair_of(name: str, mine: torch.Tensor, other: torch.Tensor) -> Pair:
    """Return two recorded gradients of one parameter, with the roundoff of the coarser format."""
    formats = (str(tensor.dtype).removeprefix("torch.") for tensor in (mine, other))
    return Pair(name, mine.double(), other.double(), max(least_roundoff(one) for one in formats))


def times(pairs: Sequence[Pair], ratio: float) -> bool:
    """Return whether every element is the baseline's times a ratio, within the roundings of sums of such sizes."""
    count = sum(one.mine.numel() for one in pairs)
    if not count:
        return False
    every = (sum(float(one.mine.square().sum()) for one in pairs) / count) ** 0.5
    for one in pairs:
        own = float(one.mine.square().mean().sqrt()) if one.mine.numel() else 0.0
        allowed = ELEMENT_ROUNDOFFS * one.unit * (one.mine.abs() + own + every)
        if not bool(((one.mine - ratio * one.other).abs() <= allowed).all()):
            return False
    return True


def other_weights(proof: LocalProof, baseline: LocalProof | None) -> str | None:
    """Return a sentence where every position counts one multiple of the baseline's; "" where they count alike.

    None where that is not known: how much a position counts is read from a cross entropy's gradient, and does not
    depend on random numbers.
    """
    mine, other = proof.weights, None if baseline is None else baseline.weights
    if mine is None or other is None or len(mine) != len(other) or not len(mine):
        return None
    ratios = mine / other
    ratio = float(ratios.median())
    if not bool(((ratios / ratio - 1).abs() <= FACTOR_MARGIN * WEIGHT_TOLERANCE).all()):
        return None
    if abs(ratio - 1) <= FACTOR_MARGIN * WEIGHT_TOLERANCE:
        return ""
    return (
        f"each of the {len(mine)} positions that count in step {proof.first_step} does so {ratio:.4g} times as much as "
        f"in the baseline: {_scaled(proof, ratio)}"
    )


def _scaled(proof: LocalProof, ratio: float, clipped: str = "") -> str:
    """Return what may make a factor: a number of the run that it is, else a clip that explains it, else what can."""
    count, ranks = proof.undivided
    if count and isclose(ratio, count, rel_tol=_SAME):
        also = f"; or a sum over as many {ranks} is not divided" if ranks else ""
        return _UNDIVIDED.format(count) + also
    inverse = [
        name for name, size in proof.sizes.items() if size > 1 and isclose(ratio * size, 1, rel_tol=_SAME)
    ]
    return _DIVIDED.format(" or ".join(inverse)) if inverse else clipped or _SCALED
