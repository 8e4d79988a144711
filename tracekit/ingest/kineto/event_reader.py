r"""Rewrites blocks of events for pyarrow's line-wise JSON reader, and reads alone the events that it refuses.

The comma between two events becomes a line end. Wherever that happens by mistake, inside a string or a nested array,
no valid JSON is left, so the reader refuses the block and nothing wrong can come of it. Events that are not stored
(flows, instants, counters, metadata) are left out before they cost any parsing, where the file writes `ph` first and
the event closes no array, so that it cannot be the last one.

A refused event is read with the standard library, slowly. A value of the wrong type is dropped and counted, and the
rest of the event is kept. An event without a usable start is dropped whole.
"""

import json
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from typing import Any

from tracekit.ingest.kineto.event_fields import (
    CALLS,
    COMMS,
    GRIDS,
    KEPT_PHASES,
    PLAIN,
    TOP,
    WAITS,
    Field,
    peer_of,
)
from tracekit.ingest.kineto.gloo_types import TYPES_KEY, type_of
from tracekit.ingest.kineto.product_flops import SHAPES_KEY, elements_of, flops_of
from tracekit.schema import DICT
from tracekit.thresholds.ingest import (
    MAX_JSON_DIGITS,
    MAX_SEPARATORS,
    MAX_TIME_EXPONENT,
    MAX_WHOLE_EXPONENT,
    MIN_TIME_EXPONENT,
)

INT64 = range(-(2**63), 2**63)
HALF_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that represent no undecodable byte


