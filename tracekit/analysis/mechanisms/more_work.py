"""Work that a rank runs and its peers do not: evaluation, averaging of weights, statistics for a log, a larger batch.

Which work a rank runs is known exactly, also where a busy machine makes every length uncertain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.findings import Mechanism
from tracekit.mechanisms import MORE_WORK
from tracekit.steps.features import Features, Work
from tracekit.units import F64

_NONE: Final = Work(0.0, 0.0)


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
    mine = [rank.work.get(name, _NONE) for name in names]
    count: F64 = np.array([work.count for work in mine])
    usual: F64 = np.array([np.median([p.work.get(name, _NONE).count for p in peers]) for name in names])
    added = np.maximum(count - usual, 0.0)
    left = max(float((count - usual).sum()), 0.0) / max(float(added.sum()), 1e-9)
    if left == 0:
        return Surplus({}, 0.0)
    each = added * (np.array([work.each for work in mine]) + rank.gap / float(count.sum()))
    order = np.argsort(-each, kind="stable")
    more = {names[i]: (float(count[i]), float(usual[i])) for i in order.tolist() if added[i]}
    return Surplus(more, left * float(each.sum()))


def of_products(mine: float, peers: float, busy_ns: float, excess_ns: float) -> list[Mechanism]:
    """Return the mechanism of larger products, of which a rank computes `mine` FLOPs a step and its peers `peers`.

    busy_ns, excess_ns: compute of the peers, and own time of the rank beyond theirs, ns a step. Nothing where the rank
    computes no more than its peers.
    """
    if not mine > peers > 0 or excess_ns <= 0:
        return []
    share = min((mine / peers - 1.0) * busy_ns / excess_ns, 1.0)
    text = f"its products have {mine / peers:.3g} times the FLOPs of its peers' ({mine:.3g} a step, theirs {peers:.3g})"
    return [Mechanism(MORE_WORK.name, share, text)]


def of_work(found: Surplus, excess_ns: float) -> list[Mechanism]:
    """Return the mechanism of additional work with its share of an excess, ns a step; nothing without such work."""
    if not found.more or excess_ns <= 0:
        return []
    name, (mine, usual) = next(iter(found.more.items()))
    others = f", and more of {len(found.more) - 1} other names" if len(found.more) > 1 else ""
    text = f"it runs {name} {mine:.3g} times a step and its peers {usual:.3g} times{others}"
    return [Mechanism(MORE_WORK.name, min(found.ns / excess_ns, 1.0), text)]
