"""From one rank's events to its communication operations and busy intervals.

On GPU traces communication and compute are kernels (arguments that only the host side carries are joined through
the external id); on CPU traces they are annotated host spans and operators. An operation belongs to the step in
which the host launched it, so that a device running behind its host does not smear steps.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.store import Group, Run
from tracekit.tables.intervals import I64, Intervals, union

I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
NO_STEP = -1

_COLUMNS = [
    "ts", "dur", "cat", "name", "tid", "correlation", "external_id", "collective", "dtype",
    "in_nelems", "out_nelems", "group", "group_size", "pg_name", "pg_desc", "src_rank", "dst_rank", "seq",
]  # fmt: skip
_COMM_KERNEL = re.compile(
    r"nccl|rccl|cross_device_reduce|multimem_all|one_shot_all_reduce|two_shot_all_reduce", re.IGNORECASE
)
_NOT_COMPUTE = re.compile(r"^(c10d::|_c10d_functional|record_param_comms|gloo:|nccl:)")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")
_COMPUTE_CATS = ("kernel", "gpu_memcpy", "gpu_memset")
_OPS = (
    ("all_to_all", r"all_?to_?all|a2a"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_reduce", r"all_?reduce|cross_device_reduce"),
    ("send_recv", r"send_?recv"),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier"),
    ("scatter", r"scatter"),
    ("gather", r"gather"),
    ("reduce", r"reduce"),
    ("send", r"send"),
    ("recv", r"recv"),
)
_OP_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _OPS)
ROOTED = ("broadcast", "scatter", "gather", "reduce")


def canonical_op(text: str) -> str:
    """The operation's one name: `_allgather_base` and `ncclDevKernel_AllGather_RING_LL` are `all_gather`."""
    return next((name for name, pattern in _OP_PATTERNS if pattern.search(text)), "other")


_COPY_SHARE = 0.05
"""An operator within this share of a communication span, at its end, belongs to the communication."""


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


def read_rank(run: Run, rank: int) -> RankOps:
    """Operations and busy intervals of `rank`."""
    events = run.events(rank, _COLUMNS)
    mine = [g for g in run.groups if rank in g.ranks]
    return rank_ops(rank, _resolve(events, mine))


def _resolve(events: pa.Table, groups: Sequence[Group]) -> pa.Table:
    """Fill in groups whose member list was cut, from other ranks' files: by size and name, where one group fits.

    A file that lost its tail lost the table that completes its lists; the other members have it.
    """
    index = events.column_names.index("group")
    lacking = pc.and_(pc.is_null(events.column(index)), pc.is_valid(events.column("group_size")))
    rows = np.flatnonzero(np.asarray(lacking.to_numpy(zero_copy_only=False), bool))
    if not len(rows) or not groups:
        return events
    group = _ints(events, "group", -1)
    keys = events.select(["group_size", "pg_name", "pg_desc"]).take(pa.array(rows)).to_pylist()
    known: dict[tuple[object, ...], int] = {}
    for row, key in zip(rows, keys, strict=True):
        size, name, desc = key["group_size"], key["pg_name"], key["pg_desc"]
        if (size, name, desc) not in known:
            fits = [g for g in groups if len(g.ranks) == size]
            named = [g for g in fits if name in g.names and (not desc or desc in g.descs)]
            chosen = named if len(named) == 1 else fits
            known[size, name, desc] = chosen[0].group if len(chosen) == 1 else -1
        group[row] = known[size, name, desc]
    values = pa.array(group.astype(np.int32), mask=group < 0)
    return events.set_column(index, events.schema.field(index), values)


def rank_ops(rank: int, events: pa.Table) -> RankOps:
    """Operations and busy intervals from an event table (schema.EVENTS)."""
    if not events.num_rows:
        return _nothing(rank)
    start = _ints(events, "ts", 0)
    end = start + _ints(events, "dur", 0)
    cat = matches(events, "cat", lambda c: c)
    kernel = np.isin(cat, ["kernel"])
    on_gpu = bool(kernel.any())
    steps = _step_spans(events, cat, start, end)
    comm = _comm_mask(events, kernel, on_gpu=on_gpu)
    busy = _busy(events, cat, comm, start, end, on_gpu=on_gpu)
    rows = np.flatnonzero(comm)
    rows = rows[np.argsort(start[rows], kind="stable")]
    args = _argument_rows(events, rows) if on_gpu else rows
    launch = _launch_times(events, cat, rows, start) if on_gpu else start[rows]
    return _assemble(rank, events, rows, args, _label(launch, steps), busy, steps, start, end, on_gpu=on_gpu)


