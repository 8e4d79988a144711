"""Which numbers of calls fit into the ring that holds them: one beyond it is damage, and its entry is dropped.

Every call takes a record id, so between two calls of a group the sequence number rises by no more than the record id.
A job may count as far as it likes; a single number that leaps, or that a later call falls behind, is no call. Part of
`entries`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter, lt
from typing import Any, TypeVar

from tracekit.dumps.fields import integer
from tracekit.thresholds.dumps import MAX_INTEGER, MAX_LEAP

Row = TypeVar("Row", bound=tuple[Any, ...])
"""Sequence number first; what follows is not looked at."""


def fitting(rows: list[Row], span: int) -> list[Row]:
    """Return the rows of one group, in their order, with numbers that never fall and lie within `span` and a leap.

    span: record ids that the ring covers. If several sets fit, the largest is taken, and among these the lowest.
    """
    ordered = sorted(row[0] for row in rows)
    reach = span + MAX_LEAP
    if ordered[-1] - ordered[0] <= reach:
        return _never_falling(rows)
    lowest, most, end = ordered[0], 0, 0
    for begin, low in enumerate(ordered):
        while end < len(ordered) and ordered[end] - low <= reach:
            end += 1
        if end - begin > most:
            lowest, most = low, end - begin
    return _never_falling([row for row in rows if lowest <= row[0] <= lowest + reach])


def _never_falling(rows: list[Row]) -> list[Row]:
    """Return the longest series of rows with numbers that never fall (patience sorting)."""
    if all(before[0] <= after[0] for before, after in pairwise(rows)):
        return rows
    ends: list[int] = []  # the least number at which a sequence of each length ends
    lengths = []
    for row in rows:
        at = bisect_right(ends, row[0])
        ends[at : at + 1] = [row[0]]
        lengths.append(at)
    kept, want, most = [], len(ends) - 1, ends[-1]
    for row, length in zip(reversed(rows), reversed(lengths), strict=True):
        if length == want and row[0] <= most:
            kept.append(row)
            want, most = length - 1, row[0]
    return kept[::-1]


def span_of(entries: Sequence[Any]) -> int:
    """Return how many record ids a ring covers, or how many entries it has where their ids are damaged."""
    ids = [integer(e.get("record_id")) if isinstance(e, dict) else None for e in (entries[0], entries[-1])]
    count = ids[1] - ids[0] + 1 if ids[0] is not None and ids[1] is not None else 0
    return count if len(entries) <= count <= len(entries) + MAX_LEAP else len(entries)


def without_gaps(entries: Sequence[Any]) -> bool:
    """Return whether no id between the first and the last entry is missing."""
    ids = [
        integer(e.get("record_id")) if isinstance(e, dict) else None for e in (*entries[:1], *entries[-1:])
    ]
    return len(ids) > 1 and ids[0] is not None and ids[1] is not None and ids[1] - ids[0] + 1 == len(entries)


def whole_since(entries: Sequence[Any]) -> int:
    """Return the time of issue (ns) from which on no entry is missing: 0 for all, MAX_INTEGER if unknown."""
    steps = [after - before for before, after in pairwise(_ids(entries))]
    if len(steps) + 1 != len(entries) or (steps and min(steps) < 1):
        return MAX_INTEGER
    last = max((place for place, step in enumerate(steps, 1) if step > 1), default=0)
    return (integer(entries[last].get("time_created_ns")) or MAX_INTEGER) if last else 0


def in_order(entries: Sequence[Any]) -> Sequence[Any]:
    """Return the entries in the order of their ids if these follow one another, else unchanged."""
    ids = _ids(entries)
    if not ids or all(map(lt, ids, ids[1:])):
        return entries
    whole = max(ids) - min(ids) + 1 == len(set(ids)) == len(ids)
    return sorted(entries, key=itemgetter("record_id")) if whole else entries


def last_gap(entries: Sequence[Any]) -> int:
    """Return the place of the last entry after a gap; -1 without a gap, or if that is unknown.

    A ring that holds finished calls holds all calls, so that their ids follow one another.
    """
    steps = [after - before for before, after in pairwise(_ids(entries))]
    if not steps or min(steps) < 1 or max(steps) == 1 or not any(e.get("retired") is True for e in entries):
        return -1
    return max(place for place, step in enumerate(steps, 1) if step > 1)


def _ids(entries: Sequence[Any]) -> list[int]:
    """Return the record ids of all entries; none where one of them has none."""
    ids = [e.get("record_id") if isinstance(e, dict) else None for e in entries]
    return [i for i in ids if i is not None] if all(type(i) is int for i in ids) else []
