"""Sends and receives of one rank, out of the entries of its dump: the outstanding ones, and the last of all.

Part of `entries`.
"""

from collections import Counter
from typing import Any

import numpy as np

from tracekit.dumps.fields import integer, p2p_ends
from tracekit.dumps.lately import ended_late
from tracekit.dumps.rank_dump import DONE, P2P, STARTED, Messages, RankDump
from tracekit.dumps.signatures import Signatures, Stacks
from tracekit.dumps.tail import Coalesced
from tracekit.thresholds.dumps import MAX_MESSAGE_NAME, MAX_OPEN_CALLS, MAX_OPEN_MESSAGES, TAIL_CALLS

Row = tuple[int, int, int, str, Any]
"""Sequence number, group, state, name and entry of one send or receive."""
_Name = tuple[int, str]
"""Group and name: messages of one name take the same channel."""


def fill_messages(
    result: RankDump, rows: list[Row], coalesced: Coalesced, signatures: Signatures, stacks: Stacks
) -> None:
    """Fill in the outstanding messages of a dump, and its last messages from before the first outstanding one.

    rows: all sends and receives in the order of the ring.
    """
    rows = rows if result.gapless or result.finished else _with_done_batches(rows, coalesced)
    result.timed = result.timed or any(row[2] == STARTED for row in rows)
    finished: dict[_Name, int] = {}
    for seq, group, state, text, _ in rows:
        result.groups[group].has_p2p = True
        if coalesced.get((group, True, seq), state) == DONE:
            finished[group, text] = max(seq, finished.get((group, text), -1))
    counts: dict[_Name, int] = {}
    late = _ended_late(result, rows, coalesced)
    first = len(rows)
    for place, (seq, group, state, text, entry) in enumerate(rows):
        now = coalesced.get((group, True, seq), state)
        nth = counts[group, text] = counts.get((group, text), -1) + 1
        # one channel completes in order: a later message that is done vouches for an earlier one
        aborted = (group, seq) in late
        if not aborted and (now == DONE or finished.get((group, text), -1) > seq):
            continue
        ends = p2p_ends(text)
        kept = result.aborted if aborted else result.p2p
        if ends is not None and len(kept) < MAX_OPEN_MESSAGES:
            first = min(first, place)
            send, me, peer = ends
            created = integer(entry.get("time_created_ns")) or 0
            call = signatures.one(entry)
            name, stack = text[:MAX_MESSAGE_NAME], stacks.of(entry)
            now = STARTED if aborted else now
            kept.append(P2P(group, peer, me, send, now, seq, name, created, call, nth, stack))
    begin = max(first - TAIL_CALLS, len(rows) - MAX_OPEN_CALLS, 0)
    result.messages = _log(rows[begin:], counts, signatures)


def _ended_late(result: RankDump, rows: list[Row], coalesced: Coalesced) -> set[tuple[int, int]]:
    """Return group and number of the messages that a time-out may have ended; none of a group with outstanding ones.

    For a batch the call that ends it decides.
    """
    late = {
        (group, seq)
        for seq, group, state, _, entry in rows[-MAX_OPEN_MESSAGES:]
        if state == DONE and ended_late(entry, result.last_created)
    }
    open_ = {
        group for seq, group, state, _, _ in rows if late and coalesced.get((group, True, seq), state) != DONE
    }
    return {(group, seq) for group, seq in late if group not in open_}


def _with_done_batches(rows: list[Row], coalesced: Coalesced) -> list[Row]:
    """Mark, in a dump of outstanding calls alone, the parts of batches that are done.

    Parts of a batch never change their state, so that such a dump holds all of them, and of the batch itself, which
    follows its parts, only what is not done. A group sends in batches where parts share a number.
    """
    parts = Counter((group, seq) for seq, group, _, text, _ in rows if p2p_ends(text))
    batched = {group for (group, _), count in parts.items() if count > 1}
    return [
        (seq, group, DONE if group in batched and (group, True, seq) not in coalesced else state, text, entry)
        for seq, group, state, text, entry in rows
    ]


def _log(rows: list[Row], counts: dict[_Name, int], signatures: Signatures) -> Messages:
    """Give these last messages as columns; `counts` holds the position of the last message of each name."""
    nth = []
    for _, group, _, text, _ in reversed(rows):
        nth.append(counts[group, text])
        counts[group, text] -= 1
    return Messages(
        np.array([r[1] for r in rows], np.int64),
        np.array([r[0] for r in rows], np.int64),
        np.array(nth[::-1], np.int64),
        np.array([integer(r[4].get("time_created_ns")) or 0 for r in rows], np.int64),
        tuple(r[3][:MAX_MESSAGE_NAME] for r in rows),
        tuple(signatures.one(r[4]) for r in rows),
    )
