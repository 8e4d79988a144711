"""Reduces one flight-recorder dump: of up to 20 000 entries only a few arrays are kept for the analysis.

A decoded dump is turned into a `RankDump` at once, in the worker that decoded it, and dropped: of every group the
frontier (how far enqueued, how far completed) and the last calls, of point-to-point operations the outstanding ones.
Source of the fields: torch/csrc/distributed/c10d/FlightRecorder (versions 2.0 to 2.10), read in torch 2.13.
"""

import json
from typing import Any

from tracekit.dumps import messages, tail
from tracekit.dumps.fields import (
    completed_entry,
    host_of,
    integer,
    text_of,
)
from tracekit.dumps.lately import moved_lately
from tracekit.dumps.rank_dump import DONE, GroupTail, RankDump
from tracekit.dumps.scan import Scan
from tracekit.dumps.signatures import Signatures, Stacks
from tracekit.dumps.tail import Row, fitting, in_order, last_gap, span_of, whole_since, without_gaps
from tracekit.errors import InputError
from tracekit.thresholds.dumps import (
    MAX_BACKEND_NAME,
    MAX_GROUP_NAME,
    MAX_GROUPS,
    MAX_INTEGER,
    MAX_OP_NAME,
    MAX_RANK,
    MAX_STATUS_DIGITS,
    MAX_VERSION,
)


class Reducer:
    """Turns decoded dumps into RankDumps; keeps lists and names that repeat from file to file."""

    def __init__(self) -> None:
        self._ranks: dict[str | tuple[int, ...], tuple[int, ...]] = {}
        self._lists: dict[int, tuple[int, ...]] = {}  # by the identity of the lists of one dump
        self._sets: dict[int, frozenset[int]] = {}  # by the identity of the lists that `_ranks` keeps alive
        self._signatures = Signatures()
        self._stacks = Stacks()

    def reduce(self, path: str, dump: Any, *, cut_off: bool = False) -> RankDump:
        """Give the columns of one decoded dump, as far as its cut. Raises InputError where it is no dump at all."""
        if not isinstance(dump, dict):
            raise InputError("not a flight-recorder dump: the file holds no mapping")
        entries = dump.get("entries")
        if not isinstance(entries, (list, tuple)) and "pg_status" not in dump:
            raise InputError("not a flight-recorder dump: it has neither entries nor pg_status")
        result = RankDump(path, text_of(dump.get("version"), MAX_VERSION), host_of(dump), [], [])
        result.claimed = integer(dump.get("rank"))
        result.heartbeat = max(0, integer(dump.get("heartbeat_ns")) or 0)
        index = self._config(result, dump.get("pg_config"))
        entries = in_order(entries or ())
        scan = _scanned(result, entries, index)
        result.gapless = without_gaps(entries)
        scan.outstanding_only = not (result.gapless or scan.finished())
        scan.forget_disputed(len(entries))
        fill_status(result, dump.get("pg_status"), scan.ids, {} if result.unlisted else index)
        if entries:
            scan.damaged[-1] = max(scan.damaged.get(-1, -1), last_gap(entries))
            _drop_leaps(result, scan, span_of(entries))
            if not cut_off:
                _drop_contradictions(result, scan)
            result.damaged_end |= any(g.open_end for g in result.groups)
        _fill_ring(result, entries, scan)
        if entries:
            _fill_last(result, entries[-1], index, self._stacks)
        for group in scan.collectives:
            rows, own = scan.settled(group), result.groups[group]
            started = tail.fill_tail(own, rows, self._signatures, self._stacks, result.last_created)
            result.timed = result.timed or started
        messages.fill_messages(result, scan.p2p, scan.coalesced, self._signatures, self._stacks)
        self._fill_candidates(result)
        self._stacks.next_dump()
        return result

    def _config(self, result: RankDump, config: Any) -> dict[str, int]:
        """Enter the groups of `pg_config`; give the index of each by its name.

        The recorder writes each under its own name: one under another is damaged and left out, its calls name it.
        """
        index: dict[str, int] = {}
        for key, value in list(config.items())[:MAX_GROUPS] if isinstance(config, dict) else ():
            name = text_of(key, MAX_GROUP_NAME)
            if not isinstance(value, dict) or text_of(value.get("name", key), MAX_GROUP_NAME) != name:
                result.unlisted = True
            elif (members := self._members(value.get("ranks", ""))) and name not in index:
                index[name] = len(result.groups)
                result.groups.append(GroupTail(name, text_of(value.get("desc"), MAX_GROUP_NAME), members))
        self._lists.clear()
        return index

    def _members(self, text: Any) -> tuple[int, ...]:
        """Give the ranks in "[0, 1, 2]" (or in a list of them), sorted; nothing where it is not a list of ranks."""
        known = self._ranks.get(text) if isinstance(text, str) else self._lists.get(id(text))
        if known is None:
            try:
                value = json.loads(text) if isinstance(text, str) else text
                ranks = tuple(value) if isinstance(value, (list, tuple)) else ()
            except (ValueError, RecursionError):
                ranks = ()
            if not all(type(r) is int and 0 <= r < MAX_RANK for r in ranks) or len(set(ranks)) != len(ranks):
                ranks = ()
            ranks = tuple(sorted(ranks))
            known = self._ranks.setdefault(text if isinstance(text, str) else ranks, ranks)
            self._sets.setdefault(id(known), frozenset(known))
            self._lists[id(text)] = known
        return known

    def _fill_candidates(self, result: RankDump) -> None:
        """Find the ranks that every group contains; with p2p the direction shows which of them wrote the dump."""
        known = [g.ranks for g in result.groups if g.ranks]
        if not known:
            return
        known.sort(key=len)
        sets = [self._sets[id(k)] for k in {id(k): k for k in known[1:]}.values()]  # hashing ranks takes long
        left = tuple(r for r in known[0] if all(r in s for s in sets))
        for op in result.p2p:
            members = result.groups[op.group].ranks
            if len(left) > 1 and op.me < len(members) and members[op.me] in left:
                left = (members[op.me],)
        result.candidates = left or None


