"""The last calls of one rank on one group, out of the entries of its dump. Part of `entries`."""

from bisect import bisect_right
from itertools import takewhile
from operator import itemgetter, lt
from typing import Any

import numpy as np

from tracekit.dumps.fields import integer, number
from tracekit.dumps.lately import ended_late
from tracekit.dumps.rank_dump import DONE, GroupTail
from tracekit.dumps.signatures import Signatures, Stacks
from tracekit.thresholds.dumps import MAX_OPEN_CALLS, MAX_PARTS, TAIL_CALLS

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
