"""The event table of one rank as it comes back from a run folder: only what tracekit writes there is read.

A folder travels and may be changed, its hashes with it. A column of another type, a missing time, or a number beyond
its range is refused with the file named; nothing behind this door loops or allocates by a number of the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import InputError
from tracekit.schema import EVENTS
from tracekit.thresholds.ingest import MAX_COUNT, MAX_FLOPS, MAX_RANKS, MAX_TIME_NS

_TIMES = {"ts": (-MAX_TIME_NS, MAX_TIME_NS), "dur": (0, MAX_TIME_NS)}
_RANKS = ("src_rank", "dst_rank", "group_rank", "input_peer")
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    **_TIMES,
    **dict.fromkeys(_RANKS, (0, MAX_RANKS)),
    "group_size": (0, MAX_RANKS + 1),
    **dict.fromkeys(("device", "stream", "correlation", "external_id"), (0, MAX_COUNT)),
    **dict.fromkeys(("in_nelems", "out_nelems", "grid", "wait_stream", "wait_record"), (0, MAX_COUNT)),
    "flops": (0, MAX_FLOPS),
    **dict.fromkeys(("seq", "micro_batch"), (-MAX_COUNT, MAX_COUNT)),
}
"""Least value of a column, and the first that is too great; `group` counts the rank's groups."""
_ANY = frozenset({"pid", "tid"})
"""Columns that only distinguish threads: any integer will do."""


def checked(table: pa.Table, path: Path, groups: int) -> pa.Table:
    """Return the columns of a stored event table in the types of EVENTS.

    path: the file, for the message. groups: how many groups the rank has. Raises InputError where a column is of
    another type, lacks a time or holds a number that tracekit never writes.
    """
    fields = [EVENTS.field(name) for name in table.schema.names]
    try:
        table = table.cast(pa.schema(fields))
    except (pa.ArrowException, ValueError) as error:
        raise _refused(path, str(error).splitlines()[0][:120]) from error
    for field in fields:
        if (
            pa.types.is_integer(field.type)
            and field.name not in _ANY
            and not _within(table, field.name, groups)
        ):
            raise _refused(path, f"column {field.name} holds what is not an event's")
    return table


def _within(table: pa.Table, name: str, groups: int) -> bool:
    column: Any = table.column(name)
    if name in _TIMES and column.null_count:
        return False
    low, high = (0, groups) if name == "group" else _RANGES[name]
    found = pc.min_max(column)
    least, most = found["min"].as_py(), found["max"].as_py()
    return least is None or (low <= least and most < high)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path}: is not an event table of tracekit ({why}); ingest the traces again")
