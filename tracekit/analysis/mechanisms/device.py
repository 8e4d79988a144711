"""Which kernels of a rank are longer than its peers' (all by one factor, one kind of them, or one alone) or additional.

The excess splits into a part by one common factor, which a clock causes, and what single kinds of kernels take beyond
it. The parts add up to the excess. Additional work (evaluation, averaging of weights, statistics for a log, a larger
batch) is known exactly, also where a busy machine makes every length uncertain. A mechanism is named where it explains
most of the excess, and nothing else explains as much.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.findings import Mechanism
from tracekit.mechanisms import MORE_WORK
from tracekit.steps.features import ATTENTION, MATMUL, NO_WORK, Features
from tracekit.steps.step_kernels import StepKernels, by_step
from tracekit.thresholds.slowrank import (
    BESIDE_COMMUNICATION,
    GROWTH,
    GROWTH_RANKED,
    LEAST_KIND,
    MECHANISMS_LISTED,
    NAMED_SHARE,
    RIVAL_SHARE,
    STEADY_KIND,
)
from tracekit.thresholds.tables import ENOUGH_STEPS
from tracekit.units import F64, I64, ms

_EXPERTS: Final = re.compile(r"grouped?_?gemm|moe|expert|permute_tokens", re.IGNORECASE)
_KINDS: Final = (("experts", _EXPERTS), ("attention", ATTENTION), ("matrix_products", MATMUL))
_OTHER: Final = "memory_bandwidth"
"""Kernels of no other kind: they add, normalise, copy or update, which takes as long as their memory does."""


@dataclass(frozen=True)
class Compared:
    """Kernels of a rank beside its peers' medians at the same places; one entry a kernel, times in ns."""

    name: npt.NDArray[np.object_]
    column: I64  # of Steps
    took: F64
    usual: F64

    def taken(self, where: npt.NDArray[np.bool_]) -> "Compared":
        """Return the kernels that `where` holds for."""
        return Compared(self.name[where], self.column[where], self.took[where], self.usual[where])

    @property
    def over(self) -> float:
        """The excess of all kernels together."""
        return float((self.took - self.usual).sum())

    @property
    def factor(self) -> float:
        """How many times as long as usual all kernels together take."""
        return float(self.took.sum() / max(self.usual.sum(), 1.0))


def compared(mine: StepKernels, peers: Sequence[StepKernels]) -> Compared:
    """Return the kernels of `mine` that run equally often in a step of most peers, apart from those in communication.

    A kernel beside communication may be longer for that reason, on this rank or on a peer.
    """
    parts: list[tuple[str, int, F64, F64]] = []
    for name in sorted(set(mine.name.tolist())):
        others = [by_step(peer, name) for peer in peers]
        for column, own in by_step(mine, name).items():
            alike = [o[column] for o in others if column in o and len(o[column]) == len(own)]
            if 2 * len(alike) <= len(peers):
                continue
            every = np.stack([own, *alike])
            alone = (every[:, :, 1] <= BESIDE_COMMUNICATION).all(axis=0)
            parts.append((name, column, own[alone, 0], np.median(every[1:, alone, 0], axis=0)))
    sizes = [len(took) for _, _, took, _ in parts]
    return Compared(
        np.repeat(np.array([name for name, *_ in parts], object), sizes),
        np.repeat(np.array([column for _, column, *_ in parts], np.int64), sizes),
        np.concatenate([took for _, _, took, _ in parts] or [np.zeros(0)]),
        np.concatenate([usual for *_, usual in parts] or [np.zeros(0)]),
    )


def of_device(found: Compared) -> list[Mechanism]:
    """Return what explains the excess of the kernels, with the share of it, the largest share first; else nothing."""
    if found.over <= 0:
        return []
    kind = np.array([_kind(name) for name in found.name.tolist()], object)
    kinds = {k: found.taken(kind == k) for k in sorted(set(kind.tolist()))}
    least = LEAST_KIND * float(found.usual.sum())
    telling = [part for part in kinds.values() if part.usual.sum() >= least]
    common = found.factor if len(telling) > 1 else 1.0
    if min(part.factor for part in telling) - 1 < STEADY_KIND * (common - 1):
        common = 1.0  # a kind of kernels is not longer, so there is no common factor
    by_factor = {name: min(part.over, (common - 1) * float(part.usual.sum())) for name, part in kinds.items()}
    result = [_common(found, sum(by_factor.values()))] if common > 1 else []
    for name, part in kinds.items():
        if part.over > by_factor[name]:
            result.append(_of_kind(name, part, found, part.over - by_factor[name], len(telling)))
    return sorted(result, key=lambda m: -m.share)


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), _OTHER)


def _common(found: Compared, ns: float) -> Mechanism:
    """The part of the excess that one factor on all kernels makes, `ns`."""
    steps = [found.taken(found.column == c).factor for c in np.unique(found.column).tolist()]
    if _grows(np.array(steps) - 1):
        text = f"all kernels take {steps[0]:.2f} times as long as on its peers in the first step, and "
        return Mechanism("throttling", ns / found.over, f"{text}{steps[-1]:.2f} times in the last")
    return Mechanism(
        "clock", ns / found.over, f"all kernels take {found.factor:.2f} times as long as on its peers"
    )


def _grows(excess: F64) -> bool:
    """Whether the excess grows over the steps."""
    if len(excess) <= ENOUGH_STEPS or excess[-1] < GROWTH * excess[0]:
        return False
    turn = np.argsort(np.argsort(excess, kind="stable"), kind="stable")
    return bool(np.corrcoef(turn, np.arange(len(excess)))[0, 1] >= GROWTH_RANKED)


