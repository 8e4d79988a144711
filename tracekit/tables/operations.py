"""From one rank's events to its communication operations and its compute intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.store import Group, Run
from tracekit.tables.arguments import read_arguments, resolve_groups
from tracekit.tables.compute import communicates, compute_intervals
from tracekit.tables.event_columns import Mask, Values, ints, matches
from tracekit.tables.host_events import Host
from tracekit.tables.intervals import I64, Intervals, empty
from tracekit.tables.kernel_order import KernelOrder, Launched, kernel_order
from tracekit.tables.kernel_records import alone, join
from tracekit.tables.readiness import ready_times
from tracekit.tables.step_marks import I32, captures, issue_times, label, launch_rows, step_spans

_COLUMNS = [
    "ts", "dur", "cat", "name", "pid", "tid", "stream", "correlation", "external_id",
    "collective", "dtype", "in_nelems", "out_nelems", "group", "group_size", "pg_name", "pg_desc", "src_rank",
    "dst_rank", "group_rank", "seq", "input_peer",
]  # fmt: skip


@dataclass(frozen=True)
class RankOps:
    """Communication of one rank, sorted by start; all arrays have one entry an operation, times in ns.

    The messages of one batched kernel stand behind each other, in order of issue, and share `kernel`, start and end.
    """

    rank: int
    on_gpu: bool
    start: I64
    end: I64
    op: tuple[str, ...]  # canonical names, by operation
    token: tuple[str, ...]  # op, dtype and element count: equal for one collective on all ranks, by operation
    group: I32  # index into Run.groups; -1 unknown
    src: I32  # global rank of the sender of a p2p operation, -1 else
    dst: I32
    seq: I64  # -1 unknown
    nelems: I64
    step: I32  # NO_STEP outside every step
    busy: Intervals  # compute, disjoint
    kernel: I64  # number of the kernel that carries the operation, in order of start
    issued: I64  # when the host issued the operation: its launch, where known, else its start
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # host span of each profiler step
    window: tuple[int, int] = (0, 0)  # first start and last end of anything recorded
    ready: I64 | None = None  # wall time from which it could start; UNKNOWN where the trace does not tell
    stream: I64 | None = None  # stream of its kernel, -1 where the trace does not tell
    way: I64 | None = None  # direction of a message: SENDS, RECEIVES, 0 unknown
    message: I64 | None = (
        None  # number that both ends of an inferred message share; -1 of any other operation
    )
    told_size: I32 | None = None  # ranks in the operation's group, as the trace counts them; -1 unknown
    begins: tuple[int, ...] = (0,)  # of the recording's windows, ns
    taken: I64 | None = None  # elements that the rank received; -1 unknown
    order: KernelOrder | None = None  # what its device ran, where no step is marked
    place: I64 | None = None  # of a message's peer in a group that is not named; -1 unknown


def read_rank(run: Run, rank: int, *, marked: bool = True) -> RankOps:
    """Operations and compute intervals of `rank`; KeyError where the run has no such rank, InputError on a bad file.

    Step marks are read only if `marked`.
    """
    events = run.events(rank, _COLUMNS)
    mine = [g for g in run.groups if rank in g.ranks]
    return rank_ops(rank, resolve_groups(events, mine), mine, run.record(rank).windows, marked=marked)


def rank_ops(
    rank: int,
    events: pa.Table,
    groups: Sequence[Group] = (),
    windows: Sequence[int] = (),
    *,
    marked: bool = True,
) -> RankOps:
    """Operations and compute intervals of `rank` from its event table (schema.EVENTS).

    `groups` are the process groups of the run that hold the rank: without them, peers told by their place in a group
    stay unknown. `windows` are the begins of its recording windows, ns, where there are several.
    """
    if not events.num_rows:
        return _nothing(rank)
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    host = Host(ints(events, "pid", -1), ints(events, "tid", -1), start, end)
    cat = matches(events, "cat", lambda c: c)
    kernel = np.isin(cat, ["kernel"])
    on_gpu = bool(kernel.any())
    steps = step_spans(events, cat, start, end) if marked else {}
    comm = communicates(events, kernel, on_gpu=on_gpu)
    busy = compute_intervals(events, cat, comm, start, end, on_gpu=on_gpu)
    rows = np.flatnonzero(comm)
    rows = rows[np.argsort(start[rows], kind="stable")]
    begins = captures(steps, start, windows)
    joined = join(events, cat, host, rows, begins) if on_gpu else alone(rows)
    args = read_arguments(rank, events, cat, host, rows, joined, groups)
    begin, finish = start[rows[joined.kernel]], end[rows[joined.last]]
    stream = ints(events, "stream", -1)[rows[joined.kernel]]
    issued = issue_times(joined.launch, stream, begin, start, begins)
    carriers = rows[joined.kernel]
    ready = ready_times(events, cat, comm, carriers, issued, start, end, begins) if on_gpu else None
    return RankOps(
        rank, on_gpu, begin, finish, args.op, args.token, args.group, args.src, args.dst, args.seq, args.nelems,
        label(issued, steps), busy, joined.kernel, issued, steps, (int(start.min()), int(end.max())),
        ready, ints(events, "stream", -1)[carriers], args.way, told_size=args.size, begins=tuple(begins),
        taken=args.taken, order=None if steps else _order(events, cat, comm, start, end, begins), place=args.place,
    )  # fmt: skip


def _order(
    events: pa.Table, cat: Values, comm: Mask, start: I64, end: I64, begins: Sequence[int]
) -> KernelOrder | None:
    """What the device ran, in order; None without kernels that compute. `begins` are those of the windows."""
    rows = np.flatnonzero(cat == "kernel")
    stream = ints(events, "stream", -1)[rows]
    issued = issue_times(launch_rows(events, cat, rows, begins), stream, start[rows], start, begins)
    return kernel_order(events, cat, comm, Launched(rows, stream, issued), start, end, begins)


def _nothing(rank: int) -> RankOps:
    none64, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return RankOps(
        rank, False, none64, none64, (), (), none32, none32, none32, none64, none64, none32, empty(), none64,
        none64,
    )  # fmt: skip
