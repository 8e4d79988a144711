"""The calls of one rank on one group, out of the entries of its dump: which numbers fit, and the last calls.

Every call takes a record id, so between two calls of a group the sequence number rises by no more than the record id.
A job may count as far as it likes; a single number that leaps, or that a later call falls behind, is no call: it is
damage, and its entry is dropped. Part of `entries`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise, takewhile
from operator import itemgetter, lt
from typing import Any, TypeVar

import numpy as np

from tracekit.dumps.fields import integer, number
from tracekit.dumps.lately import ended_late
from tracekit.dumps.rank_dump import DONE, GroupTail
from tracekit.dumps.signatures import Signatures, Stacks
from tracekit.thresholds.dumps import MAX_INTEGER, MAX_LEAP, MAX_OPEN_CALLS, MAX_PARTS, TAIL_CALLS

Numbered = TypeVar("Numbered", bound=tuple[Any, ...])
"""Sequence number first; what follows is not looked at."""


def fitting(rows: list[Numbered], span: int) -> list[Numbered]:
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


def _never_falling(rows: list[Numbered]) -> list[Numbered]:
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


Row = tuple[int, int, Any]
"""Sequence number, state and entry of one collective."""
Coalesced = dict[tuple[int, bool, int], int]
"""State of every coalesced call, by (group, p2p, sequence number)."""


def fill_tail(
    tail: GroupTail, rows: list[Row], signatures: Signatures, stacks: Stacks, last_issued: int
) -> bool:
    """Fill in the frontier and the last calls of a group; return whether any of these has a start time.

    rows: the group's collectives in the order of the ring. An operation made of several entries (coalesced) has
    several rows of one number. last_issued: when the rank issued its last call of any group (ns).
    """
    seqs = [r[0] for r in rows]
    rising = all(map(lt, seqs, seqs[1:]))
    if not rising:
        rows.sort(key=itemgetter(0))
        seqs = [r[0] for r in rows]
    tail.entry_enqueued = int(seqs[-1])
    tail.entry_completed = min((s for s, state, _ in rows if state != DONE), default=seqs[-1] + 1) - 1
    tail.entry_seen_done = seqs[0] <= tail.entry_completed
    first = bisect_right(seqs, tail.entry_completed)  # the first unfinished call
    first = max(first, len(seqs) - MAX_OPEN_CALLS)
    if rising:
        last = rows[max(first - TAIL_CALLS, 0) :]
        tail.calls = tuple([signatures.one(entry) for _, _, entry in last])
    else:
        last = _joined(tail, rows[max(first - MAX_PARTS * TAIL_CALLS, 0) :], signatures)
    tail.seq = np.array([k[0] for k in last], np.int64)
    tail.state = np.array([k[1] for k in last], np.int8)
    tail.created = np.array([integer(k[2].get("time_created_ns")) or 0 for k in last], np.int64)
    if tail.entry_completed == tail.entry_enqueued:  # an abort leaves nothing outstanding
        late = takewhile(lambda row: row[1] == DONE and ended_late(row[2], last_issued), reversed(last))
        tail.ended_late = min((seq for seq, _, _ in late), default=-1)
    if last and last[-1][2].get("frames"):
        tail.stacks = tuple([stacks.of(k[2]) for k in last])
    durations = [k[2].get("duration_ms") for k in last]
    if durations.count(None) < len(durations):
        tail.duration = np.array([number(d) for d in durations], np.float64)
    return any(r[2].get("time_discovered_started_ns") for r in last)


def _joined(tail: GroupTail, rows: list[Row], signatures: Signatures) -> list[Row]:
    """Join rows of one number into one call; give state of the first and entry of the last part of each call kept."""
    parts: dict[int, list[Row]] = {}
    for row in rows:
        parts.setdefault(row[0], []).append(row)
    done = sum(s <= tail.entry_completed for s in parts)
    kept = list(parts.values())[max(done - TAIL_CALLS, 0) :]
    tail.calls = tuple([signatures.of(tuple([r[2] for r in p])) for p in kept])
    return [(p[0][0], p[0][1], p[-1][2]) for p in kept]
