"""Columns of one flight-recorder dump: what the analysis needs of up to 20 000 entries, in a few arrays.

A decoded dump is turned into a `RankDump` at once, in the worker that decoded it, and dropped: of every
group the frontier (how far enqueued, how far completed) and the last calls, of point-to-point operations
the outstanding ones. Source of the fields: torch/csrc/distributed/c10d/FlightRecorder (versions 2.0 to
2.10), read in torch 2.13.
"""

import json
from bisect import bisect_right
from operator import itemgetter, lt
from typing import Any

import numpy as np

from tracekit.dumps.fields import (
    P2P_NAME,
    completed_entry,
    fill_status,
    frame_text,
    host_of,
    integer,
    number,
    state_of,
)
from tracekit.dumps.rank_dump import (
    DONE,
    MAX_GROUPS,
    MAX_OPEN,
    MAX_P2P,
    P2P,
    TAIL,
    GroupTail,
    Messages,
    RankDump,
)
from tracekit.dumps.signatures import Signatures
from tracekit.errors import InputError


class Reducer:
    """Turns decoded dumps into RankDumps; keeps what repeats from file to file."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._sets: dict[int, frozenset[int]] = {}  # by the identity of what `_ranks` keeps alive
        self._signatures = Signatures()
        self._p2p: dict[str, tuple[bool, int, int] | None] = {}

    def reduce(self, path: str, dump: Any) -> RankDump:
        """Give the columns of one decoded dump. Raises InputError where it is no dump at all."""
        if not isinstance(dump, dict):
            raise InputError("no flight-recorder dump: the file holds no mapping")
        entries = dump.get("entries")
        if not isinstance(entries, (list, tuple)) and "pg_status" not in dump:
            raise InputError("no flight-recorder dump: neither entries nor pg_status in it")
        result = RankDump(path, str(dump.get("version", ""))[:16], host_of(dump), [], [])
        result.claimed = integer(dump.get("rank"))
        index = self._config(result, dump.get("pg_config"))
        ids = self._entries(result, entries or (), index)
        fill_status(result, dump.get("pg_status"), ids, index)
        self._candidates(result)
        return result

    def _members(self, text: Any) -> tuple[int, ...]:
        key = text if isinstance(text, str) else repr(text)[: 1 << 20]
        known = self._ranks.get(key)
        if known is None:
            try:
                value = json.loads(key) if isinstance(text, str) else text
                ranks = tuple(value) if isinstance(value, (list, tuple)) else ()
            except (ValueError, RecursionError):
                ranks = ()
            if not all(type(r) is int and 0 <= r < 1 << 24 for r in ranks) or len(set(ranks)) != len(ranks):
                ranks = ()
            known = self._ranks[key] = tuple(sorted(ranks))
            self._sets[id(known)] = frozenset(known)
        return known

    def _config(self, result: RankDump, config: Any) -> dict[str, int]:
        index: dict[str, int] = {}
        if not isinstance(config, dict):
            return index
        for key, value in list(config.items())[:MAX_GROUPS]:
            if not isinstance(value, dict):
                continue
            name = str(value.get("name", key))[:200]
            members = self._members(value.get("ranks", ""))
            if not members or name in index:
                continue
            index[name] = len(result.groups)
            result.groups.append(GroupTail(name, str(value.get("desc", ""))[:200], members))
        return index

    def _entries(self, result: RankDump, entries: Any, index: dict[str, int]) -> dict[int, int]:
        """Fill groups and p2p; returns local pg_id → group index, as the entries show it."""
        rows: dict[int, list[Any]] = {}
        p2p: list[Any] = []
        ids: dict[int, int] = {}
        coalesced: dict[tuple[int, bool, int], int] = {}
        lowest = None
        oldest = DONE
        for given in entries:
            try:
                entry = given if "retired" in given and "is_p2p" in given else completed_entry(given)
                name = entry["process_group"][0]
                group = index.get(name)
                if group is None:
                    group = self._unlisted(result, entry, index)
                ids[entry["pg_id"]] = group
                text = entry["profiling_name"]
                state = DONE if entry["retired"] else state_of(entry)
                is_p2p = entry["is_p2p"]
                seq = entry["p2p_seq_id"] if is_p2p else entry["collective_seq_id"]
                if type(seq) is not int:
                    seq = integer(seq)
                if seq is None or not 0 <= seq < 1 << 62:
                    raise ValueError  # noqa: TRY301 (counted below)
                if text.endswith(":coalesced"):
                    coalesced[group, bool(is_p2p), seq] = state
                if is_p2p:
                    p2p.append((seq, group, state, text, entry))
                else:
                    row = rows.get(group)
                    if row is None:
                        row = rows[group] = []
                    row.append((seq, state, entry))
            except (TypeError, KeyError, IndexError, ValueError, AttributeError):
                result.malformed += 1
                continue
            if lowest is None:
                lowest, oldest = entry.get("record_id"), state
        result.entries = len(entries) - result.malformed
        result.wrapped = bool(integer(lowest))
        # gaps in the numbers are calls left out because they were done: then nothing outstanding is lost
        last = integer(entries[-1].get("record_id")) if entries and isinstance(entries[-1], dict) else None
        whole = last is not None and last - (integer(lowest) or 0) + 1 == len(entries)
        result.cut = result.wrapped and oldest != DONE and whole
        for group, row in rows.items():
            self._tail(result, group, row, coalesced)
        self._pairs(result, p2p, coalesced)
        if entries:
            self._last(result, entries[-1], index)
        return ids

    def _unlisted(self, result: RankDump, entry: Any, index: dict[str, int]) -> int:
        name, desc = (str(t)[:200] for t in entry["process_group"])
        if len(result.groups) >= MAX_GROUPS:
            raise ValueError
        index[entry["process_group"][0]] = len(result.groups)
        result.groups.append(GroupTail(name, desc, ()))
        return len(result.groups) - 1

    def _tail(
        self, result: RankDump, group: int, rows: list[Any], coalesced: dict[tuple[int, bool, int], int]
    ) -> None:
        tail = result.groups[group]
        if coalesced:
            rows = [(s, coalesced.get((group, False, s), state), e) for s, state, e in rows]
        seqs = [r[0] for r in rows]
        rising = all(map(lt, seqs, seqs[1:]))
        if not rising:
            rows.sort(key=itemgetter(0))
            seqs = [r[0] for r in rows]
        tail.entry_enqueued = int(seqs[-1])
        tail.entry_completed = min((s for s, state, _ in rows if state != DONE), default=seqs[-1] + 1) - 1
        tail.entry_seen_done = seqs[0] <= tail.entry_completed
        first = bisect_right(seqs, tail.entry_completed)  # the first unfinished call
        first = max(first, len(seqs) - MAX_OPEN)
        if rising:
            last = rows[max(first - TAIL, 0) :]
            tail.calls = tuple([self._signatures.one(entry) for _, _, entry in last])
        else:
            parts: dict[int, list[Any]] = {}
            for row in rows[max(first - 4 * TAIL, 0) :]:
                parts.setdefault(row[0], []).append(row)
            kept = list(parts.values())[max(sum(s <= tail.entry_completed for s in parts) - TAIL, 0) :]
            tail.calls = tuple([self._signatures.of(tuple([r[2] for r in p])) for p in kept])
            last = [(*p[0][:2], p[-1][2]) for p in kept]
        tail.seq = np.array([k[0] for k in last], np.int64)
        tail.state = np.array([k[1] for k in last], np.int8)
        tail.created = np.array([integer(k[2].get("time_created_ns")) or 0 for k in last], np.int64)
        durations = [k[2].get("duration_ms") for k in last]
        if durations.count(None) < len(durations):
            tail.duration = np.array([number(d) for d in durations], np.float64)
        if not result.timed:
            result.timed = any(r[2].get("time_discovered_started_ns") for r in last)

    def _pairs(self, result: RankDump, p2p: list[Any], coalesced: dict[tuple[int, bool, int], int]) -> None:
        finished: dict[tuple[int, str], int] = {}
        for seq, group, state, text, _ in p2p:
            result.groups[group].has_p2p = True
            if coalesced.get((group, True, seq), state) == DONE:
                finished[group, text] = max(seq, finished.get((group, text), -1))
        counts: dict[tuple[int, str], int] = {}
        first = len(p2p)
        for place, (seq, group, state, text, entry) in enumerate(p2p):
            now = coalesced.get((group, True, seq), state)
            nth = counts[group, text] = counts.get((group, text), -1) + 1
            # one channel completes in order: a later operation that is done vouches for an earlier one
            if now == DONE or finished.get((group, text), -1) > seq:
                continue
            ends = self._ends(text)
            if ends is not None and len(result.p2p) < MAX_P2P:
                first = min(first, place)
                send, me, peer = ends
                created = integer(entry.get("time_created_ns")) or 0
                call = self._signatures.of((entry,))
                result.p2p.append(P2P(group, peer, me, send, now, seq, text[:80], created, call, nth))
        self._messages(result, p2p, counts, max(min(first, len(p2p)) - TAIL, len(p2p) - MAX_OPEN, 0))

    def _messages(
        self, result: RankDump, p2p: list[Any], counts: dict[tuple[int, str], int], begin: int
    ) -> None:
        """Keep the messages from `begin` on; `counts` holds the number of the last of each name."""
        kept = p2p[begin:]
        nth = []
        for _, group, _, text, _ in reversed(kept):
            nth.append(counts[group, text])
            counts[group, text] -= 1
        result.messages = Messages(
            np.array([k[1] for k in kept], np.int64),
            np.array([k[0] for k in kept], np.int64),
            np.array(nth[::-1], np.int64),
            np.array([integer(k[4].get("time_created_ns")) or 0 for k in kept], np.int64),
            tuple(k[3][:80] for k in kept),
            tuple(self._signatures.of((k[4],)) for k in kept),
        )

    def _ends(self, text: str) -> tuple[bool, int, int] | None:
        if text not in self._p2p:
            match = P2P_NAME.search(text)
            self._p2p[text] = (match[1] == "send", int(match[2]), int(match[4])) if match else None
        return self._p2p[text]

    def _last(self, result: RankDump, entry: Any, index: dict[str, int]) -> None:
        if not isinstance(entry, dict):
            return
        name = str(entry.get("profiling_name", ""))
        result.backend = name.partition(":")[0][:16]
        result.last_created = integer(entry.get("time_created_ns")) or 0
        group = entry.get("process_group")
        if isinstance(group, (list, tuple)) and group and isinstance(group[0], str):
            result.last_group = index.get(group[0], -1)
        frames = entry.get("frames")
        if isinstance(frames, (list, tuple)):
            result.stack = tuple(text for f in frames[:64] if (text := frame_text(f)))

    def _candidates(self, result: RankDump) -> None:
        """Find the ranks that every group contains; with p2p the direction tells which of them wrote it."""
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
