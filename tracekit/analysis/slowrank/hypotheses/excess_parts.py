"""Why a rank works longer than its peers: the parts of its excess, and what explains them.

The signs of `tracekit.causes` are checked in their order, and the first one that holds gives the likely cause, by which
verdicts are decided; else it is `unknown`. Beside it are the shares of the excess that causes explain, which decide
whether the answer names it (`analysis.slowrank.mechanisms`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple, get_args

import numpy as np

from tracekit.analysis.slowrank.hypotheses.suspect_work import peers_of
from tracekit.case.case import Case
from tracekit.cause_entry import Comparison, Order, Quantity, Row, causes_by_share
from tracekit.causes import CAUSES, MEMORY, SIGNS
from tracekit.findings import Cause, Evidence, Suspect
from tracekit.findings.slowrank import CauseShare
from tracekit.steps.features import Features
from tracekit.thresholds.slowrank import (
    HOST_SILENT_NS,
    MAJORITY,
    MINOR,
    NEARLY_ALL,
    STEP_PARTS,
    TIME_SLICE_NS,
)
from tracekit.units import F64, ms

ALWAYS: Final = (
    Row("own time a step (not waiting for others)", "own"),
    Row("{device} compute a step", "busy"),
    Row("gaps without compute a step", "gap"),
)
"""Evidence of every slow rank; the rows of the sign that decided follow."""


class Explained(NamedTuple):
    """Why one rank works longer than its peers, as far as is known."""

    cause: Cause  # the likely one
    evidence: tuple[Evidence, ...]  # the quantities that show it, ms a step
    causes: tuple[CauseShare, ...] = ()  # the two that explain most of the excess, the larger share first

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
    under_quota: Callable[[], bool] = lambda: False,
) -> Explained:
    """Return why one rank works longer than its peers.

    no_fault: the part of its gaps beyond the peers' that its role or chance explains, ns a step. spared: the time that
    overlapping communication that waits for others adds to its peers' kernels but not to its own, ns a step.
    launches_slowly: whether its host needs longer between launches than its peers'; asked only for long gaps.
    under_quota: whether its pauses end as those of a quota of processor time do; asked only where it may take turns.
    """
    if not peers:
        return Explained("unknown", (Evidence("own time a step", ms(suspect.own), None, "ms", "own"),))
    rank = replace(_beside(suspect, peers), no_fault=no_fault, spared=spared)
    rank = replace(rank, launches_slowly=cache(launches_slowly), under_quota=cache(under_quota))
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
    """The two causes that explain most of the excess of a rank; only the `likely` one may be sure."""
    parts = rank.parts
    shares = {entry.name: entry.share(parts) for entry in CAUSES.values()}
    return causes_by_share(shares, likely, rank.spread / max(rank.over("own"), 1.0))


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
    Those beyond a time slice are all long if they make up the excess, however many: no single launch takes as long.
    """
    steps = suspect.gaps.sum() / suspect.gap if suspect.gap else 1.0
    few = suspect.gaps[: max(1, round(STEP_PARTS * steps))]
    usual = _usual_gaps(peers, len(few))
    long = suspect.gaps[suspect.gaps > TIME_SLICE_NS]
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
    of_long = float(np.maximum(long - _usual_gaps(peers, len(long)), 0).sum())
    pauses = max(pauses, of_long) if of_long >= NEARLY_ALL * gaps else pauses
    spread = float(np.median([abs(p.own - theirs["own"]) for p in peers]))
    interrupted = float(turns[2] - usually[2])
    return Comparison(suspect.on_gpu, mine, theirs, gaps, pauses, interrupted, spread=spread)


def _typical(suspect: Features, peers: Sequence[Features]) -> tuple[float, float]:
    """The operators of `suspect` as long as their medians show, and of its peers as they were; ns a step.

    The median of each name is compared with the peers' median of it, and the ratio counts by the time of that name: a
    name may hold many short operators and a few long ones that take most of its time.
    """
    mine = usual = 0.0
    for name in sorted({name for rank in (suspect, *peers) for name in rank.operators}):
        own = suspect.operators.get(name)
        some = [(p.operators[name], p.steps) for p in peers if name in p.operators]
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


def paused_hosts(case: Case, rows: Sequence[int]) -> dict[int, Cause]:
    """The ranks among `rows` with hosts that pause, or spend their time allocating memory, beyond other stages."""
    peers = peers_of(case, rows[0], rows, other_stages=True)
    found = {row: explain(mine, peers).cause for row in rows if peers and (mine := case.features(row))}
    return {row: cause for row, cause in found.items() if CAUSES[cause].pauses or cause == MEMORY}


# Gaps that may be the usual pace of hosts: they have a price only where hosts were recorded.
#
# Where hosts set the pace, the device of the last host is idle at every launch, while the other devices spin in
# collectives for it. Only gaps longer than a usual host needs between two launches prove a fault by themselves.


def may_be_pace(case: Case, suspect: Suspect) -> bool:
    """Whether the gaps of a suspect may be the pace of a usual host, and longer ones are less than half of its excess.

    No other host was recorded, and the step is no longer than hosts that launch every `HOST_SILENT_NS` make it. A late
    data loader is excluded. A replay beside recorded hosts shows what gaps cost.
    """
    row, cause = case.steps.row(suspect.rank), CAUSES[suspect.cause]
    if case.table is not None or not cause.on_host or not case.on_gpu(row) or set(case.hosts) - {row}:
        return False
    mine, peers = case.features(row), peers_of(case, row, (row,))
    if mine is None or not peers or cause.shown_by("loader") or mine.launches * HOST_SILENT_NS < case.step_ns:
        return False
    excess = mine.gap - float(np.median([p.gap for p in peers]))
    return _beyond_pace(mine) - float(np.median([_beyond_pace(p) for p in peers])) < MAJORITY * excess


def _beyond_pace(rank: Features) -> float:
    """The idle time of a device beyond what a usual host needs between launches, ns a step."""
    steps = rank.gaps.sum() / rank.gap if rank.gap else 1.0
    return float(np.maximum(rank.gaps - HOST_SILENT_NS, 0).sum() / steps)
