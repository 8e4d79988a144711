"""Reads the event array: fast over whole blocks, forgiving where a block is refused.

Blocks of a few megabytes are cut at event separators, the commas between events become line ends, and
pyarrow.json reads the rest with an explicit schema, skipping unknown fields. A comma replaced or a block cut
inside a string or a nested array leaves no valid JSON, so pyarrow refuses the block and nothing wrong can
come of it. What is refused is narrowed down and read event by event with the standard library, which also
learns how this file separates.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from tracekit.ingest.kineto.event_fields import (
    CALL_MARKS,
    COMMS_MARKS,
    GRID_MARK,
    INTEGER_KEYS,
    SCALES,
    WAIT_MARK,
    Dialect,
    text_key,
)
from tracekit.ingest.kineto.event_reader import EventReader, Redelimiter
from tracekit.ingest.kineto.gloo_types import GLOO_MARK
from tracekit.ingest.kineto.product_flops import SHAPES_KEY, SHAPES_MARK, with_shapes_as_text
from tracekit.ingest.kineto.scanned_columns import from_rows, typed
from tracekit.thresholds.ingest import KEY_ROOM, MAX_BURST, MAX_EVENT, NEAR_END, SMALL, TEXT, WINDOW

LEADING = re.compile(rb"[\s,]*")
ARRAY_END = re.compile(rb"\}\s*\]")
BAD_ROW = re.compile(r"in row (\d+)")
TEXT_FOR_NUMBER = re.compile(r"Column\((?:/args)?/([^)]+)\) changed from number to string")
ENCODING = ("utf-8", "surrogateescape")  # every byte string round-trips


class EventBuffer:
    """The unread part of the event array; it always starts at a true boundary between events."""

    def __init__(self, buffer: bytes, issues: Counter[str], phases: Counter[str]) -> None:
        self.ended = False  # the `]` was reached
        self.guessed = False  # the end had to be guessed
        self._buffer = buffer
        self._at = 0
        self._issues = issues
        self._phases = phases
        self._reader = EventReader(issues, phases)
        self._lines = Redelimiter()
        self._dialect = Dialect()
        self._window = WINDOW
        self._burst = 1
        self._retry = False  # the window was narrowed: try pyarrow again at once
        self._skipping = False  # inside an event too long to hold

    def feed(self, block: bytes) -> None:
        """Append more of the file."""
        self._buffer = self._buffer[self._at :] + block if self._at < len(self._buffer) else block
        self._at = 0

    def rest(self) -> bytes:
        """Return what follows the array."""
        return self._buffer[self._at :]

    def drain(self, *, final: bool) -> Iterator[pa.RecordBatch]:
        """Read all whole events; with `final`, also decide about a cut one at the end."""
        while self._ready():
            end = min(len(self._buffer), self._at + self._window)
            cut = self._lines.last_end(self._buffer, self._at, end)
            # pyarrow.json dereferences nothing where its first row is `null`: only an object may come first
            if cut is not None and self._buffer[self._at : self._at + 1] == b"{":
                batch = self._fast(cut)
                if batch is not None and batch.num_rows:
                    yield batch
                if batch is not None or self._retry:
                    continue
            before = self._at
            rows = self._slow(final=final)
            if rows:
                yield from_rows(rows)
            if self._at == before:
                return

    def _ready(self) -> bool:
        """Skip to the next event; false at the end of the array or of the buffer."""
        if self._skipping:
            self._at = self._next_end(self._at) or max(self._at, len(self._buffer) - KEY_ROOM)
        if self._skipping:
            return False
        self._at = LEADING.match(self._buffer, self._at).end()  # type: ignore[union-attr]
        if self._buffer[self._at : self._at + 1] == b"]":
            self._at += 1
            self.ended = True
        return not self.ended and self._at < len(self._buffer)

    def _fast(self, cut: int) -> pa.RecordBatch | None:
        """Read up to `cut`, or to the first event that pyarrow refuses; None where nothing could be read."""
        block = self._buffer[self._at : cut]
        self._retry = False
        try:
            batch = self._parse(block)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return self._narrow(block, str(error))
        self._at = cut
        self._window = min(WINDOW, self._window * 4)
        self._burst = max(1, self._burst // 2)
        return batch

    def _narrow(self, block: bytes, error: str) -> pa.RecordBatch | None:
        """Read the events before the refused one, or halve the window, or leave it to the slow way."""
        if self._learn_dialect(error):
            self._retry = True
            return None
        row = BAD_ROW.search(error)
        ahead = self._lines.offset(block, int(row[1])) if row else 0
        if ahead:
            try:
                batch = self._parse(block[:ahead])
            except pa.ArrowInvalid:
                ahead = 0
            else:
                self._at += ahead
                self._window = max(4 * SMALL, 2 * ahead)
                return batch
        if len(block) > SMALL and not (row and int(row[1]) == 0):
            self._window = len(block) // 2
            self._retry = True
        return None

    def _learn_dialect(self, error: str) -> bool:
        """Adapt to what this file does all through; true where reading the block again may help."""
        text = TEXT_FOR_NUMBER.search(error)
        dialect = self._dialect
        if "requires scale" in error and dialect.scale == SCALES[0]:
            self._dialect = dialect._replace(scale=SCALES[1])
        elif "to int64, couldn't parse" in error and not dialect.wide:
            self._dialect = dialect._replace(wide=True)
        elif text and text[1] in INTEGER_KEYS and text[1] not in dialect.texts:
            self._dialect = dialect._replace(texts=(*dialect.texts, text[1]))
        return self._dialect is not dialect

    def _parse(self, block: bytes) -> pa.RecordBatch:
        text, left_out = self._lines.text(block)
        dialect = self._dialect._replace(
            comms=any(mark in text for mark in COMMS_MARKS),
            inputs=any(mark in text for mark in CALL_MARKS),
            waits=WAIT_MARK in text,
            grids=GRID_MARK in text,
            shapes=SHAPES_MARK in text,
            types=GLOO_MARK in text,
        )
        if dialect.shapes:
            text = with_shapes_as_text(text, text_key(SHAPES_KEY))
        for key in dialect.texts:  # a bare quote cannot occur inside a string, so this matches keys only
            for colon in (": ", ":"):
                text = text.replace(f'"{key}"{colon}"'.encode(), f'"{text_key(key)}"{colon}"'.encode())
        if not text:
            self._phases.update(left_out)
            return from_rows([])
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 64),
            parse_options=pj.ParseOptions(
                explicit_schema=dialect.schema(), unexpected_field_behavior="ignore"
            ),
        )
        self._phases.update(left_out)
        return typed(table, dialect, self._issues, self._phases)

    def _slow(self, *, final: bool) -> list[dict[str, Any]]:
        """Read the next few events one by one; no rows and no progress where more bytes are needed."""
        rows: list[dict[str, Any]] = []
        left = max(self._burst, 2)  # two show the separator between them
        self._burst = min(MAX_BURST, left * 2)
        size = TEXT
        while left > 0 and self._ready():
            text = self._buffer[self._at : self._at + size].decode(*ENCODING)
            whole = self._at + size >= len(self._buffer)
            done, read, incomplete = self._burst_of(text, left, rows)
            left -= read
            self._at += len(text[:done].encode(*ENCODING))
            if read or not self._ready():
                continue
            if incomplete and not whole:
                size *= 4
            elif self._give_up(incomplete=incomplete, final=final):
                break
            else:
                left -= 1
        return rows

    def _burst_of(self, text: str, count: int, rows: list[dict[str, Any]]) -> tuple[int, int, bool]:
        """Append rows of up to `count` events; return where it stopped, how many, whether `text` ends in one."""
        at = read = 0
        last = -1
        while read < count and at < len(text) and text[at] != "]":
            if text[at] in " \t\r\n,":
                at += 1
                continue
            if last >= 0 and text[at] == "{" and text[last] == "}":
                following = text[at : at + KEY_ROOM].encode(*ENCODING)
                self._lines.learn(text[last : at + 1].encode(*ENCODING), following)
            try:
                event, end = self._reader.decode(text, at)
            except RecursionError:
                return at, read, False
            except ValueError as error:
                near_end = getattr(error, "pos", 0) >= len(text) - NEAR_END
                return at, read, near_end or "Unterminated string" in str(error)
            if end == len(text) and not isinstance(event, dict | list):
                return at, read, True  # a bare number may go on
            row = self._reader.row(event)
            if row is not None:
                rows.append(row)
            last, at, read = end - 1, end, read + 1
        return at, read, False

    def _give_up(self, *, incomplete: bool, final: bool) -> bool:
        """Wait for more bytes to read the event at hand (true), or step over it (false)."""
        oversized = len(self._buffer) - self._at > MAX_EVENT
        if incomplete and not final and not oversized:
            return True
        resumed = self._next_end(self._at)
        if resumed is None and not final and not oversized:
            return True
        if incomplete and final:
            self.guessed = True
            if resumed is None:
                self._at = len(self._buffer)
                return True
        self._issues["oversized_event" if oversized else "malformed_event"] += 1
        if resumed is not None:
            self._at = resumed
        elif final:
            end = ARRAY_END.search(self._buffer, self._at)
            self._at = end.end() - 1 if end else len(self._buffer)
        else:
            self._skipping = True
            self._at = len(self._buffer) - KEY_ROOM
        return False

    def _next_end(self, start: int) -> int | None:
        found = self._lines.next_end(self._buffer, start)
        self._skipping = self._skipping and found is None
        return found
