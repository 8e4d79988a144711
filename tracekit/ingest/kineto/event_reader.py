"""Reads one event at a time with the standard library: slow and forgiving, for events that pyarrow refuses.

A value of the wrong type is dropped and counted, and the rest of the event is kept. An event without a usable start is
dropped whole.
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
