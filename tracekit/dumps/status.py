"""`pg_status` of a dump: which group each row is of, and whether the calls in the ring agree with it.

Part of `entries`.
"""

from typing import Any

from tracekit.dumps.fields import integer
from tracekit.dumps.rank_dump import DONE, GroupTail, RankDump
from tracekit.dumps.tail import Row
from tracekit.thresholds.dumps import MAX_GROUPS, MAX_STATUS_DIGITS


def fill_status(result: RankDump, status: Any, ids: dict[int, int], index: dict[str, int]) -> None:
    """Map `pg_status`, keyed by local pg_id, to groups: by entries, failing them by order of creation.

    Groups are numbered in the order in which they are made, and so are names and local ids. Where both lists are
    complete and numeric they therefore pair up in order, unless an entry contradicts that or a row is damaged.
    index: groups by name; empty where not all are listed.
    """
    if not isinstance(status, dict) or not status:
        return
    frontiers: dict[int, tuple[int, int]] = {}
    for key, value in list(status.items())[:MAX_GROUPS]:
        number = integer(key)
        if number is None or not isinstance(value, dict):
            continue
        enqueued, completed = (integer(value.get(f"last_{k}_collective")) for k in ("enqueued", "completed"))
        if enqueued is not None and completed is not None and -1 <= completed <= enqueued:
            frontiers[number] = (enqueued, completed)
    result.has_status = bool(frontiers)
    known = {k: v for k, v in ids.items() if k in frontiers}
    names = [n for n in index if n.isdecimal() and n.isascii() and len(n) < MAX_STATUS_DIGITS]
    if len(names) == len(index) == len(frontiers) == len(status):
        paired = {i: index[n] for i, n in zip(sorted(frontiers), sorted(names, key=int), strict=True)}
        if all(paired[i] == g for i, g in known.items()):
            known = paired
    for number, group in known.items():
        result.groups[group].status_enqueued, result.groups[group].status_completed = frontiers[number]
    result.unmapped_status = sum(1 for i, (e, _) in frontiers.items() if i not in known and e > 0)


def believed(tail: GroupTail, rows: list[Row]) -> list[Row]:
    """Return the calls of a group without a newest one that its status denies; forget a status that they deny.

    rows: the collectives of a group without messages (a status counts both), in the order of the ring. The ring holds
    the newest calls and is read after the status, so that three things contradict each other: a call two beyond the
    last one issued, an outstanding call newer than the ring's newest, and an open call that is the last one done, or is
    the ring's newest before that one (on Gloo calls end out of order). The damaged side is unknown, and so is the last
    action of the rank.
    """
    enqueued, completed = tail.status_enqueued, tail.status_completed
    newest = rows[-1]
    beyond = sum(row[0] > enqueued + 1 for row in rows)
    lost = newest[0] < enqueued and completed < enqueued and not tail.open_end
    gloo = str(newest[2]["profiling_name"]).startswith("gloo:")
    undone = not gloo and any(
        row[1] != DONE and (row[0] == completed or (row is newest and row[0] < completed)) for row in rows
    )
    if enqueued < 0 or not (beyond or lost or undone):
        return rows
    tail.status_enqueued = tail.status_completed = -1
    tail.open_end = True
    return rows[:-1] if beyond == 1 else rows
