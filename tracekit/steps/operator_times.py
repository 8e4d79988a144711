"""How long the operators of a CPU take beside the usual and the shortest one of their name.

A slow processor lengthens every operator by one factor. A process that shares its cores waits for its turn: some short
operators then take a time slice of the scheduler longer, and the others are as short as ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.intervals import Intervals
from tracekit.rank_events.event_columns import ints, matches
from tracekit.steps.compute_time import inside_each
from tracekit.thresholds.slowrank import MAJORITY, TIME_SLICE_NS
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class Operators:
    """The innermost operators of one name in all steps; times in ns."""

    total: float
    median: float
    quickest: float  # their time if each took as long as the shortest
    interrupted: int  # those that took more than half of a time slice longer than the shortest


@dataclass(frozen=True)
class OperatorTimes:
    """The operators of all steps."""

    typical: float = 0.0  # outermost operators, if each took the median of its name in its step, ns
    by_name: Mapping[str, Operators] = field(default_factory=dict)


def operator_times(events: pa.Table, operators: Mask, each: Intervals, exposed: Intervals) -> OperatorTimes:
    """Return the times of the `operators` (rows of `events`) in the steps `each`, which are ascending.

    Time within `exposed` communication does not count; an innermost operator that has any is left out.
    """
    start = ints(events, "ts", 0)[operators]
    end = start + ints(events, "dur", 0)[operators]
    codes: dict[str, int] = {}
    names = matches(events, "name", lambda name: codes.setdefault(name or "", len(codes))).astype(np.int64)[
        operators
    ]
    order = np.lexsort((-end, start))
    start, end, names = start[order], end[order], names[order]
    step = np.searchsorted(each[0], start, "right") - 1
    inside = step >= 0
    inside[inside] &= start[inside] < each[1][step[inside]]
    outer = inside & (start >= np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]]))
    lasted = end - start - np.array(inside_each(exposed, (start, end)))
    kinds = step * len(codes) + names
    inner = inside & (np.append(start[1:], np.iinfo(np.int64).max) >= end) & (lasted == end - start)
    if not inner.any():
        return OperatorTimes(_at_median(lasted[outer], kinds[outer]))
    return OperatorTimes(
        _at_median(lasted[outer], kinds[outer]), _by_name(lasted[inner], names[inner], list(codes))
    )


def _at_median(lasted: F64, kind: I64) -> float:
    """Return the time of all operators if each took the median of its kind, ns."""
    first, count, lasted = _by_kind(lasted, kind)
    return float((count * (lasted[first + (count - 1) // 2] + lasted[first + count // 2]) / 2).sum())


def _by_name(lasted: F64, name: I64, words: list[str]) -> dict[str, Operators]:
    """Return the operators by name; `words` are the names by number."""
    first, _, lasted = _by_kind(lasted, name)
    found = {}
    for number, some in zip(np.unique(name).tolist(), np.split(lasted, first[1:]), strict=True):
        longer = int((some - some[0] > MAJORITY * TIME_SLICE_NS).sum())
        found[words[number]] = Operators(
            float(some.sum()), float(some[len(some) // 2]), float(some[0]) * len(some), longer
        )
    return found


def _by_kind(lasted: F64, kind: I64) -> tuple[I64, I64, F64]:
    """(where each kind begins, how many it has, the times sorted by kind and length)."""
    order = np.lexsort((lasted, kind))
    first = np.flatnonzero(np.diff(kind[order], prepend=-1))
    return first, np.diff(first, append=len(kind)), lasted[order]
