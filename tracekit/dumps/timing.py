"""When the calls of one dump ran: start and duration of every timed call.

A dump knows when the host issued a call, how long the device took (`duration_ms`, with
TORCH_NCCL_ENABLE_TIMING=1), and when a watchdog that polls discovered its start and its end. Where discovered times
agree with the duration they are used unchanged. Else the calls are laid out so that each has its exact
duration, ends between the poll before and the poll that saw it done, begins after it was issued, and follows the
call before it: order and durations are right, starts are known to within a poll. Runs in the worker that decoded
the dump (`transfer`); `ingest.flight_recorder` makes events of the result.
"""

import re
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tracekit.dumps.calls import CallKind
from tracekit.dumps.fields import P2P_NAME, completed_entry, integer, number, state_of, text_of
from tracekit.dumps.rank_dump import DONE, Int64, RankDump, TimedCalls
from tracekit.thresholds.dumps import (
    LONGEST_CALL_MS,
    MAX_DIMENSIONS,
    MAX_DTYPE,
    MAX_GROUP_NAME,
    MAX_INTEGER,
    MAX_OP_NAME,
    MAX_SEQ,
    MAX_SHAPES,
    SAME_POLL_NS,
    TIMED_SHARE,
    TIMES_AGREE_NS,
    TIMES_AGREE_SHARE,
)
from tracekit.units import NS_PER_MS


@dataclass(slots=True)
class _Rows:
    """Raw times of the timed calls, in ns; 0 is unknown."""

    created: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    dur: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    seq: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)

    def add(self, entry: dict[str, Any], group: int) -> bool:
        """Add the times of a call (the caller adds its kind); False if its duration or place is unknown."""
        created = integer(entry.get("time_created_ns")) or 0
        started = integer(entry.get("time_discovered_started_ns")) or 0
        completed = integer(entry.get("time_discovered_completed_ns")) or 0
        lasted = _duration(entry, started, completed)
        seq = -1 if entry["is_p2p"] else integer(entry["collective_seq_id"])
        if lasted is None or seq is None or seq > MAX_SEQ or not max(created, started, completed) > 0:
            return False
        self.created.append(max(created, 0))
        self.started.append(max(started, 0))
        self.completed.append(max(completed, 0))
        self.dur.append(lasted)
        self.group.append(group)
        self.seq.append(seq)
        return True


def timed_calls(result: RankDump, entries: Any) -> TimedCalls:
    """Return the timed calls of a dump, sorted by start; `result` already holds its groups.

    entries: those of the decoded dump; entries that are no calls were counted where the groups were read.
    """
    index = {g.name: i for i, g in enumerate(result.groups)}
    rows = _Rows()
    kinds: dict[CallKind, int] = {}
    untimed = outstanding = 0
    for given in entries if isinstance(entries, (list, tuple)) else ():
        try:
            entry = given if "retired" in given and "is_p2p" in given else completed_entry(given)
            place = index[text_of(entry["process_group"][0], MAX_GROUP_NAME)]
            kind = _kind(entry, result.groups[place].ranks)
            timed = rows.add(entry, place)
            if not timed:
                untimed += 1
                outstanding += state_of(entry) != DONE
                continue
        except (TypeError, KeyError, IndexError, ValueError, AttributeError):
            continue
        rows.kind.append(kinds.setdefault(kind, len(kinds)))
    start, laid_out, poll = _starts(rows)
    order = np.argsort(start, kind="stable")
    dur, group, seq, kind_ = (
        np.array(c, np.int64)[order] for c in (rows.dur, rows.group, rows.seq, rows.kind)
    )
    return TimedCalls(
        start[order], dur, group, seq, kind_, tuple(kinds), laid_out, poll, untimed, outstanding
    )


def _duration(entry: dict[str, Any], started: int, completed: int) -> int | None:
    """Give the device's own duration in ns, else that between the times at which start and end were seen."""
    measured = number(entry.get("duration_ms"))
    if 0 <= measured <= LONGEST_CALL_MS:
        return round(measured * NS_PER_MS)
    seen = completed - started
    return seen if started > 0 and 0 <= seen <= LONGEST_CALL_MS * NS_PER_MS else None


