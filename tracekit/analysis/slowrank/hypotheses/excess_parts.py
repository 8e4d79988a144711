"""Why a rank works longer than its peers: the parts of its excess, and what explains them.

The signs of `tracekit.causes` are checked in their order, and the first one that holds gives the likely cause, by which
verdicts are decided; else it is `unknown`. Beside it are the shares of the excess that causes explain, which decide
whether the answer names it (`analysis.slowrank.mechanisms`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, get_args

import numpy as np

from tracekit.cause_entry import Comparison, Order, Quantity, Row
from tracekit.causes import ALWAYS, CAUSES, SIGNS
from tracekit.findings import Cause, Evidence
from tracekit.findings.slowrank import CauseShare
from tracekit.steps.features import Features
from tracekit.thresholds.slowrank import MINOR, NAMED_SHARE, STEP_PARTS, TIME_SLICE_NS
from tracekit.units import F64, ms


class Explained(NamedTuple):
    """Why one rank works longer than its peers, as far as is known."""

    cause: Cause  # the likely one
    evidence: tuple[Evidence, ...]  # the quantities that show it, ms a step
    causes: tuple[CauseShare, ...] = ()  # all that explain some of the excess, the largest share first

    @property
    def named(self) -> Cause:
        """The likely cause if it explains most of the excess, or no shares are known; else `unknown`."""
        return self.cause if not self.causes or any(c.sure for c in self.causes) else "unknown"


def explain(
    suspect: Features,
    peers: Sequence[Features],
    no_fault: float = 0.0,
    spared: float = 0.0,
    launches_slowly: Callable[[], bool] = lambda: False,
) -> Explained:
    """Return why one rank works longer than its peers.

    no_fault: the part of its gaps beyond the peers' that its role or chance explains, ns a step. spared: the time that
    overlapping communication that waits for others adds to its peers' kernels but not to its own, ns a step.
    launches_slowly: whether its host needs longer between launches than its peers'; asked only for long gaps.
    """
    if not peers:
        return Explained("unknown", (Evidence("own time a step", ms(suspect.own), None, "ms", "own"),))
    compared = _beside(suspect, peers)
    rank = replace(compared, no_fault=no_fault, spared=spared, launches_slowly=cache(launches_slowly))
    evidence = _evidence(rank, ALWAYS)
    if rank.over("own") <= 0:
        return Explained("unknown", evidence)
    computes = rank.mine["busy"] > 0 or rank.peers["busy"] > 0
    for cause, sign in SIGNS:
        if sign.order == Order.SHAPE_OF_GAPS and not computes:
            continue  # only communication was recorded, so an apparent gap may hold any work
        if callable(sign.decides) and sign.decides(rank):
            return Explained(cause.name, evidence + _evidence(rank, sign.rows), _shares(rank, cause.name))
    return Explained("unknown", evidence, _shares(rank, "unknown") if computes else ())


def _shares(rank: Comparison, likely: Cause) -> tuple[CauseShare, ...]:
    """The causes that explain some of the excess of a rank, the largest share first; only the `likely` one is sure."""
    parts = rank.parts
    found = ((entry.name, entry.share(parts)) for entry in CAUSES.values())
    causes = (
        CauseShare(name, share, name == likely and share >= NAMED_SHARE) for name, share in found if share
    )
    return tuple(sorted(causes, key=lambda c: -c.share))


def _evidence(rank: Comparison, rows: Sequence[Row]) -> tuple[Evidence, ...]:
    device = "GPU" if rank.on_gpu else "CPU"
    return tuple(
        Evidence(row.what.format(device=device), ms(rank.mine[q]), ms(rank.peers[q]), "ms", q)
        for row in rows
        if (q := row.quantity) is not None
        and (row.least_share is None or rank.over(q) > row.least_share * rank.over("own"))
    )


def _beside(suspect: Features, peers: Sequence[Features]) -> Comparison:
    """The comparison of `suspect` with the medians of `peers`.

    Long gaps are compared one by one, longest with longest, because a busy machine gives every rank a few of them.
    """
    steps = suspect.gaps.sum() / suspect.gap if suspect.gap else 1.0
    few = suspect.gaps[: max(1, round(STEP_PARTS * steps))]
    usual = _usual_gaps(peers, len(few))
    mine: dict[Quantity, float] = {"longest_gap": float(suspect.gaps[0]) if len(suspect.gaps) else 0.0}
    theirs: dict[Quantity, float] = {"longest_gap": float(usual[0]) if len(usual) else 0.0}
    names = _short_names(peers)
    turns = _over_names(suspect, names)
    usually: F64 = np.median([_over_names(peer, names) for peer in peers], axis=0)
    mine |= {"short": turns[0], "quickest": turns[1]}
    theirs |= {"short": float(usually[0]), "quickest": float(usually[1])}
    mine["typical"], theirs["typical"] = _typical(suspect, peers)
    for quantity in get_args(Quantity):
        if quantity not in mine:
            mine[quantity] = getattr(suspect, quantity)
            theirs[quantity] = float(np.median([getattr(p, quantity) for p in peers]))
    gaps = float((suspect.gap - theirs["gap"]) * steps)
    pauses = float(np.maximum(few - usual, 0).sum())
    return Comparison(suspect.on_gpu, mine, theirs, gaps, pauses, float(turns[2] - usually[2]))


def _typical(suspect: Features, peers: Sequence[Features]) -> tuple[float, float]:
    """The operators of `suspect` as long as their medians show, and of its peers as they were; ns a step.

    The median of each name is compared with the peers' median of it, and the ratio counts by the time of that name: a
    name may hold many short operators and a few long ones that take most of its time.
    """
    mine = usual = 0.0
    for name in sorted({name for rank in (suspect, *peers) for name in rank.operators}):
        own, some = (
            suspect.operators.get(name),
            [(p.operators[name], p.steps) for p in peers if name in p.operators],
        )
        if 2 * len(some) > len(peers):
            usual += float(np.median([o.total / steps for o, steps in some]))
            each, median = np.median([(o.total / o.count, o.median) for o, _ in some], axis=0).tolist()
            mine += own.count * each * own.median / max(median, 1.0) / suspect.steps if own else 0.0
        elif own is not None:
            mine += own.total / suspect.steps  # work that its peers lack
    return mine, usual


def _short_names(peers: Sequence[Features]) -> list[str]:
    """The names of operators that on the peers take far less than a time slice of the scheduler."""
    shared = set.intersection(*(set(peer.operators) for peer in peers))
    return sorted(
        name
        for name in shared
        if np.median([peer.operators[name].median for peer in peers]) < MINOR * TIME_SLICE_NS
    )


def _over_names(rank: Features, names: Sequence[str]) -> tuple[float, float, float]:
    """(time of the operators of `names`, the same if each took the shortest of its name, interrupted ones) a step."""
    some = [rank.operators[name] for name in names if name in rank.operators]
    total, quickest = sum(o.total for o in some), sum(o.quickest for o in some)
    return total / rank.steps, quickest / rank.steps, sum(o.interrupted for o in some) / rank.steps


def _usual_gaps(peers: Sequence[Features], count: int) -> F64:
    """The median over the peers of their longest gap, their second longest, and so on up to `count`; ns."""
    longest = np.zeros((len(peers), count))
    for row, peer in zip(longest, peers, strict=True):
        own = peer.gaps[:count]
        row[: len(own)] = own
    return np.median(longest, axis=0)
