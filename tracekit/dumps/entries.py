"""Reduces one flight-recorder dump: of up to 20 000 entries only a few arrays are kept for the analysis.

A decoded dump is turned into a `RankDump` at once, in the worker that decoded it, and dropped: of every group the
frontier (how far enqueued, how far completed) and the last calls, of point-to-point operations the outstanding ones.
Source of the fields: torch/csrc/distributed/c10d/FlightRecorder (versions 2.0 to 2.10), read in torch 2.13.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from tracekit.dumps import messages, tail
from tracekit.dumps.fields import (
    completed_entry,
    fill_status,
    frame_text,
    host_of,
    integer,
    state_of,
)
from tracekit.dumps.rank_dump import DONE, GroupTail, RankDump
from tracekit.dumps.signatures import Signatures
from tracekit.errors import InputError
from tracekit.thresholds.dumps import (
    MAX_BACKEND_NAME,
    MAX_FRAMES,
    MAX_GROUP_NAME,
    MAX_GROUPS,
    MAX_INTEGER,
    MAX_MEMBERS_TEXT,
    MAX_RANK,
    MAX_VERSION,
)


@dataclass(slots=True)
class _Scan:
    """The entries of one dump, sorted into collectives and messages."""

    collectives: dict[int, list[tail.Row]] = field(default_factory=dict)  # by group
    p2p: list[messages.Row] = field(default_factory=list)
    coalesced: tail.Coalesced = field(default_factory=dict)
    ids: dict[int, int] = field(default_factory=dict)  # local pg_id → group
    oldest: tuple[int, int] | None = None  # record id and state of the first entry that is a call

    def settled(self, group: int) -> list[tail.Row]:
        """Give the collectives of a group, the parts of a coalesced call in the state of the whole call."""
        rows, whole = self.collectives[group], self.coalesced
        return [(s, whole.get((group, False, s), state), e) for s, state, e in rows] if whole else rows


class Reducer:
    """Turns decoded dumps into RankDumps; keeps lists and names that repeat from file to file."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._sets: dict[int, frozenset[int]] = {}  # by the identity of the lists that `_ranks` keeps alive
        self._signatures = Signatures()

    def reduce(self, path: str, dump: Any) -> RankDump:
        """Give the columns of one decoded dump. Raises InputError where it is no dump at all."""
        if not isinstance(dump, dict):
            raise InputError("no flight-recorder dump: the file holds no mapping")
        entries = dump.get("entries")
        if not isinstance(entries, (list, tuple)) and "pg_status" not in dump:
            raise InputError("no flight-recorder dump: neither entries nor pg_status in it")
        result = RankDump(path, str(dump.get("version", ""))[:MAX_VERSION], host_of(dump), [], [])
        result.claimed = integer(dump.get("rank"))
        index = self._config(result, dump.get("pg_config"))
        scan = _scanned(result, entries or (), index)
        _fill_ring(result, entries or (), scan.oldest)
        for group in scan.collectives:
            started = tail.fill_tail(result.groups[group], scan.settled(group), self._signatures)
            result.timed = result.timed or started
        messages.fill_messages(result, scan.p2p, scan.coalesced, self._signatures)
        if entries:
            _fill_last(result, entries[-1], index)
        fill_status(result, dump.get("pg_status"), scan.ids, index)
        self._fill_candidates(result)
        return result

    def _config(self, result: RankDump, config: Any) -> dict[str, int]:
        """Enter the groups of `pg_config`; give the index of each by its name."""
        index: dict[str, int] = {}
        if not isinstance(config, dict):
            return index
        for key, value in list(config.items())[:MAX_GROUPS]:
            if not isinstance(value, dict):
                continue
            name = str(value.get("name", key))[:MAX_GROUP_NAME]
            members = self._members(value.get("ranks", ""))
            if not members or name in index:
                continue
            index[name] = len(result.groups)
            result.groups.append(GroupTail(name, str(value.get("desc", ""))[:MAX_GROUP_NAME], members))
        return index

    def _members(self, text: Any) -> tuple[int, ...]:
        """Give the ranks in "[0, 1, 2]" (or in a list of them), sorted; nothing where it is no list of ranks."""
        key = text if isinstance(text, str) else repr(text)[:MAX_MEMBERS_TEXT]
        known = self._ranks.get(key)
        if known is None:
            try:
                value = json.loads(key) if isinstance(text, str) else text
                ranks = tuple(value) if isinstance(value, (list, tuple)) else ()
            except (ValueError, RecursionError):
                ranks = ()
            if not all(type(r) is int and 0 <= r < MAX_RANK for r in ranks) or len(set(ranks)) != len(ranks):
                ranks = ()
            known = self._ranks[key] = tuple(sorted(ranks))
            self._sets[id(known)] = frozenset(known)
        return known

    def _fill_candidates(self, result: RankDump) -> None:
        """Find the ranks that every group contains; with p2p the direction tells which of them wrote the dump."""
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


