"""Why a suspect works longer than its peers, where the evidence is clear; else `unknown`.

The signs of `tracekit.causes` are checked in their order, and the first one that holds decides.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from tracekit.cause_entry import Comparison, Order, Quantity, Row
from tracekit.causes import ALWAYS, SIGNS
from tracekit.findings import Cause, Evidence
from tracekit.steps.features import Features
from tracekit.thresholds.slowrank import MINOR, STEP_PARTS, TIME_SLICE_NS
from tracekit.units import F64, ms


def explain(
    suspect: Features, peers: Sequence[Features], no_fault: float = 0.0, spared: float = 0.0
) -> tuple[Cause, tuple[Evidence, ...]]:
    """(cause of one rank's excess over its peers, the quantities that show it); see `explained`."""
    return explained(suspect, peers, no_fault, spared)[:2]


def explained(
    suspect: Features, peers: Sequence[Features], no_fault: float = 0.0, spared: float = 0.0
) -> tuple[Cause, tuple[Evidence, ...], Order | None]:
    """(cause of one rank's excess over its peers, the quantities that show it in ms a step, the sign that decided).

    no_fault: the part of its gaps beyond the peers' that its role or chance explains, ns a step. spared: the time that
    overlapping communication that waits for others adds to its peers' kernels but not to its own, ns a step.
    """
    if not peers:
        return "unknown", (Evidence("own time a step", ms(suspect.own), None, "ms", "own"),), None
    rank = replace(_beside(suspect, peers), no_fault=no_fault, spared=spared)
    evidence = _evidence(rank, ALWAYS)
    if rank.over("own") <= 0:
        return "unknown", evidence, None
    computes = rank.mine["busy"] > 0 or rank.peers["busy"] > 0
    for cause, sign in SIGNS:
        if sign.order == Order.SHAPE_OF_GAPS and not computes:
            continue  # only communication was recorded, so an apparent gap may hold any work
        if callable(sign.decides) and sign.decides(rank):
            return cause.name, evidence + _evidence(rank, sign.rows), sign.order
    return "unknown", evidence, None


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
    for quantity in get_args(Quantity):
        if quantity not in mine:
            mine[quantity] = getattr(suspect, quantity)
            theirs[quantity] = float(np.median([getattr(p, quantity) for p in peers]))
    gaps = (suspect.gap - theirs["gap"]) * steps
    pauses = float(np.maximum(few - usual, 0).sum())
    return Comparison(suspect.on_gpu, mine, theirs, gaps, pauses, float(turns[2] - usually[2]))


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
