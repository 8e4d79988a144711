"""Records of NCCL's Inspector (a profiler plug-in), one JSON object a line: the calls of each process, by communicator.

A process is a host, a pid and a file, since containers may share the first two; its place in a communicator is in each
record. Members of a communicator are named by the widest communicator, in which every process has a place of its own.
With NCCL_INSPECTOR_DUMP_VERBOSE=1 a record bears when its kernels ran; else only how long, and when the record was
written. Source: NVIDIA/nccl, plugins/profiler/inspector. Used by `reader`.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tracekit.text import plain
from tracekit.thresholds.dumps import MAX_SEQ
from tracekit.thresholds.inspector import (
    LONGEST_US,
    MAX_BYTES,
    MAX_RECORDS,
    MAX_TIME_US,
    MOST_RANKS,
    NAME_LENGTH,
)

_KINDS: Final = {
    "AllReduce": "all_reduce",
    "AllGather": "_all_gather_base",
    "ReduceScatter": "_reduce_scatter_base",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "all_to_all",
    "Send": "send",
    "Recv": "recv",
}
"""Names of calls in events by those in records; of others the name is kept in lower case."""
Process = tuple[str, int, str]
"""Host, pid and file."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one process. start_us: None where the record bears none; us since 1970 by the host's clock."""

    communicator: str
    kind: str
    seq: int
    size: int
    start_us: int | None
    dur_us: int
    written_us: int
    peer: int


@dataclass
class Records:
    """All records of a set of files.

    places: by communicator the place of each process. sizes: its members. calls: by process, in the order of the file.
    dropped: records that rings lost under load, as `dump_stats` shows. damaged: lines that are no record.
    """

    places: dict[str, dict[Process, int]] = field(default_factory=lambda: defaultdict(dict))
    sizes: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    calls: dict[Process, list[Call]] = field(default_factory=lambda: defaultdict(list))
    paths: dict[Process, str] = field(default_factory=dict)
    dropped: int = 0
    damaged: int = 0
    left_out: int = 0

    def take(self, path: str, lines: Iterable[bytes]) -> None:
        """Take the lines of one file."""
        count = sum(len(calls) for calls in self.calls.values())
        for line in lines:
            if not line.strip():
                continue
            if count >= MAX_RECORDS:
                self.left_out += 1
                continue
            try:
                row = json.loads(line)
                count += self._row(path, row)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                self.damaged += 1

    def _row(self, path: str, row: dict[str, Any]) -> bool:
        """Take one record; return whether it is a call."""
        with contextlib.suppress(KeyError, TypeError):
            self.dropped += sum(
                n for k, n in row["dump_stats"].items() if "drop" in k and type(n) is int and n > 0
            )
        header, metadata = row["header"], row["metadata"]
        name, place, size = str(header["id"])[:NAME_LENGTH], int(header["rank"]), int(header["n_ranks"])
        if not 0 <= place < size <= MOST_RANKS:
            raise ValueError(name)
        process = plain(str(metadata["hostname"]))[:NAME_LENGTH], int(metadata["pid"]), path
        call = _call(name, row, int(metadata.get("dump_timestamp_us") or 0))
        self.places[name][process] = place
        self.sizes[name] = size
        self.names[name] = plain(str(header.get("comm_name") or ""))[:NAME_LENGTH]
        self.paths.setdefault(process, path)
        if call is not None:
            self.calls[process].append(call)
        return call is not None

    def ranks(self) -> dict[Process, int]:
        """Return the global rank of each process: its place in the widest communicator; none where several are widest.

        Of communicators with the same members any shows the same; places that contradict each other show nothing.
        """
        widest = max(self.sizes.values(), default=0)
        found: dict[Process, int] = {}
        for name, places in self.places.items():
            if self.sizes[name] == widest:
                for process, place in places.items():
                    if found.setdefault(process, place) != place:
                        return {}
        whole = len(set(found.values())) == len(found) and set(found) >= set(self.paths)
        return found if whole else {}

    def members(self, name: str, ranks: dict[Process, int]) -> tuple[int, ...]:
        """Return the global ranks of a communicator, sorted; a silent member is known if it alone has no record."""
        found = {ranks[process] for process in self.places[name]}
        silent = set(range(max(self.sizes.values()))) - set(ranks.values())
        return tuple(sorted(found | (silent if len(found) + len(silent) == self.sizes[name] else set())))


def _call(name: str, row: dict[str, Any], written: int) -> Call | None:
    """Return the call of a record; None where it holds none. ValueError where its numbers cannot be true."""
    way = next((way for way in ("coll", "p2p") if isinstance(row.get(f"{way}_perf"), dict)), None)
    if way is None:
        return None
    perf = row[f"{way}_perf"]
    kind = str(perf[way])[:NAME_LENGTH]
    dur, size, seq = (int(perf[f"{way}_{key}"]) for key in ("exec_time_us", "msg_size_bytes", "sn"))
    if not (
        0 <= dur <= LONGEST_US
        and 0 <= size <= MAX_BYTES
        and 0 <= seq < MAX_SEQ
        and 0 <= written <= MAX_TIME_US
    ):
        raise ValueError(kind)
    begun, ended = _kernels(perf, way)
    latest = MAX_TIME_US if begun is None else min(begun + LONGEST_US, MAX_TIME_US)
    if begun is not None and ended is not None and 0 < begun <= ended <= latest:
        return Call(
            name, _KINDS.get(kind, plain(kind.lower())), seq, size, begun, ended - begun, written, _peer(perf)
        )
    return Call(name, _KINDS.get(kind, plain(kind.lower())), seq, size, None, dur, written, _peer(perf))


def _kernels(perf: dict[str, Any], way: str) -> tuple[int | None, int | None]:
    """Return when the first kernel of a call began and the last one ended, by the host's clock."""
    trace = perf.get("event_trace_ts")
    if not isinstance(trace, dict):
        return None, None
    kernels = [event for event in trace.get("kernel_events") or () if isinstance(event, dict)]
    begun = [int(event.get("kernel_start_ts") or 0) for event in kernels] or [
        int(trace.get(f"{way}_start_ts") or 0)
    ]
    ended = [int(event.get("kernel_stop_ts") or 0) for event in kernels] or [
        int(trace.get(f"{way}_stop_ts") or 0)
    ]
    return min(begun, default=None), max(ended, default=None)


def _peer(perf: dict[str, Any]) -> int:
    peer = perf.get("p2p_peer")
    return peer if type(peer) is int and peer >= 0 else -1


def split_lines(blocks: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Yield the lines of a file; one of more than `most` bytes is cut there."""
    kept = b""
    for block in blocks:
        *lines, kept = (kept + block).split(b"\n")
        yield from lines
        if len(kept) > most:
            yield kept[:most]
            kept = b""
    yield kept