def _nothing(rank: int) -> RankOps:
    none64, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return RankOps(
        rank, False, none64, none64, (), (), none32, none32, none32, none64, none64, none32, (none64, none64)
    )


def _assemble(
    rank: int, events: pa.Table, rows: I64, args: I64, step: I32, busy: Intervals,
    steps: dict[int, tuple[int, int]], start: I64, end: I64, *, on_gpu: bool,
) -> RankOps:  # fmt: skip
    taken = events.select(
        ["collective", "dtype", "in_nelems", "out_nelems", "group", "src_rank", "dst_rank", "seq"]
    )
    taken = taken.take(pa.array(args))
    names = _strings(events.column("name").take(pa.array(rows)))
    collectives = _strings(taken.column("collective"))
    dtypes = _strings(taken.column("dtype"))
    cache: dict[str, str] = {}
    op = [
        cache.setdefault(t, canonical_op(t))
        for t in (c or n or "" for c, n in zip(collectives, names, strict=True))
    ]
    nelems = np.maximum(_ints(taken, "in_nelems", -1), _ints(taken, "out_nelems", -1))
    src, dst = _ints(taken, "src_rank", -1).astype(np.int32), _ints(taken, "dst_rank", -1).astype(np.int32)
    op = [_directed(o, int(s), int(d), rank) for o, s, d in zip(op, src, dst, strict=True)]
    is_send = np.array([o == "send" for o in op], bool)
    is_recv = np.array([o == "recv" for o in op], bool)
    src = np.where(is_send, rank, np.where(is_recv, src, -1)).astype(np.int32)
    dst = np.where(is_recv, rank, np.where(is_send, dst, -1)).astype(np.int32)
    token = tuple(
        f"{'p2p' if o in ('send', 'recv') else o}/{d or ''}/{n}"
        for o, d, n in zip(op, dtypes, nelems, strict=True)
    )
    return RankOps(
        rank, on_gpu, start[rows], end[rows], tuple(op), token, _ints(taken, "group", -1).astype(np.int32), src, dst,
        _ints(taken, "seq", -1), nelems, step, busy, steps, (int(start.min()), int(end.max())),
    )  # fmt: skip


def _directed(op: str, src: int, dst: int, rank: int) -> str:
    """A send/recv kernel that names its peers is the one or the other; one that names none stays a collective."""
    if op in ("send", "recv", "send_recv"):
        if src == rank and dst not in (-1, rank):
            return "send"
        if dst == rank and src not in (-1, rank):
            return "recv"
        if op == "send" and dst in (-1, rank):
            return "send_recv"
        if op == "recv" and src in (-1, rank):
            return "send_recv"
    return op


def _ints(table: pa.Table, column: str, null: int) -> I64:
    values = table.column(column)
    if values.null_count:
        values = pc.fill_null(values, null)
    return np.asarray(values.to_numpy(), np.int64)


def _strings(column: pa.ChunkedArray) -> list[str | None]:
    return [str(v) if v is not None else None for v in column.to_pylist()]


def matches(events: pa.Table, column: str, of: Callable[[str | None], object]) -> npt.NDArray[np.object_]:
    """`of(value)` for each row of a dictionary column, computed once a distinct value."""
    values = events.column(column).combine_chunks()
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    if isinstance(values, pa.ChunkedArray):
        values = values.unify_dictionaries().combine_chunks()
    table = np.empty(len(values.dictionary) + 1, np.object_)  # the last entry stands for null
    for place, value in enumerate(values.dictionary.to_pylist()):
        table[place] = of(value)
    index = np.asarray(pc.fill_null(values.indices, len(table) - 1).to_numpy(zero_copy_only=False), np.int64)
    result: npt.NDArray[np.object_] = table[index]
    return result


def truth(events: pa.Table, column: str, pattern: re.Pattern[str]) -> Mask:
    """Whether each row of a dictionary column matches `pattern`."""
    found = matches(events, column, lambda v: bool(v and pattern.search(v)))
    return np.asarray([bool(v) for v in found.tolist()], bool)


def _comm_mask(events: pa.Table, kernel: Mask, *, on_gpu: bool) -> Mask:
    """Rows that are communication: kernels on a GPU trace, annotated spans (else Gloo's own) on a CPU trace."""
    annotated = np.asarray(pc.is_valid(events.column("collective")).to_numpy(zero_copy_only=False), bool)
    if on_gpu:
        return kernel & (annotated | truth(events, "name", _COMM_KERNEL))
    if annotated.any():
        return annotated
    return truth(events, "name", re.compile(r"^gloo:"))