def _scanned(result: RankDump, entries: Any, index: dict[str, int]) -> Scan:
    """Sort the entries into collectives by group, and messages; any other entry is counted as malformed.

    One loop, with local names and few calls: it runs once for each of up to 20 000 entries of every dump.
    """
    scan = Scan()
    ids, collectives, p2p, newest = scan.ids, scan.collectives, scan.p2p, scan.newest
    for place, given in enumerate(entries):
        group: int | None = -1
        try:
            entry = given if "retired" in given and "is_p2p" in given else completed_entry(given)
            named = entry["process_group"]
            name = None if type(named) is str else named[0]
            group = index.get(name) if type(name) is str else None  # a tree of tuples takes for ever to hash
            if group is None:
                group = _unlisted(result, entry, index)
            if type(pg_id := entry["pg_id"]) is int and ids.setdefault(pg_id, group) != group:
                scan.disputed[pg_id] += [ids[pg_id], group]
            state = DONE if entry["retired"] is True else scan.state_of(entry)
            is_p2p = entry["is_p2p"]
            seq = entry["p2p_seq_id"] if is_p2p else entry["collective_seq_id"]
            seq = seq if type(seq) is int else integer(seq)
            if seq is None or not 0 <= seq < MAX_INTEGER or type(is_p2p) is not bool:
                raise ValueError  # noqa: TRY301
            if (text := entry["profiling_name"]).endswith(":coalesced"):
                scan.coalesced[group, is_p2p, seq] = state
            if is_p2p:
                p2p.append((seq, group, state, text, entry))
            else:
                collectives[group].append((seq, state, entry))
        except (TypeError, KeyError, IndexError, ValueError, AttributeError):
            result.malformed += 1
            scan.damaged[-1 if group is None else group] = place
            continue
        newest[group] = place
        if scan.oldest is None:
            scan.oldest = integer(entry.get("record_id")) or 0, state, (group, is_p2p, seq)
    return scan


def _drop_leaps(result: RankDump, scan: Scan, span: int) -> None:
    """Drop calls with a number that does not fit into the ring; mark groups with a possibly damaged newest call."""
    for group, rows in scan.collectives.items():
        kept = scan.collectives[group] = fitting(rows, span)
        result.malformed += len(rows) - len(kept)
        result.groups[group].open_end = kept[-1] is not rows[-1]
    by_group: dict[int, list[messages.Row]] = {}
    for row in scan.p2p:
        by_group.setdefault(row[1], []).append(row)
    fits = {id(row) for rows in by_group.values() for row in fitting(rows, span)}
    leaps = len(scan.p2p) - len(fits)
    scan.p2p = [row for row in scan.p2p if id(row) in fits] if leaps else scan.p2p
    result.malformed += leaps
    nowhere = scan.damaged.pop(-1, -1)
    for group in scan.newest.keys() | scan.damaged.keys():
        last = max(nowhere, scan.damaged.get(group, -1))
        result.groups[group].open_end |= last > scan.newest.get(group, -1)
    result.damaged_end = bool(leaps)


def _drop_contradictions(result: RankDump, scan: Scan) -> None:
    """Drop calls that the status of their group denies."""
    mixed = {row[1] for row in scan.p2p}
    for group in scan.collectives.keys() - mixed:
        rows = scan.settled(group)
        kept = believed(result.groups[group], rows)
        result.malformed += len(rows) - len(kept)
        scan.collectives[group] = scan.collectives[group][: len(kept)]
        if not kept:
            del scan.collectives[group]


def _unlisted(result: RankDump, entry: Any, index: dict[str, int]) -> int:
    """Enter a group that only entries name; give its index."""
    named = entry["process_group"]
    name, desc = (text_of(t, MAX_GROUP_NAME) for t in named)
    if len(result.groups) >= MAX_GROUPS or type(named) is str or type(named[0]) is not str:
        raise ValueError
    index[named[0]] = len(result.groups)
    result.groups.append(GroupTail(name, desc, ()))
    result.unlisted = True
    return len(result.groups) - 1


def _fill_ring(result: RankDump, entries: Any, scan: Scan) -> None:
    """Fill in the number of entries, whether the ring has overwritten older ones, and whether the job moved."""
    result.entries = len(entries) - result.malformed
    result.moved_lately = (
        moved_lately(entries, scan.unretired, scan.unfinished()) if scan.unretired else False
    )
    result.finished = scan.finished()
    result.whole_since = whole_since(entries)
    first, state, call = scan.oldest or (0, DONE, (-1, False, -1))
    state = scan.coalesced.get(call, state)
    result.wrapped = bool(first) or (bool(entries) and not result.gapless)
    # gaps in the numbers are calls left out because they were done: then nothing outstanding is lost
    result.cut = result.wrapped and state != DONE and result.gapless


def _fill_last(result: RankDump, entry: Any, index: dict[str, int], stacks: Stacks) -> None:
    """Take backend, group, time and stack from the last entry."""
    if not isinstance(entry, dict):
        return
    name = text_of(entry.get("profiling_name"), MAX_OP_NAME)
    result.backend = name.partition(":")[0][:MAX_BACKEND_NAME]
    result.last_created = integer(entry.get("time_created_ns")) or 0
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group and isinstance(group[0], str):
        result.last_group = index.get(group[0], -1)
    result.stack = stacks.of(entry)


# `pg_status` of a dump: which group each row is of, and whether the calls in the ring agree with it.


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