def _of_kind(kind: str, part: Compared, found: Compared, ns: float, kinds: int) -> Mechanism:
    """The excess `ns` of one kind of kernels beyond the common factor, or of one kernel if the others are usual.

    Where only one kind of kernels is recorded, nothing shows whether others are longer as well.
    """
    share, least = min(ns / found.over, 1.0), LEAST_KIND * float(found.usual.sum())
    alone = {name: part.taken(part.name == name) for name in sorted(set(part.name.tolist()))}
    longest = max(alone, key=lambda name: (alone[name].over, name))
    others, mine = part.taken(part.name != longest), alone[longest]
    only = mine.over >= NAMED_SHARE * part.over and others.usual.sum() >= least
    if kind != "attention" and only and others.factor - 1 < STEADY_KIND * (mine.factor - 1):
        text = f"the kernel {longest} takes {mine.factor:.2f} times as long as on its peers, the others of its kind "
        return Mechanism("one_kernel", share, f"{text}{others.factor:.2f} times")
    names = set(alone)
    rest = found.taken(np.array([name not in names for name in found.name.tolist()], bool))
    beside = (
        f", the others {rest.factor:.2f} times" if kinds > 1 else "; no other kind of kernels was recorded"
    )
    text = f"{_WORDS[kind]} take {part.factor:.2f} times as long as on its peers{beside}"
    return Mechanism(kind, share, text, sure=kinds > 1)


_WORDS: Final = {
    "experts": "kernels of experts",
    "attention": "kernels of attention",
    "matrix_products": "matrix products",
    _OTHER: "kernels that move memory",
}


@dataclass(frozen=True)
class Surplus:
    """What a rank runs more often than its peers, by name, and the time that it takes, ns a step."""

    more: Mapping[
        str, tuple[float, float]
    ]  # how often a step on the rank and on its peers, the costliest name first
    ns: float


def surplus(rank: Features, peers: Sequence[Features]) -> Surplus:
    """Return what a rank runs more often than the median of its peers; its time has its share of the gaps.

    Where the rank runs less of other names, as of a kernel that another library replaces, as many pieces are no
    additional work.
    """
    names = sorted({name for features in (rank, *peers) for name in features.work})
    mine = [rank.work.get(name, NO_WORK) for name in names]
    count: F64 = np.array([work.count for work in mine])
    usual: F64 = np.array([np.median([p.work.get(name, NO_WORK).count for p in peers]) for name in names])
    added = np.maximum(count - usual, 0.0)
    left = max(float((count - usual).sum()), 0.0) / max(float(added.sum()), 1e-9)
    if left == 0:
        return Surplus({}, 0.0)
    each = added * (np.array([work.each for work in mine]) + rank.gap / float(count.sum()))
    order = np.argsort(-each, kind="stable")
    more = {names[i]: (float(count[i]), float(usual[i])) for i in order.tolist() if added[i]}
    return Surplus(more, left * float(each.sum()))


def of_replaced(rank: Features, peers: Sequence[Features]) -> list[Mechanism]:
    """Return the mechanism of kernels that the rank alone runs for longer than its peers run others in their place.

    Nothing where these explain less than most of its compute beyond theirs.
    """
    theirs = {name for peer in peers for name in peer.work}
    own = {name: work.count * work.each for name, work in rank.work.items() if name not in theirs}
    others = {
        name: float(
            np.median([p.work.get(name, NO_WORK).count * p.work.get(name, NO_WORK).each for p in peers])
        )
        for name in sorted(theirs - set(rank.work))
    }
    excess = rank.busy - float(np.median([p.busy for p in peers]))
    over = sum(own.values()) - sum(others.values())
    if not own or not others or excess <= 0 or over < NAMED_SHARE * excess:
        return []
    mine, their = (max(found, key=lambda name: (found[name], name)) for found in (own, others))
    text = f"it runs {mine} for {ms(own[mine]):.2f} ms a step, and its peers {their} for {ms(others[their]):.2f} ms"
    return [Mechanism("one_kernel", min(over / excess, 1.0), text)]


def of_products(mine: float, peers: float, busy_ns: float, excess_ns: float) -> list[Mechanism]:
    """Return the mechanism of larger products: a rank computes `mine` FLOPs a step and its peers `peers`.

    busy_ns, excess_ns: compute of the peers, and own time of the rank beyond theirs, ns a step. Nothing where the rank
    computes no more than its peers.
    """
    if not mine > peers > 0 or excess_ns <= 0:
        return []
    share = min((mine / peers - 1.0) * busy_ns / excess_ns, 1.0)
    text = f"its products have {mine / peers:.3g} times the FLOPs of its peers' ({mine:.3g} a step, theirs {peers:.3g})"
    return [Mechanism(MORE_WORK.name, share, text)]


def of_work(found: Surplus, excess_ns: float) -> list[Mechanism]:
    """Return the mechanism of additional work with its share of an excess, ns a step; nothing where that is little."""
    if not found.more or found.ns < LEAST_KIND * excess_ns or excess_ns <= 0:
        return []
    name, (mine, usual) = next(iter(found.more.items()))
    others = f", and more of {len(found.more) - 1} other names" if len(found.more) > 1 else ""
    text = f"it runs {name} {mine:.3g} times a step and its peers {usual:.3g} times{others}"
    return [Mechanism(MORE_WORK.name, min(found.ns / excess_ns, 1.0), text)]


def named(found: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Return the mechanisms that explain most; `sure` remains where one explains most of it and no other half of it."""
    rivals = [max((o.share for o in found if o is not m), default=0.0) for m in found]
    result = [
        replace(m, sure=m.sure and m.share >= NAMED_SHARE and rival < RIVAL_SHARE)
        for m, rival in zip(found, rivals, strict=True)
    ]
    return tuple(sorted(result, key=lambda m: -m.share)[:MECHANISMS_LISTED])
