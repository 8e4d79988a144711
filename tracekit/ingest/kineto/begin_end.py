"""Pairs begin and end events (ph B and E) of a thread into events with a duration."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import from_strings
from tracekit.ingest.kineto.scanned_columns import from_rows

COMPLETE = from_strings(["X"])[0]


class Pairing:
    """Open begin events by thread, in file order."""

    def __init__(self, issues: Counter[str]) -> None:
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        self._issues = issues

    def apply(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the batch's complete events, and the events that its end events complete."""
        complete = pc.equal(batch.column("ph"), COMPLETE)
        if complete.true_count == batch.num_rows:
            return [batch]
        done = [row for half in batch.filter(pc.invert(complete)).to_pylist() if (row := self._half(half))]
        batches = [batch.filter(complete)]
        return [*batches, from_rows(done)] if done else batches

    def _half(self, row: dict[str, Any]) -> dict[str, Any] | None:
        stack = self._open.setdefault((row["pid"], row["tid"]), [])
        if row["ph"] == "B":
            stack.append(row)
            return None
        names = [begin["name"] for begin in stack]
        if not stack or (row["name"] is not None and row["name"] not in names):
            self._issues["unpaired_begin_end"] += 1
            return None
        while row["name"] is not None and stack[-1]["name"] != row["name"]:
            stack.pop()
            self._issues["unpaired_begin_end"] += 1
        begin = stack.pop()
        return begin | {"ph": "X", "dur": row["ts"] - begin["ts"]}

    def close(self) -> None:
        """Count begin events without an end, at the end of the file."""
        left = sum(len(stack) for stack in self._open.values())
        if left:
            self._issues["unpaired_begin_end"] += left
