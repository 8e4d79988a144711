"""Stragglers in dumps with timing: the members of a collective leave it together, so the shortest call came last.

Needs no clocks. Stragglers are listed beside the verdict and are never part of it: a slow rank is no hang.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.hang.agreement import synchronising
from tracekit.analysis.hang.frontier import Group
from tracekit.dumps.rank_dump import Float64
from tracekit.findings import Quality
from tracekit.thresholds.hang import STRAGGLER_CALLS, STRAGGLER_CHANCE, STRAGGLER_SHARE


@dataclass(slots=True)
class _Tally:
    """Timed collectives of one rank, summed over its groups; times in ms."""

    calls: int = 0
    last: int = 0  # of these, calls to which it came last
    expected: float = 0.0  # how often chance would make it last
    caused: float = 0.0  # time that peers waited for it
    total: float = 0.0  # time that anybody was waited for in its calls
    suffered: float = 0.0  # time that it waited itself


def stragglers(groups: list[Group]) -> list[Quality]:
    """List every rank that came last in timed collectives often enough to matter, worst first."""
    tallies: dict[int, _Tally] = {}
    for group in groups:
        _count(group, tallies)
    found = []
    for rank in sorted((r for r, t in tallies.items() if t.last), key=lambda r: (-tallies[r].caused, r)):
        tally = tallies[rank]
        # a rank that waited elsewhere as long as others waited for it has only passed the delay on
        own = tally.caused - tally.suffered
        enough = tally.calls >= STRAGGLER_CALLS and own > STRAGGLER_SHARE * tally.total > 0
        if enough and _by_chance(tally) * len(tallies) < STRAGGLER_CHANCE:
            detail = f"rank {rank} came last in {tally.last} of {tally.calls} timed collectives"
            detail += f"; peers waited {tally.caused:.1f} ms"
            found.append(Quality("late_rank", count=tally.last, detail=detail))
    return found


def _by_chance(tally: _Tally) -> float:
    """How probable it is that chance makes a rank last so often."""
    from scipy.stats import binom  # takes half a second to import, which few dumps need

    return float(binom.sf(tally.last - 1, tally.calls, tally.expected / tally.calls))


def _count(group: Group, tallies: dict[int, _Tally]) -> None:
    """Add the collectives of one group that all members have timed."""
    rows = [f for f in group.frontiers.values() if np.isfinite(f.tail.duration).any()]
    if len(rows) < max(2, len(group.ranks)):
        return
    common = set.intersection(*({int(s) for s in f.tail.seq[np.isfinite(f.tail.duration)]} for f in rows))
    for seq in sorted(common):
        if not synchronising(rows[0].call(seq)):
            continue
        times = np.array([f.tail.duration[np.searchsorted(f.tail.seq, seq)] for f in rows])
        waited = _waited(times)
        for frontier, time in zip(rows, times.tolist(), strict=True):
            tally = tallies.setdefault(frontier.rank, _Tally())
            tally.calls += 1
            tally.total += waited
            tally.expected += 1 / len(rows)
            tally.suffered += time - float(times.min())
        last = tallies[rows[int(times.argmin())].rank]
        last.caused += waited
        last.last += 1


def _waited(times: Float64) -> float:
    """Give how long members waited for the last one: the other of two, the median of more (ms)."""
    typical = times.max() if len(times) == 2 else np.median(times)
    return float(typical - times.min())
