"""Columns of the tables that a `Run` holds. Times are integer nanoseconds since the epoch of the writer's clock.

The event table is the waist of tracekit: Kineto traces, flight-recorder dumps and published operation
tables all become these columns, one table a rank, and every analysis reads only these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.errors import InputError
from tracekit.thresholds.ingest import MAX_COUNT, MAX_FLOPS, MAX_RANKS, MAX_TIME_NS

DICT = pa.dictionary(pa.int32(), pa.string())

EVENTS = pa.schema(
    [
        pa.field("ts", pa.int64(), nullable=False),  # start, ns
        pa.field("dur", pa.int64(), nullable=False),  # ns, >= 0
        pa.field("cat", DICT),  # Kineto category: cpu_op, kernel, user_annotation, gpu_memcpy, ...
        pa.field("name", DICT),
        pa.field("pid", pa.int64()),  # null where the file holds no integer
        pa.field("tid", pa.int64()),
        pa.field("device", pa.int32()),  # args.device
        pa.field("stream", pa.int64()),  # args.stream
        pa.field(
            "correlation", pa.int64()
        ),  # args.correlation: joins a kernel to its launch; of a table's rows, to a computation
        pa.field("external_id", pa.int64()),  # args["External id"]
        # communication arguments, null on other rows
        pa.field("collective", DICT),  # args["Collective name"]
        pa.field("dtype", DICT),
        pa.field("in_nelems", pa.int64()),
        pa.field("out_nelems", pa.int64()),
        pa.field("in_split", DICT),
        pa.field("out_split", DICT),
        pa.field("group_size", pa.int32()),
        pa.field("group", pa.int32()),  # row in GROUPS, null where the members are unknown
        pa.field("pg_name", DICT),
        pa.field("pg_desc", DICT),
        pa.field("src_rank", pa.int32()),  # global rank; null when absent or negative
        pa.field("dst_rank", pa.int32()),
        pa.field("group_rank", pa.int32()),  # args.Rank: own rank in the group, of a message the peer's
        pa.field("seq", pa.int64()),
        pa.field("comms_id", DICT),
        pa.field(
            "input_peer", pa.int32()
        ),  # the peer's rank in the group: Concrete Inputs of c10d::send, recv_
        pa.field("grid", pa.int32()),  # args.grid[0] of a kernel: of messages no fewer than its channels
        pa.field(
            "wait_stream", pa.int64()
        ),  # args.wait_on_stream: of a cuda_sync event, the stream that its stream waits for
        pa.field(
            "wait_record", pa.int64()
        ),  # args.wait_on_cuda_event_record_corr_id: up to which launch there
        pa.field("flops", pa.int64()),  # of a matrix product or attention, from args["Input Dims"]
        pa.field("micro_batch", pa.int32()),  # operation tables only
    ]
)
"""One row per event with a duration (ph X, or paired B/E), of one rank, sorted by ts, then longest first."""

GROUPS = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("ranks", pa.list_(pa.int32()), nullable=False),  # sorted, unique: the key of a group
        pa.field("names", pa.list_(pa.string()), nullable=False),  # every name it carried on any rank, sorted
        pa.field("descs", pa.list_(pa.string()), nullable=False),  # every description, sorted
    ]
)
"""Process groups by member set: names repeat with other members on other ranks, member sets do not."""

RUN_SCHEMA = "tracekit.run/1"


# The event table of one rank as it comes back from a run folder: only what tracekit writes there is read.
#
# A folder travels and may be changed, its hashes with it. A column of another type, a missing time, or a
# number beyond its range is refused with the file named; nothing behind this door loops or allocates by a
# number of the file.

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
"""Least value of a column, and the first that is too great; `group` counts the rank's groups.

`pid` and `tid` only distinguish threads: any integer will do.
"""


def checked(table: pa.Table, path: Path, groups: int) -> pa.Table:
    """Return the columns of a stored event table in the types of EVENTS.

    path: the file, for the message. groups: how many groups the rank has. Raises InputError where a column is there
    twice, is of another type, lacks a time or holds a number that tracekit never writes.
    """
    names = table.schema.names
    if len(set(names)) < len(names):
        raise _refused(path, "a column is there twice")
    wanted = _fields(tuple(names))
    try:
        table = table if table.schema.equals(wanted) else table.cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise _refused(path, str(error).splitlines()[0][:120]) from error
    for name in names:
        if (name == "group" or name in _RANGES) and not _within(table, name, groups):
            raise _refused(path, f"column {name} holds what is not an event's")
    return table


@cache
def _fields(names: tuple[str, ...]) -> pa.Schema:
    """Return the fields of EVENTS with these names."""
    return pa.schema([EVENTS.field(name) for name in names])


def _within(table: pa.Table, name: str, groups: int) -> bool:
    column: Any = table.column(name)
    if name in _TIMES and column.null_count:
        return False
    if column.null_count == len(column):
        return True
    low, high = (0, groups) if name == "group" else _RANGES[name]
    found = pc.min_max(column)
    least, most = found["min"].as_py(), found["max"].as_py()
    return least is None or (low <= least and most < high)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path}: is not an event table of tracekit ({why}); ingest the traces again")


@dataclass(frozen=True)
class Group:
    """A process group: the sorted member set is its identity.

    group: row in GROUPS. names, descs: every name and description it carried on any rank, sorted.
    """

    group: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    descs: tuple[str, ...]


class InferredGroup(Group):
    """A process group that no file names: the common ends of its collectives show it. It is never written."""
