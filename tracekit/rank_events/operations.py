"""From one rank's events to its communication operations and its compute intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.intervals import Intervals, empty
from tracekit.rank_events.arguments import read_arguments, resolve_groups
from tracekit.rank_events.coded_words import Words, among
from tracekit.rank_events.compute import communicates, compute_intervals, operator_intervals
from tracekit.rank_events.event_columns import Values, ints, matches, present
from tracekit.rank_events.gloo_messages import message_times
from tracekit.rank_events.host_events import Host, host_of
from tracekit.rank_events.kernel_order import KernelOrder, Launched, kernel_order
from tracekit.rank_events.kernel_records import alone, join
from tracekit.rank_events.late_host import host_held
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.rank_events.readiness import ready_times
from tracekit.rank_events.step_marks import (
    I32,
    captures,
    issue_times,
    label,
    launch_rows,
    run_ahead,
    step_spans,
)
from tracekit.rank_events.stream_waits import I8, waited_for
from tracekit.rank_events.window_starts import opens_of
from tracekit.store import Group, Run
from tracekit.thresholds.tables import MOST_BEHIND_MARKS
from tracekit.units import I64, Mask

_COLUMNS = [
    "ts", "dur", "cat", "name", "pid", "tid", "device", "stream", "correlation", "external_id",
    "collective", "dtype", "in_nelems", "out_nelems", "group", "group_size", "pg_name", "pg_desc", "src_rank",
    "dst_rank", "group_rank", "seq", "input_peer", "grid", "wait_stream", "wait_record",
]  # fmt: skip


@dataclass(frozen=True)
class RankOps:
    """Communication of one rank, sorted by start; all arrays have one entry an operation, times in ns.

    The messages of one batched kernel follow each other, in order of issue, and share `kernel`, start and end.
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
    ready: I64 | None = None  # wall time from which it could start; UNKNOWN where not recorded
    stream: I64 | None = None  # stream of its kernel, or thread of Gloo; -1 unknown
    way: I64 | None = None  # direction of a message: SENDS, RECEIVES, 0 unknown
    message: I64 | None = (
        None  # number that both ends of an inferred message share; -1 of any other operation
    )
    told_size: I32 | None = None  # ranks in the operation's group, as the trace counts them; -1 unknown
    found: Mask | None = None  # messages that were done before the host looked for them
    begins: tuple[int, ...] = (0,)  # of the recording's windows, ns
    opens: tuple[
        int, ...
    ] = ()  # when the host was free to continue in each window, ns; as `begins` where empty
    taken: I64 | None = None  # elements that the rank received; -1 unknown
    order: KernelOrder | None = None  # the kernels of its device, where no step is marked
    place: I64 | None = None  # group rank of a message's peer in an unnamed group; -1 unknown
    own: I64 | None = None  # group rank of the rank itself there; -1 unknown
    grid: I64 | None = None  # grid of a message's kernel, an upper bound of its channels; -1 unknown
    waited: I8 | None = None  # whether compute waited for it: WAITED, FREE, or UNTOLD
    hint: I32 | None = None  # recorded group of an operation that cannot be matched by order; -1 none
    inferred: Mask | None = None  # whether its group was inferred from the ends of its stream or position
    operators: Intervals | None = None  # when operators ran, on a CPU trace; None: as `busy`
    held: I64 | None = None  # ns for which only the host held up the compute after it
    device: int = -1  # number of its device on its node; -1 where the trace names none or several

    def __post_init__(self) -> None:
        """Number the words of operations once, for all that ask for them."""
        object.__setattr__(self, "op", Words(self.op))
        object.__setattr__(self, "token", Words(self.token))

    @property
    def computed(self) -> Intervals:
        """Return when the rank computed, ns; for a CPU trace without the Python inside autograd nodes."""
        return self.busy if self.operators is None else self.operators


def read_rank(run: Run, rank: int, *, marked: bool = True, windows: Sequence[int] = ()) -> RankOps:
    """Return operations and compute intervals of `rank`; KeyError for an unknown rank, InputError on a bad file.

    Step marks are read only if `marked`. `windows` are the begins of recording windows, ns, instead of those of `run`.
    """
    events = run.events(rank, _COLUMNS)
    mine = [g for g in run.groups if rank in g.ranks]
    return rank_ops(
        rank, resolve_groups(events, mine), mine, windows or run.record(rank).windows, marked=marked
    )


