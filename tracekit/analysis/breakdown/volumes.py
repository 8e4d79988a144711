"""Recorded volumes compared with published formulas; elements that a rank sends in a step.

Sources: ring all-reduce 2Φ(N−1)/N and ZeRO 3Φ (Rajbhandari et al., "ZeRO", section 7); tensor parallelism by two
all-reduces a layer in each direction and the vocabulary-parallel loss (Shoeybi et al., "Megatron-LM", section 3).
Φ is taken from the recording itself: formulas show which scheme moves that much, not whether the model is right.
"""

from typing import Final

import numpy as np

from tracekit.analysis.breakdown.traffic import Calls
from tracekit.axes import DATA, TENSOR, along
from tracekit.findings import Volume
from tracekit.matching.ring import ring_share
from tracekit.thresholds.breakdown import SIZES_SHOWN, VOLUME_ERROR

_GATHERS: Final = ("all_gather", "reduce_scatter", "all_reduce")
_REDUCES: Final = ("reduce_scatter", "all_reduce")
_GRADIENTS: Final = (
    ("2Φ(N−1)/N", "a ring all-reduce, ZeRO-1 and ZeRO-2", 2),
    ("3Φ(N−1)/N", "ZeRO-3", 3),
)
_LAYER: Final = 8
"""Four all-reduces of Φ = b·s·h, two in each direction, send 2Φ(N−1)/N each; so do pairs of gather and scatter."""
_MEGATRON: Final = ("8Φ(N−1)/N", "a layer and micro-batch of Megatron, Φ = b·s·h")
_LOSS: Final = ("Φ + N", "a micro-batch of a vocabulary-parallel loss, if Φ = b·s")


def volumes_of(calls: Calls) -> tuple[Volume, ...]:
    """Return volumes along each axis with a known formula, gradients first; none where sizes are unknown."""
    gradients: list[Volume] = []
    others: list[Volume] = []
    for axis in sorted({str(a) for a in calls.axis.tolist()}):
        mine = calls.of((calls.axis == axis) & np.isin(calls.op.astype(str), _GATHERS))
        if len(np.unique(mine.members)) != 1 or (mine.elements < 0).any():
            continue  # groups of several sizes share no formula, and unknown sizes none
        if along(axis, DATA):
            gradients += _gradients(axis, mine)
        elif axis == TENSOR:
            others += _activations(axis, mine)
    most = max((v.phi for v in gradients), default=0)
    return (*(v for v in gradients if v.phi > VOLUME_ERROR * most), *others)  # a loss is no gradient


def _gradients(axis: str, calls: Calls) -> list[Volume]:
    """The volumes of summed gradients and gathered parameters along the axis: Φ are the elements summed in a step."""
    summed = np.isin(calls.op.astype(str), _REDUCES)
    steps = len(np.unique(calls.rank_step))
    phi = float(calls.elements[summed].sum()) / steps
    if phi < 1:
        return []
    recorded, found = _sent(calls), []
    for formula, scheme, times in _GRADIENTS:
        expected = times * phi * ring_share("all_gather", int(calls.members[0]))
        error = abs(recorded / expected - 1)
        found.append(
            Volume(
                axis, "gradients", round(phi), recorded, formula, scheme, expected, recorded / expected,
                error <= VOLUME_ERROR,
            )
        )  # fmt: skip
    return found


def _activations(axis: str, calls: Calls) -> list[Volume]:
    """Return what tensor parallelism moves: Φ is the size of message that moves most elements in sum."""
    sizes, code = np.unique(calls.elements, return_inverse=True)
    phi = int(sizes[np.argmax(np.bincount(code, calls.elements * calls.factor))])
    if phi < 1:
        return []
    recorded = _sent(calls.of(calls.elements == phi))
    layer = _LAYER * phi * ring_share("all_gather", int(calls.members[0]))
    return [
        Volume(axis, "activations", phi, recorded, *_MEGATRON, layer, recorded / layer, None),
        *_values(axis, calls, phi),
    ]


def _values(axis: str, calls: Calls, phi: int) -> list[Volume]:
    """The volumes of all-reduces of a size that divides Φ = b·s·h: one value a token (a loss) or a channel (norms)."""
    part = calls.of((calls.op == "all_reduce") & (calls.elements > 1) & (calls.elements < phi))
    sizes = [n for n in np.unique(part.elements).tolist() if phi % n == 0]
    found = []
    for size in sizes:
        mine = part.of(part.elements == size)
        summed = float(mine.elements.sum()) / len(np.unique(mine.rank_step))
        expected = float(size + int(calls.members[0]))
        found.append(Volume(axis, "loss", size, summed, *_LOSS, expected, summed / expected, None))
    return sorted(found, key=lambda v: (-v.recorded, v.phi))[:SIZES_SHOWN]


def _sent(calls: Calls) -> float:
    """The elements that a rank sends in a step by a ring."""
    return float((calls.elements * calls.factor).sum()) / max(len(np.unique(calls.rank_step)), 1)