class EventReader:
    """`raw_decode` an event from text, and turn it into a row of event_fields.SCANNED."""

    def __init__(self, issues: Counter[str], phases: Counter[str]) -> None:
        self._issues = issues
        self._phases = phases
        self._decoder = json.JSONDecoder(
            strict=False,
            parse_float=_of_json,
            parse_int=_of_json,
            parse_constant=lambda _: Decimal("NaN"),
            object_pairs_hook=self._pairs,
        )
        self._duplicates = 0

    def decode(self, text: str, at: int) -> tuple[Any, int]:
        """Return the JSON value at `at`, and where it ends; ValueError or RecursionError where there is none."""
        self._duplicates = 0
        return self._decoder.raw_decode(text, at)

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        self._duplicates += len(found) < len(pairs)
        return found

    def row(self, event: Any) -> dict[str, Any] | None:
        """Return the row of a decoded event; None where its phase is not stored or it has no usable start."""
        if not isinstance(event, dict):
            self._issues["malformed_event"] += 1
            return None
        phase = event.get("ph")
        self._phases[self._text(phase) or "none" if isinstance(phase, str) else "none"] += 1
        if phase not in KEPT_PHASES:
            return None
        if self._duplicates:
            self._issues["duplicate_key"] += 1
        row: dict[str, Any] = {"ts": self._time(event.get("ts")), "dur": self._time(event.get("dur"))}
        if row["ts"] is None:
            self._issues["missing_timestamp"] += 1
            return None
        spans_row = event.get("cat") == "Trace"  # Kineto itself puts words for pid and tid there
        for field in TOP:
            row[field.column] = self._value(event, field, quiet=spans_row)
        args = event.get("args")
        if isinstance(args, dict):
            for field in (*PLAIN, *COMMS, *WAITS):
                row[field.column] = self._value(args, field, quiet=False)
            if event.get("name") in CALLS:
                row["input_peer"] = peer_of(args.get("Concrete Inputs"))
            row["flops"] = flops_of(row["name"], args.get(SHAPES_KEY))
            if row["in_nelems"] is None:
                row["in_nelems"] = elements_of(row["name"], args.get(SHAPES_KEY))
            if row["dtype"] is None:
                row["dtype"] = type_of(row["name"], args.get(TYPES_KEY))
            grid = args.get("grid")
            if isinstance(grid, list):
                row["grid"] = self._value({"grid": next(iter(grid), None)}, *GRIDS, quiet=False)
        elif args is not None:
            self._issues["malformed_arguments"] += 1
        return row

    def _value(self, holder: dict[str, Any], field: Field, *, quiet: bool) -> Any:
        value = next((v for k in field.keys if (v := holder.get(k)) is not None), None)
        if value is None:
            return None
        if field.type == DICT:
            return self._text(value)
        number = self._number(value)
        if number is None:
            if not quiet:
                self._issues["non_integer_value"] += 1
            return None
        if number not in INT64:
            self._issues["integer_overflow"] += 1
            return None
        return number

    def _text(self, value: Any) -> str:
        text = (
            value if isinstance(value, str) else str(value) if isinstance(value, Decimal) else _compact(value)
        )
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes that were no UTF-8, or half a surrogate pair
            self._issues["bad_utf8"] += 1
            text = HALF_PAIR.sub("\ufffd", text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return text

    def _number(self, value: Any) -> int | None:
        if isinstance(value, str):
            try:
                value = _decimal(value)
            except InvalidOperation:
                return None
        if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() > MAX_JSON_DIGITS:
            return None
        whole = value.to_integral_value() if value.adjusted() < MAX_WHOLE_EXPONENT else value
        return int(whole) if whole == value else None

    def _time(self, value: Any) -> int | None:
        """Microseconds as integer nanoseconds, half to even; None where there is no usable number."""
        if isinstance(value, str):
            try:
                value = _decimal(value)
            except InvalidOperation:
                return None
        if not isinstance(value, Decimal):
            return None
        if not value.is_finite():
            self._issues["not_a_number"] += 1
            return None
        if value.adjusted() > MAX_TIME_EXPONENT:
            self._issues["integer_overflow"] += 1
            return None
        if value.adjusted() < MIN_TIME_EXPONENT:
            return 0
        with localcontext(prec=MAX_JSON_DIGITS):
            nanos = int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
        if nanos not in INT64:
            self._issues["integer_overflow"] += 1
            return None
        return nanos


def _decimal(text: str) -> Decimal:
    return Decimal(text) if len(text) <= MAX_JSON_DIGITS else Decimal("Infinity")


def _of_json(text: str) -> Decimal:
    """A JSON number; infinite where its exponent is beyond what Decimal holds, so that it counts as no number."""
    try:
        return _decimal(text)
    except InvalidOperation:
        return Decimal("Infinity")


def _compact(value: Any) -> str:
    return json.dumps(value, default=str)


ANY_SEPARATOR = re.compile(rb"\}\s*,\s*\{")
PHASE_FIRST = re.compile(rb'\{(\s*"ph"\s*:\s*")\w"')
STORED = frozenset((b'X"', b'B"', b'E"'))
NOT_STORED = frozenset(bytes((c,)) + b'"' for c in b"iIstfMCbenNODPRcvV")  # the Chrome format's other phases


class Redelimiter:
    """The separators of a file, learned from events that were read one by one."""

    def __init__(self) -> None:
        self.separators: list[bytes] = []
        self._before_phase = b""  # with which every event of the file starts, or nothing

    def learn(self, separator: bytes, following: bytes) -> None:
        """Take the bytes between two events, braces included, and the beginning of the second event."""
        known = self.separators
        if separator in known or len(known) == MAX_SEPARATORS or not ANY_SEPARATOR.fullmatch(separator):
            return
        known.append(separator)
        first = PHASE_FIRST.match(following)
        if first and len(known) == 1:
            self._before_phase = first[1]

    def last_end(self, buffer: bytes, start: int, end: int) -> int | None:
        """Return the offset behind the last event of the range, as far as separators show it."""
        found = max((buffer.rfind(s, start, end) for s in self.separators), default=-1)
        return found + 1 if found > start else None

    def next_end(self, buffer: bytes, start: int) -> int | None:
        """Return the offset behind the next place that looks like the end of an event followed by another."""
        found = [at for s in self.separators if (at := buffer.find(s, start)) >= 0]
        if not self.separators and (match := ANY_SEPARATOR.search(buffer, start)):
            found = [match.start()]
        return min(found) + 1 if found else None

    def _pieces(self, block: bytes) -> list[bytes]:
        """Split `block`, from brace to brace, into the insides of its events."""
        for separator in self.separators[1:]:
            block = block.replace(separator, self.separators[0])
        pieces = block.split(self.separators[0])
        pieces[0] = pieces[0][1:]
        pieces[-1] = pieces[-1][:-1]
        return pieces

    def text(self, block: bytes) -> tuple[bytes, Counter[str]]:
        """Return the stored events of `block`, one per line, and a count of the phases of the others."""
        if not self.separators:
            return block, Counter()
        if not self._before_phase or block[:1] != b"{":
            for separator in self.separators:
                block = block.replace(separator, b"}\n{")
            return block, Counter()
        pieces = self._pieces(block)
        kept, left_out = self._split(pieces)
        return b"{%s}" % b"}\n{".join(kept) if kept else b"", left_out

    def _split(self, pieces: list[bytes]) -> tuple[list[bytes], Counter[str]]:
        """The pieces worth parsing, and a count of the phases of the others; this runs once for every event."""
        before = self._before_phase
        at = len(before)
        to = at + 2
        kept = [
            p
            for p in pieces
            if p[at:to] in STORED or p[at:to] not in NOT_STORED or not p.startswith(before) or b"]" in p
        ]
        left_out: Counter[str] = Counter()
        if len(kept) < len(pieces):
            phases = [
                p[at] for p in pieces if p[at:to] in NOT_STORED and p.startswith(before) and b"]" not in p
            ]
            for phase, count in Counter(phases).items():
                left_out[chr(phase)] = count
        return kept, left_out

    def offset(self, block: bytes, row: int) -> int:
        """Return the offset in `block` of the event that became line `row`, or 0 if that is unknown."""
        if len(self.separators) != 1 or not row or block[:1] != b"{":
            return 0
        at = 0
        for piece in self._pieces(block):
            if not self._before_phase or self._split([piece])[0]:
                if row == 0:
                    return at
                row -= 1
            at += len(piece) + len(self.separators[0])
        return 0