def _kind(entry: dict[str, Any], ranks: tuple[int, ...]) -> CallKind:
    """Give the kind of a call on a group of these ranks."""
    name = str(entry["profiling_name"])
    source = destination = -1
    if entry["is_p2p"] and (match := P2P_NAME.search(name)):
        me, peer = int(match[2]), int(match[4])
        if max(me, peer) < len(ranks):
            ends = (me, peer) if match[1] == "send" else (peer, me)
            source, destination = (ranks[e] for e in ends)
        name = match[1]
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes")
    dtype = text_of(dtypes[0], MAX_DTYPE) if isinstance(dtypes, (list, tuple)) and dtypes else ""
    return CallKind(
        re.sub(r"^[a-z0-9]{1,16}:", "", name)[:MAX_OP_NAME],
        dtype,
        _elements(entry.get("input_sizes")),
        _elements(entry.get("output_sizes")),
        source,
        destination,
    )


def _elements(sizes: Any) -> int:
    """Count the elements of the tensors of these shapes; -1 where they are no shapes."""
    if not isinstance(sizes, (list, tuple)):
        return -1
    count = 0
    for shape in sizes[:MAX_SHAPES]:
        if not isinstance(shape, (list, tuple)) or len(shape) > MAX_DIMENSIONS:
            return -1
        if not all(
            type(n) is int for n in shape
        ):  # only numbers are multiplied: a list times a number is memory
            return -1
        count += prod(shape)
    return count if 0 <= count < MAX_INTEGER else -1


def _starts(rows: _Rows) -> tuple[Int64, int, int]:
    """Give the starts of all calls, how many of these are known to within a poll only, and how long a poll is (ns)."""
    created, started, completed, dur = (
        np.array(c, np.int64) for c in (rows.created, rows.started, rows.completed, rows.dur)
    )
    known = (started > 0) & (completed > 0)
    agree = known & (np.abs(completed - started - dur) <= TIMES_AGREE_SHARE * dur + TIMES_AGREE_NS)
    if agree.sum() >= TIMED_SHARE * len(dur):
        return np.where(started > 0, started, np.where(completed > 0, completed - dur, created)), 0, 0
    if (completed > 0).sum() >= TIMED_SHARE * len(dur):
        start, poll = _between_polls(created, completed, dur)
        return start, len(dur), poll
    return _one_by_one(created, started, dur, rows.group), len(dur), 0


def _between_polls(created: Int64, completed: Int64, dur: Int64) -> tuple[Int64, int]:
    """Lay calls out backwards from the polls that saw them done; give their starts and the usual time between polls."""
    upper = np.where(completed > 0, completed, created + dur)
    order = np.lexsort((np.arange(len(upper)), upper))
    seen = upper[order]
    fresh = np.diff(seen, prepend=seen[:1]) > SAME_POLL_NS
    polls = np.concatenate([seen[:1], seen[fresh]])
    number_ = np.cumsum(fresh)
    before = np.concatenate([[np.iinfo(np.int64).min], polls[:-1]])[number_]
    start = np.empty(len(upper), np.int64)
    following = int(seen[-1]) if len(seen) else 0
    for at in range(len(order) - 1, -1, -1):
        call = int(order[at])
        end = max(min(int(seen[at]), following), int(before[at]))
        begin = max(end - int(dur[call]), int(created[call]))
        start[call] = following = begin
    return start, int(np.median(np.diff(polls))) if len(polls) > 1 else 0


def _one_by_one(created: Int64, started: Int64, dur: Int64, groups: list[int]) -> Int64:
    """Lay the calls of each group out one behind the other, each as early as it was issued; give their starts."""
    free: dict[int, int] = {}
    start = np.where(started > 0, started, created)
    for call, group in enumerate(groups):
        begin = max(int(start[call]), free.get(group, 0))
        start[call] = begin
        free[group] = begin + int(dur[call])
    return start
