"""The scanner: takes decompressed blocks, gives typed batches and a record of all that was found and repaired.

The interface is narrow so that a faster scanner can replace it. `header` finds the event array, `event_array` reads it,
and the keys before and after the array become `ScanRecord.metadata`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tracekit.ingest.kineto.event_array import EventBuffer
from tracekit.ingest.kineto.header import HeaderScanner
from tracekit.thresholds.ingest import HOPELESS, KEPT_START, MAX_HEADER


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
    events = events_of(bytes(header.buffer[header.start :]), record.issues, record.phases)
    del header.buffer[header.start :]
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
