"""The scanner: takes decompressed blocks, gives typed batches and a record of all that was found and repaired.

The interface is narrow so that a faster scanner can replace it. `HeaderScanner` finds the event array, `event_array`
reads it, and the keys before and after the array become `ScanRecord.metadata`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tracekit.ingest.kineto.event_array import EventBuffer
from tracekit.thresholds.ingest import HOPELESS, KEPT_START, KEY_ROOM, MAX_HEADER

TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?P<open>\\?\Z)?+"?|[\[\]{}]', re.DOTALL)
COLON = re.compile(rb"\s*:\s*")
LEAD = re.compile(rb"(?:\xef\xbb\xbf)?\s*")


class HeaderScanner:
    """Finds the start of the event array in a growing buffer; `feed` it until it returns true.

    start: offset just behind the `[` of the array, None until it is found. key_at: offset of its key, None for a bare
    array. failed: why there is no array.
    """

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.start: int | None = None
        self.key_at: int | None = None
        self.failed: str | None = None
        self._at = 0
        self._depth = 0

    def feed(self, data: bytes) -> bool:
        """Take more bytes; return true once nothing more is needed."""
        self.buffer += data
        if not self._at and self._bare_array():
            return True
        return self._walk() or self._too_long()

    def _bare_array(self) -> bool:
        lead = LEAD.match(self.buffer)
        skip = lead.end() if lead else 0
        self._at = skip if skip < len(self.buffer) else 0
        if self.buffer[skip : skip + 1] == b"[":
            self.start = skip + 1
            return True
        return False

    def _walk(self) -> bool:
        """Go on through keys and brackets; true at the event array, or at the end of a text without one."""
        view = self.buffer
        while match := TOKEN.search(view, self._at):
            if match["open"] is not None:
                self._at = match.start()
                return False
            token = match[0]
            if token in b"{[":
                self._depth += 1
            elif token in b"}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.failed = "a JSON document without `traceEvents`"
                    return True
            elif token == b'"traceEvents"' and self._depth == 1:
                colon = COLON.match(view, match.end())
                if match.end() + KEY_ROOM > len(view) and (colon is None or colon.end() == len(view)):
                    self._at = match.start()
                    return False
                if colon is not None:
                    return self._array(view, match.start(), colon.end())
            self._at = match.end()
        return False

    def _array(self, view: bytearray, key_at: int, value_at: int) -> bool:
        if view[value_at : value_at + 1] != b"[":
            self.failed = "`traceEvents` is not an array"
            return True
        self.key_at, self.start = key_at, value_at + 1
        return True

    def _too_long(self) -> bool:
        if len(self.buffer) <= MAX_HEADER:
            return False
        self.failed = f"no `traceEvents` in the first {MAX_HEADER >> 20} MiB"
        return True

    def metadata(self, tail: bytes) -> dict[str, Any]:
        """Return the top-level keys before and after the events; a value cut off at the end is left out."""
        if self.key_at is None:
            return {}
        before = top_level_items(bytes(self.buffer[: self.key_at]))
        return before | top_level_items(b"{" + tail.lstrip(b" \t\r\n,]"))


@dataclass
class ScanRecord:
    """All that a scan found besides events: counted repairs, phases, metadata, and why it stopped early."""

    issues: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    metadata: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None  # no events were found at all, and why
    truncated: bool = False  # the file ends inside its events
    bare: bool = False  # the file is an array of events, without the object around it


class Events(Protocol):
    """A reader of the event array."""

    ended: bool  # the `]` was reached
    guessed: bool  # the end had to be guessed

    def feed(self, block: bytes) -> None:
        """Append more of the file."""

    def drain(self, *, final: bool) -> Iterator[pa.RecordBatch]:
        """Read all whole events; with `final`, no more will come."""

    def rest(self) -> bytes:
        """Return what follows the array."""


EventsOf = Callable[[bytes, Counter[str], Counter[str]], Events]
"""Makes a reader of the first bytes of the array, which counts repairs and phases."""


def scan(
    blocks: Iterator[bytes], record: ScanRecord, events_of: EventsOf = EventBuffer
) -> Iterator[pa.RecordBatch]:
    """Yield batches of event_fields.SCANNED in file order; `record` is complete once the iterator is exhausted.

    events_of: makes the reader of the array; what it raises passes through.
    """
    header = HeaderScanner()
    for block in blocks:
        if header.feed(block):
            break
    if header.start is None:
        record.failed = header.failed or "it ends before its `traceEvents` (cut off, or not JSON)"
        record.metadata = {"start": bytes(header.buffer[:KEPT_START])}
        return
    record.bare = header.key_at is None
    with memoryview(header.buffer) as view:
        begin = bytes(view[header.start :])
    del header.buffer[header.start :]
    events = events_of(begin, record.issues, record.phases)
    yield from events.drain(final=False)
    while not events.ended and (more := next(blocks, None)) is not None:
        if not record.phases and record.issues["malformed_event"] > HOPELESS:
            record.failed = "its `traceEvents` hold no events"
            return
        events.feed(more)
        yield from events.drain(final=False)
    if not events.ended:
        yield from events.drain(final=True)
    record.truncated = not events.ended or events.guessed
    tail = bytearray(events.rest())
    for block in blocks:
        if len(tail) > MAX_HEADER:
            record.issues["metadata_cut"] = 1
            break
        tail += block
    record.metadata = header.metadata(bytes(tail)) if events.ended else header.metadata(b"")


# Finds the event array of a Chrome trace: `traceEvents` among top-level keys, or a bare array.
#
# Keys may come before or after the array; strings may hold braces or the word itself; the file may be cut off
# anywhere. Only what surrounds the events is kept, in bounded memory.


_GAP = re.compile(r"[\s,]*")
_COLON = re.compile(r"\s*:\s*")


def top_level_items(data: bytes) -> dict[str, Any]:
    """Return keys and values of a JSON object that may be cut off: every whole pair up to the first fault."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    decoder = json.JSONDecoder(strict=False)
    found: dict[str, Any] = {}
    at = 1
    try:
        while True:
            gap = _GAP.match(text, at)
            if gap is None or text[gap.end() : gap.end() + 1] != '"':
                return found
            key, at = decoder.raw_decode(text, gap.end())
            colon = _COLON.match(text, at)
            if colon is None:
                return found
            found[key], at = decoder.raw_decode(text, colon.end())
    except (ValueError, RecursionError):
        return found