def rank_ops(
    rank: int, events: pa.Table, groups: Sequence[Group] = (), windows: Sequence[int] = (), *, marked: bool = True
) -> RankOps:  # fmt: skip
    """Return operations and compute intervals of `rank` from its event table (schema.EVENTS).

    `groups` are the process groups of the run that hold the rank: without them, peers named by their place in a group
    stay unknown. `windows` are the begins of its recording windows, ns, where there are several. Step marks are read
    only if `marked`.
    """
    if not events.num_rows:
        return _nothing(rank)
    host = host_of(events)
    cat = matches(events, "cat", lambda c: c)
    on_gpu = bool((cat == "kernel").any())
    comm = communicates(events, cat == "kernel", on_gpu=on_gpu)
    threaded = not (on_gpu or present(events, "collective").any())
    start, end, found = message_times(events, host, comm & threaded)
    busy = compute_intervals(events, cat, comm, host, start, end, on_gpu=on_gpu)
    rows = _in_order(comm, start)
    steps = _marked(events, cat, host, rows, start) if marked else {}
    begins = captures(steps, start, windows)
    joined = join(events, cat, host, rows, begins) if on_gpu else alone(rows)
    args = read_arguments(rank, events, cat, host, rows, joined, groups)
    carriers = rows[joined.kernel]
    stream = ints(events, "stream", -1)[carriers]
    issued = issue_times(_launches(joined.launch, marked=marked), stream, start[carriers], start, begins)
    ready = ready_times(events, cat, comm, carriers, issued, start, end, begins) if on_gpu else None
    held = host_held(events, cat, host, comm, carriers, busy, begins) if on_gpu else None
    operators = None if on_gpu else operator_intervals(events, cat, host, busy)
    lane = np.where(among(args.op, UNDIRECTED), -1, host.tid[rows]) if threaded else stream
    return RankOps(
        rank, on_gpu, start[carriers], end[rows[joined.last]], args.op, args.token, args.group, args.src, args.dst,
        args.seq, args.nelems, label(issued, steps), busy, joined.kernel, issued, steps,
        (int(start.min()), int(end.max())), ready, lane, args.way, told_size=args.size, found=found[carriers],
        begins=tuple(begins), taken=args.taken, opens=opens_of(events, cat, begins), place=args.place, own=args.own,
        held=held, operators=operators,
        order=None if steps else _order(events, cat, comm, start, end, begins, marked=marked),
        waited=waited_for(events, cat, comm, carriers, end, begins), device=_device(events, carriers),
        grid=ints(events, "grid", -1)[carriers],
    )  # fmt: skip


def _marked(events: pa.Table, cat: Values, host: Host, rows: I64, start: I64) -> dict[int, tuple[int, int]]:
    """The marked steps, as `step_spans`; none if the marks say nothing about the operations `rows`."""
    steps = step_spans(events, cat, host.start, host.end)
    return {} if (cat == "kernel").any() and run_ahead(steps, cat, rows, start) else steps


def _launches(launch: I64, *, marked: bool) -> I64:
    """Return the `launch` rows of kernels; all -1 if marks are not read and most launches are before the window.

    The rare launches of a host that runs steps ahead show the steps of its last kernels only; the begins of all
    kernels show the steps of all.
    """
    ahead = not marked and float((launch < 0).mean() if len(launch) else 0.0) > MOST_BEHIND_MARKS
    return np.full_like(launch, -1) if ahead else launch


def _device(events: pa.Table, carriers: I64) -> int:
    """Return the device that runs the kernels `carriers`; -1 where the trace names none, or several."""
    named = np.unique(ints(events, "device", -1)[carriers])
    return int(named[0]) if len(named) == 1 else -1


def _in_order(comm: Mask, start: I64) -> I64:
    """Return the events that communicate, in order of start."""
    rows = np.flatnonzero(comm)
    return rows[np.argsort(start[rows], kind="stable")]


def _order(
    events: pa.Table, cat: Values, comm: Mask, start: I64, end: I64, begins: Sequence[int], *, marked: bool
) -> KernelOrder | None:
    """Return the kernels of the device in order; None without compute kernels. `begins` are of windows."""
    rows = np.flatnonzero(cat == "kernel")
    stream = ints(events, "stream", -1)[rows]
    launch = _launches(launch_rows(events, cat, rows, begins), marked=marked)
    issued = issue_times(launch, stream, start[rows], start, begins)
    return kernel_order(events, cat, comm, Launched(rows, stream, issued), start, end, begins)


def _nothing(rank: int) -> RankOps:
    none64, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return RankOps(
        rank, False, none64, none64, (), (), none32, none32, none32, none64, none64, none32, empty(), none64,
        none64,
    )  # fmt: skip
