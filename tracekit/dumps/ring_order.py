"""Which numbers of calls fit into the ring that holds them: one beyond it is damage, and its entry is dropped.

Every call takes a record id, so between two calls of a group the sequence number rises by no more than the record id.
A job may count as far as it likes; a single number that leaps is no call. Part of `entries`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from tracekit.dumps.fields import integer
from tracekit.thresholds.dumps import MAX_LEAP

Row = TypeVar("Row", bound=tuple[Any, ...])
"""Sequence number first; what follows is not looked at."""


def fitting(rows: list[Row], span: int) -> list[Row]:
    """Return the rows of one group, in their order, whose numbers lie within `span` and a leap of each other.

    span: record ids that the ring covers. Where several sets fit, the largest is taken, and of those the lowest.
    """
    ordered = sorted(row[0] for row in rows)
    reach = span + MAX_LEAP
    if ordered[-1] - ordered[0] <= reach:
        return rows
    lowest, most, end = ordered[0], 0, 0
    for begin, low in enumerate(ordered):
        while end < len(ordered) and ordered[end] - low <= reach:
            end += 1
        if end - begin > most:
            lowest, most = low, end - begin
    return [row for row in rows if lowest <= row[0] <= lowest + reach]


def span_of(entries: Sequence[Any]) -> int:
    """Return how many record ids a ring covers, or how many entries it has where their ids are damaged."""
    ids = [integer(e.get("record_id")) if isinstance(e, dict) else None for e in (entries[0], entries[-1])]
    told = ids[1] - ids[0] + 1 if ids[0] is not None and ids[1] is not None else 0
    return told if len(entries) <= told <= len(entries) + MAX_LEAP else len(entries)