def _scanned(result: RankDump, entries: Any, index: dict[str, int]) -> _Scan:
    """Sort the entries into collectives by group, and messages; any other entry is counted as malformed.

    One loop, with local names and few calls: it runs once for each of up to 20 000 entries of every dump.
    """
    scan, oldest = _Scan(), None
    ids, collectives, p2p = scan.ids, scan.collectives, scan.p2p
    for given in entries:
        try:
            entry = given if "retired" in given and "is_p2p" in given else completed_entry(given)
            name = entry["process_group"][0]
            group = index.get(name)
            if group is None:
                group = _unlisted(result, entry, index)
            ids[entry["pg_id"]] = group
            text = entry["profiling_name"]
            state = DONE if entry["retired"] else state_of(entry)
            is_p2p = entry["is_p2p"]
            seq = entry["p2p_seq_id"] if is_p2p else entry["collective_seq_id"]
            if type(seq) is not int:
                seq = integer(seq)
            if seq is None or not 0 <= seq < MAX_INTEGER:
                raise ValueError  # noqa: TRY301 (counted below)
            if text.endswith(":coalesced"):
                scan.coalesced[group, bool(is_p2p), seq] = state
            if is_p2p:
                p2p.append((seq, group, state, text, entry))
            else:
                rows = collectives.get(group)
                if rows is None:
                    rows = collectives[group] = []
                rows.append((seq, state, entry))
        except (TypeError, KeyError, IndexError, ValueError, AttributeError):
            result.malformed += 1
            continue
        if oldest is None:
            oldest = integer(entry.get("record_id")) or 0, state
    scan.oldest = oldest
    return scan


def _unlisted(result: RankDump, entry: Any, index: dict[str, int]) -> int:
    """Enter a group that only entries name; give its index."""
    name, desc = (str(t)[:MAX_GROUP_NAME] for t in entry["process_group"])
    if len(result.groups) >= MAX_GROUPS:
        raise ValueError
    index[entry["process_group"][0]] = len(result.groups)
    result.groups.append(GroupTail(name, desc, ()))
    return len(result.groups) - 1


def _fill_ring(result: RankDump, entries: Any, oldest: tuple[int, int] | None) -> None:
    """Tell how many entries there are, and whether the ring has overwritten older ones, outstanding ones too."""
    result.entries = len(entries) - result.malformed
    first, state = oldest or (0, DONE)
    result.wrapped = bool(first)
    # gaps in the numbers are calls left out because they were done: then nothing outstanding is lost
    last = integer(entries[-1].get("record_id")) if entries and isinstance(entries[-1], dict) else None
    without_gaps = last is not None and last - first + 1 == len(entries)
    result.cut = result.wrapped and state != DONE and without_gaps


def _fill_last(result: RankDump, entry: Any, index: dict[str, int]) -> None:
    """Take backend, group, time and stack from the last entry."""
    if not isinstance(entry, dict):
        return
    name = str(entry.get("profiling_name", ""))
    result.backend = name.partition(":")[0][:MAX_BACKEND_NAME]
    result.last_created = integer(entry.get("time_created_ns")) or 0
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group and isinstance(group[0], str):
        result.last_group = index.get(group[0], -1)
    frames = entry.get("frames")
    if isinstance(frames, (list, tuple)):
        result.stack = tuple(text for f in frames[:MAX_FRAMES] if (text := frame_text(f)))
