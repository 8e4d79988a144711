"""From one rank's events to its communication operations and its compute intervals."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.store import Run
from tracekit.tables.arguments import read_arguments, resolve_groups
from tracekit.tables.compute import communicates, compute_intervals
from tracekit.tables.event_columns import ints, matches
from tracekit.tables.intervals import I64, Intervals, empty
from tracekit.tables.readiness import ready_times
from tracekit.tables.step_marks import I32, label, launch_times, step_spans

_COLUMNS = [
    "ts", "dur", "cat", "name", "tid", "stream", "correlation", "external_id", "collective", "dtype",
    "in_nelems", "out_nelems", "group", "group_size", "pg_name", "pg_desc", "src_rank", "dst_rank", "seq",
]  # fmt: skip


@dataclass(frozen=True)
class RankOps:
    """Communication of one rank, sorted by start; all arrays have one entry an operation, times in ns."""

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
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # host span of each profiler step
    window: tuple[int, int] = (0, 0)  # first start and last end of anything recorded
    ready: I64 | None = None  # wall time from which it could start; UNKNOWN where the trace does not tell


def read_rank(run: Run, rank: int) -> RankOps:
    """Operations and compute intervals of `rank`; KeyError where the run has no such rank, InputError on a bad file."""
    events = run.events(rank, _COLUMNS)
    mine = [g for g in run.groups if rank in g.ranks]
    return rank_ops(rank, resolve_groups(events, mine))


def rank_ops(rank: int, events: pa.Table) -> RankOps:
    """Operations and compute intervals of `rank` from its event table (schema.EVENTS)."""
    if not events.num_rows:
        return _nothing(rank)
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    cat = matches(events, "cat", lambda c: c)
    kernel = np.isin(cat, ["kernel"])
    on_gpu = bool(kernel.any())
    steps = step_spans(events, cat, start, end)
    comm = communicates(events, kernel, on_gpu=on_gpu)
    busy = compute_intervals(events, cat, comm, start, end, on_gpu=on_gpu)
    rows = np.flatnonzero(comm)
    rows = rows[np.argsort(start[rows], kind="stable")]
    args = read_arguments(rank, events, rows, on_gpu=on_gpu)
    launch = launch_times(events, cat, rows, start) if on_gpu else start[rows]
    ready = ready_times(events, cat, comm, rows, launch, start, end) if on_gpu else None
    return RankOps(
        rank, on_gpu, start[rows], end[rows], args.op, args.token, args.group, args.src, args.dst, args.seq,
        args.nelems, label(launch, steps), busy, steps, (int(start.min()), int(end.max())), ready,
    )  # fmt: skip


def _nothing(rank: int) -> RankOps:
    none64, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return RankOps(
        rank, False, none64, none64, (), (), none32, none32, none32, none64, none64, none32, empty()
    )