def _step_spans(
    events: pa.Table, cat: npt.NDArray[np.object_], start: I64, end: I64
) -> dict[int, tuple[int, int]]:
    number = matches(events, "name", lambda v: int(m.group(1)) if v and (m := _STEP.match(v)) else None)
    spans: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero((number != None) & (cat != "gpu_user_annotation")):  # noqa: E711
        step = int(number[row])
        if step < 2**31:
            old = spans.get(step, (int(start[row]), int(end[row])))
            spans[step] = min(old[0], int(start[row])), max(old[1], int(end[row]))
    return dict(sorted(spans.items()))


def _label(times: I64, steps: dict[int, tuple[int, int]]) -> I32:
    """The step that each time falls into; time between two steps belongs to the earlier one, none is after the last."""
    if not steps:
        return np.full(len(times), NO_STEP, np.int32)
    numbers = sorted(steps, key=lambda s: steps[s][0])
    index = np.searchsorted([steps[s][0] for s in numbers], times, side="right") - 1
    inside = (index >= 0) & (times <= steps[numbers[-1]][1])
    return np.where(inside, np.asarray(numbers)[np.maximum(index, 0)], NO_STEP).astype(np.int32)


def _argument_rows(events: pa.Table, rows: I64) -> I64:
    """For each communication kernel the row that carries its arguments: itself, else its host-side record."""
    collective = np.asarray(pc.is_valid(events.column("collective")).to_numpy(zero_copy_only=False), bool)
    args = rows.copy()
    lacking = ~collective[rows]
    if lacking.any() and collective.any():
        external = _ints(events, "external_id", -1)
        hosts = np.flatnonzero(collective & (external >= 0))
        hosts = hosts[np.argsort(external[hosts], kind="stable")]
        if len(hosts):
            wanted = external[rows]
            place = np.minimum(np.searchsorted(external[hosts], wanted), len(hosts) - 1)
            found = lacking & (external[hosts[place]] == wanted) & (wanted >= 0)
            args[found] = hosts[place[found]]
    return args


def _launch_times(events: pa.Table, cat: npt.NDArray[np.object_], rows: I64, start: I64) -> I64:
    """When the host launched each kernel; its own start where the trace does not tell."""
    correlation = _ints(events, "correlation", -1)
    hosts = np.flatnonzero(np.isin(cat, ["cuda_runtime", "cuda_driver"]) & (correlation >= 0))
    times = start[rows].copy()
    if len(hosts):
        hosts = hosts[np.argsort(correlation[hosts], kind="stable")]
        wanted = correlation[rows]
        place = np.minimum(np.searchsorted(correlation[hosts], wanted), len(hosts) - 1)
        found = (correlation[hosts[place]] == wanted) & (wanted >= 0)
        times[found] = start[hosts[place[found]]]
    return times


def _busy(
    events: pa.Table, cat: npt.NDArray[np.object_], comm: Mask, start: I64, end: I64, *, on_gpu: bool
) -> Intervals:
    """When the rank computed: device work on a GPU trace, operators on a CPU trace."""
    if on_gpu:
        rows = np.isin(cat, _COMPUTE_CATS) & ~comm
        return union(start[rows], end[rows])
    rows = (cat == "cpu_op") & ~comm & ~truth(events, "name", _NOT_COMPUTE)
    return union(*_without_wrappers(start[rows], end[rows], start[comm], end[comm]))


def _without_wrappers(start: I64, end: I64, comm_start: I64, comm_end: I64) -> tuple[I64, I64]:
    """Leaves out operators that contain a whole communication span, and short ones that end one.

    The wait inside is no compute of the former; the latter copy the result (Gloo's reduce-scatter takes its slice on
    the calling thread after the wait), and would make the whole wait look hidden behind compute.
    """
    if not len(comm_start):
        return start, end
    order = np.argsort(comm_start, kind="stable")
    begin, finish = comm_start[order], comm_end[order]
    soonest = np.minimum.accumulate(finish[::-1])[::-1]  # earliest end among spans that start later
    place = np.searchsorted(begin, start, side="left")
    wrapper = (place < len(begin)) & (soonest[np.minimum(place, len(begin) - 1)] <= end)
    before = np.maximum(np.searchsorted(begin, start, side="right") - 1, 0)
    lasted = finish[before] - begin[before]
    inside = (begin[before] <= start) & (finish[before] >= end)
    copy = inside & (end - start <= _COPY_SHARE * lasted) & (finish[before] - end <= _COPY_SHARE * lasted)
    keep = ~(wrapper | copy)
    return start[keep], end[keep]
