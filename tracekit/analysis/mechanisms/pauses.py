"""Pauses of a host without any event: a process that is stopped, or Python that runs between operators.

An operator of PyTorch and a call of the runtime run no Python. A stop strikes at any moment, also within such calls;
the garbage collector, the interpreter's lock held by another thread, and code of the program come between them. So a
stop is excluded by pauses that avoid calls which fill most of the host's time, and the others by pauses within calls.
Nothing without a span separates the others: none of them is sure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.mechanisms.calls import Calls
from tracekit.findings import Mechanism
from tracekit.intervals import Intervals
from tracekit.thresholds.slowrank import (
    CHANCE,
    NAMED_SHARE,
    NO_ACCIDENT,
    QUOTA_CHANCE,
    QUOTA_PERIOD_NS,
)
from tracekit.units import F64, I64, Mask, ms

_LONGER: Final = (2, 3, 5, 7)
"""Periods of timers, in those of a quota: what is at one phase of up to ten periods is so of one of these as well."""


@dataclass(frozen=True)
class Pauses:
    """Where pauses lie: lengths (ns), whether within native calls, and where in the program the others are."""

    lasted: I64
    within: Mask
    places: I64  # native calls since the one that marks a turn of the program's loop
    after: tuple[str, ...]  # the native call that began last before each

    @property
    def most(self) -> Mask:
        """The longest pauses that make up NAMED_SHARE of all: short waits for a core strike within calls as well."""
        order = np.argsort(-self.lasted, kind="stable")
        made = np.cumsum(self.lasted[order])
        kept = np.zeros(len(order), bool)
        kept[order[: int(np.searchsorted(made, NAMED_SHARE * made[-1])) + 1]] = True
        return kept

    def time(self, rows: Mask) -> float:
        """Return the length of some of the pauses together, ns."""
        return float(self.lasted[rows].sum())

    def recurring(self) -> Mask:
        """Return the pauses at the place where most of those between calls lie; none below NO_ACCIDENT."""
        kept = self.places[self.most & ~self.within]
        place, times = Counter(kept.tolist()).most_common(1)[0] if len(kept) else (0, 0)
        return np.asarray(~self.within & (self.places == place) & (times >= NO_ACCIDENT), bool)

    def stop_is_excluded(self, busy: float) -> bool:
        """Whether pauses at random moments would lie within native calls more often; those fill `busy` of the time."""
        from scipy.special import bdtr  # only a paused host pays a third of a second for the import

        most = self.most
        return float(bdtr(int(self.within[most].sum()), int(most.sum()), busy)) < CHANCE


def of_pauses(
    gaps: Intervals, threads: Sequence[Calls], each: Intervals, active_ns: float, whole_ns: float
) -> list[Mechanism]:
    """Return what may have paused a host in `gaps` without an event, with shares of `whole_ns`.

    each: the steps. active_ns: the host's time in them without its waits, with the gaps.
    """
    if not len(gaps[0]):
        return []
    if said := quota(gaps, each):
        return [Mechanism("cpu_quota", _length(gaps) / whole_ns, said)]
    found = _located(gaps, threads, len(each[0]))
    native = sum(float(c.own[c.native & _begins_in(c.start, each)].sum()) for c in threads)
    busy = max(native - found.time(found.within), 0.0) / max(active_ns - _length(gaps), 1.0)
    return _explained(found, min(busy, 1.0), whole_ns)


def _explained(found: Pauses, busy: float, whole_ns: float) -> list[Mechanism]:
    """What may explain the pauses: each with the time that it can explain."""
    between, recurs, most = ~found.within, found.recurring(), found.most
    struck, many = int((found.within & most).sum()), int(most.sum())
    low, high = (f"{ms(float(end)):.1f}" for end in (found.lasted[most].min(), found.lasted[most].max()))
    said = f"of {many} long pauses ({low} to {high} ms) without an event of any thread, "
    within = (
        f"{said}{struck} lie within operators (aten::), which run no Python and fill {busy:.0%} of its time"
    )
    apart = len(set(found.places[between & most].tolist()))
    places = f"{apart} place{'' if apart == 1 else 's'} of the program"
    python = f"{said}{many - struck} lie outside operators (aten::), at {places}"
    after = next((name for name, again in zip(found.after, recurs.tolist(), strict=True) if again), "")
    code = f"{said}{int((recurs & most).sum())} lie at one place of the program, after {after}"
    stops = found.time(found.within if found.stop_is_excluded(busy) else ~recurs)
    shares = (
        ("host_code", found.time(recurs), code, False),
        ("process_stopped", stops, within, struck >= NO_ACCIDENT),
        ("garbage_collection", found.time(between), python, False),
        ("lock", found.time(between & ~recurs), python, False),
    )
    return [Mechanism(name, ns / whole_ns, text, sure) for name, ns, text, sure in shares]


def _located(gaps: Intervals, threads: Sequence[Calls], steps: int) -> Pauses:
    """Where each gap lies among the calls of the threads that launch; the first of them runs the program's loop."""
    within = np.zeros(len(gaps[0]), bool)
    for row, (begin, end) in enumerate(zip(*(side.tolist() for side in gaps), strict=True)):
        within[row] = any((at := c.around(begin, end)) >= 0 and bool(c.native[at]) for c in threads)
    if not threads:
        return Pauses(gaps[1] - gaps[0], within, np.arange(len(within)), ("",) * len(within))
    begins, names = (column[threads[0].native] for column in (threads[0].start, threads[0].name))
    last = np.searchsorted(begins, gaps[0]) - 1
    after = tuple(str(names[at]) if at >= 0 else "its begin" for at in last.tolist())
    return Pauses(gaps[1] - gaps[0], within, threads[0].places(gaps[0], steps), after)


def _begins_in(start: I64, each: Intervals) -> Mask:
    at = np.searchsorted(each[0], start, "right") - 1
    return np.asarray((at >= 0) & (start < each[1][np.maximum(at, 0)]), bool)


def quota(gaps: Intervals, each: Intervals) -> str:
    """Return the words on pauses that end at one phase of a quota's period, and anywhere in a step; empty for others.

    All threads of a group stop once its quota is spent, at any moment, and go on at the next period. Pauses at one
    place of steps that last a multiple of the period are at one phase as well, and those of a timer with a longer
    period; `each` are the steps. Waits for a core end whenever another process leaves it.
    """
    ends = gaps[1]
    if not len(ends) or int((ends - gaps[0]).max()) > QUOTA_PERIOD_NS:
        return ""
    at = np.maximum(np.searchsorted(each[0], ends, "right") - 1, 0)
    others = [(ends - each[0][at]) / np.maximum(each[1] - each[0], 1)[at]]
    others += [ends / (QUOTA_PERIOD_NS * many) % 1.0 for many in _LONGER]
    limit = QUOTA_CHANCE / len(others)
    if _chance(ends / QUOTA_PERIOD_NS % 1.0) <= limit < min(map(_chance, others)):
        return f"{len(ends)} pauses without an event of any thread end at one phase of a period of 100 ms"
    return ""


def _chance(phase: F64) -> float:
    """The probability that uniform phases (0 to 1) lie together as closely as these, by Rayleigh's test."""
    turned = 2 * np.pi * phase
    return float(np.exp(-(np.hypot(np.cos(turned).sum(), np.sin(turned).sum()) ** 2) / max(len(phase), 1)))


def _length(gaps: Intervals) -> float:
    return float((gaps[1] - gaps[0]).sum())
