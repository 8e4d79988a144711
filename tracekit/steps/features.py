"""How a rank spent its own time: compute by kind of kernel, gaps, data loading, garbage collection, allocation.

Features are read only for suspects and some of their peers, because they need every event of the rank. They hold the
operators of the host by name: a slow processor lengthens every one by one factor, but in a process that shares its
cores some short ones take a time slice of the scheduler longer, and the others are as short as ever.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.intervals import Intervals, inside_each, subtract, union
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.compute import COMM_KERNEL, DEVICE_WORK, NOT_COMPUTE, communicates
from tracekit.rank_events.event_columns import categories, ints, matches, truth
from tracekit.steps.host_work import LOADER
from tracekit.steps.steps import Steps, idle_within, tails_of, windows_of
from tracekit.store import Run
from tracekit.thresholds.slowrank import MINOR, TIME_SLICE_NS
from tracekit.units import I64, Mask

COLLECTOR = re.compile(r"^(python )?gc\b|garbage|^<built-in function collect>$", re.IGNORECASE)
"""Spans of Python's garbage collector: as torch's profiler and programs name them, and gc.collect() in stacks."""

ALLOCATOR = re.compile(
    r"^(cuda|hip|cu)(Malloc|Free|HostAlloc|Mem(Create|Map|Unmap|SetAccess|Release))", re.IGNORECASE
)
"""Calls that allocate, map or free memory of the device, which wait for it; expandable segments map theirs."""
ATTENTION = re.compile(r"attention|attn|sdpa|flash|fmha|softmax", re.IGNORECASE)
MATMUL = re.compile(
    rf"^(?!.*(?:{ATTENTION.pattern})).*(?:gemm|cutlass|cublas|nvjet|::mm\b|addmm|bmm|matmul|linear|xmma|wgmma)",
    re.IGNORECASE | re.DOTALL,
)
"""Matrix products, but not attention, as attention kernels name types of the matrix library too."""


COPIES: Final = re.compile(
    r"memcpy.*(DtoH|HtoD|DeviceToHost|HostToDevice)|::copy_to_(host|device)$", re.IGNORECASE
)
"""Copies between the memories of device and host, as Kineto and Nsight name them, and as our trainer does on CPUs."""

PEER_COPIES: Final = re.compile(r"memcpy.*(PtoP|PeerToPeer)", re.IGNORECASE)
"""Copies from the memory of another device, as asynchronous tensor parallelism reads what its peers hold."""

_ON_DEVICE: Final = (*DEVICE_WORK, "gpu_user_annotation")
_NEVER: Final = np.zeros(0, np.int64), np.zeros(0, np.int64)
COMMUNICATION: Final = re.compile(f"{COMM_KERNEL.pattern}|{NOT_COMPUTE.pattern}", re.IGNORECASE)


@dataclass(frozen=True)
class Operators:
    """The innermost operators of one name in all steps; times in ns."""

    count: int
    total: float
    median: float  # mean over the steps of the median in each
    quickest: float  # their time if each took as long as the shortest
    interrupted: int  # how many exceeded the shortest by more than short operators may last


@dataclass(frozen=True)
class Work:
    """What of one name a rank ran a step: kernels, or the outermost operators of a CPU."""

    count: float
    each: float  # mean length, ns
    blocks: float = np.nan  # mean first number of their grids, which follows their size; NaN where unknown


NO_WORK: Final = Work(0.0, 0.0)


@dataclass(frozen=True)
class Features:
    """Mean ns a step over the analysed steps, of one rank."""

    rank: int
    on_gpu: bool
    own: float
    busy: float  # compute
    gap: float  # own time in which nothing computed
    gaps: I64  # lengths of single such gaps, all steps, longest first
    attention: float
    matmul: float
    copies: float  # between device and host
    loader: float  # on a GPU only while the device was idle, as the two below
    collector: float
    allocator: float
    launches: float  # kernels (or operators) a step
    busy_by_step: tuple[float, ...]
    attention_by_step: tuple[float, ...]
    steps: float = 1.0  # how many whole steps they make up
    operators: Mapping[str, Operators] = field(default_factory=dict)  # of the host by name, over all steps
    work: Mapping[str, Work] = field(default_factory=dict)  # by name, without communication
    peer_copies: float = 0.0  # between devices

    @property
    def overlap(self) -> float:
        """The compute that runs beside other compute: the sum of its lengths less the time in which any runs."""
        return float(sum(work.count * work.each for work in self.work.values()) - self.busy)


def read_features(run: Run, ops: Operations, steps: Steps, rank: int) -> Features | None:
    """Return the features of `rank` over the analysed steps; None where it has none of them whole.

    Raises ValueError for a rank that `steps` lacks, InputError where its events cannot be read.
    """
    row, source = steps.row(rank), ops.per_rank[rank]
    columns = steps.recorded(rank)
    each, windows = _windows(ops, steps, rank, columns)
    if not len(windows[0]):
        return None
    events = run.events(rank, ["ts", "dur", "cat", "name", "external_id", "collective", "grid"])
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    cat = categories(events)
    exposed = ops.progress[rank].exposed
    idle = idle_within(ops, rank, windows)
    computing = cat.among(DEVICE_WORK) if source.on_gpu else cat == "cpu_op"
    host, n = ~cat.among(_ON_DEVICE), float(steps.shares[columns].sum())

    def named(pattern: re.Pattern[str], where: npt.NDArray[np.bool_]) -> Intervals:
        rows = where & truth(events, "name", pattern)
        return union(start[rows], end[rows])

    def spent(pattern: re.Pattern[str], where: npt.NDArray[np.bool_], when: Intervals = windows) -> float:
        return _within(named(pattern, where), when) / n

    still = idle if source.on_gpu else windows  # beside work of a device a span of the host costs nothing
    gaps = np.sort(idle[1] - idle[0])[::-1]
    return Features(
        rank, source.on_gpu, float(steps.own[row, columns].sum()) / n,
        _within(subtract(source.computed, exposed), windows) / n, float(gaps.sum()) / n, gaps,
        spent(ATTENTION, computing), spent(MATMUL, computing), spent(COPIES, computing), spent(LOADER, host, still),
        spent(COLLECTOR, host, still), spent(ALLOCATOR, host, still), _begun(start[computing], windows) / n,
        inside_each(subtract(source.computed, exposed), each), inside_each(named(ATTENTION, computing), each),
        n, operator_times(events, cat == "cpu_op", each, _NEVER if source.on_gpu else exposed),
        _work(events, computing & ~_talks(events, cat, on_gpu=source.on_gpu), windows, n),
        spent(PEER_COPIES, computing),
    )  # fmt: skip


def _windows(ops: Operations, steps: Steps, rank: int, columns: list[int]) -> tuple[Intervals, Intervals]:
    """Return (the steps in `columns` of a rank, all of them with their tails as disjoint intervals), ns."""
    each = windows_of(ops, steps, rank, columns)
    return each, union(*np.concatenate([each, tails_of(steps, rank, columns)], axis=1))


def _talks(events: pa.Table, cat: Column, *, on_gpu: bool) -> Mask:
    """Whether each kernel, or operator of a CPU, is communication."""
    return (
        communicates(events, cat == "kernel", on_gpu=True) if on_gpu else truth(events, "name", COMMUNICATION)
    )


def within_spans_ns(
    run: Run, ops: Operations, steps: Steps, rank: int, spans: re.Pattern[str] = LOADER
) -> float:
    """Return how long the device of a rank is idle while its host is in `spans`, ns a step; 0 without a whole step.

    That is `Features.loader` without the other features; on a CPU all the time in the spans. Errors as `read_features`.
    """
    events, columns = run.events(rank, ["ts", "dur", "cat", "name"]), steps.recorded(rank)
    named = truth(events, "name", spans) & ~categories(events).among(_ON_DEVICE)
    if not named.any() or not columns:
        return 0.0
    start, lasted = ints(events, "ts", 0)[named], ints(events, "dur", 0)[named]
    still = _still(ops, steps, rank, columns)
    return _within(union(start, start + lasted), still) / float(steps.shares[columns].sum())


def loads_longer(run: Run, ops: Operations, steps: Steps, rank: int, usual: float, by: float) -> bool:
    """Whether `within_spans_ns` of a rank exceeds the `usual` one `by` so much, ns a step, or more; errors as its.

    Events are read only of a rank with a device that was idle for as long.
    """
    most = most_loading_ns(ops, steps, rank)
    return most - usual >= by and within_spans_ns(run, ops, steps, rank) - usual >= by


def most_loading_ns(ops: Operations, steps: Steps, rank: int) -> float:
    """Return what `within_spans_ns` is at most: how long its device was idle, ns a step. Reads no events."""
    if not (columns := steps.recorded(rank)):
        return 0.0
    begin, end = _still(ops, steps, rank, columns)
    return float((end - begin).sum()) / float(steps.shares[columns].sum())


def _still(ops: Operations, steps: Steps, rank: int, columns: list[int]) -> Intervals:
    """When a device is idle in the steps in `columns`, ns; all the time where the rank has none."""
    _, windows = _windows(ops, steps, rank, columns)
    return idle_within(ops, rank, windows) if ops.per_rank[rank].on_gpu else windows


def _work(events: pa.Table, rows: Mask, windows: Intervals, steps: float) -> dict[str, Work]:
    """The work in `rows` that begins within `windows`, by name: a piece within a longer one does not count."""
    codes: dict[str, int] = {}
    name = matches(events, "name", lambda name: codes.setdefault(name or "", len(codes))).astype(np.int64)[
        rows
    ]
    start = ints(events, "ts", 0)[rows]
    end = start + ints(events, "dur", 0)[rows]
    order = np.lexsort((-end, start))
    start, end, name = start[order], end[order], name[order]
    grid = ints(events, "grid", -1)[rows][order]
    at = np.searchsorted(windows[0], start, "right") - 1
    counts = (at >= 0) & (start < windows[1][np.maximum(at, 0)])
    counts &= end > np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])
    count = np.bincount(name[counts], minlength=len(codes))
    lasted = np.bincount(name[counts], (end - start)[counts], minlength=len(codes))
    blocks = np.bincount(name[counts], np.where(grid < 1, np.nan, grid)[counts], minlength=len(codes))
    return {
        word: Work(count[n] / steps, lasted[n] / count[n], blocks[n] / count[n])
        for word, n in codes.items()
        if count[n]
    }


def operator_times(
    events: pa.Table, operators: Mask, each: Intervals, exposed: Intervals
) -> dict[str, Operators]:
    """Return the innermost of `operators` (rows of `events`) in the steps `each`, which are ascending, by name.

    One that has time within `exposed` communication is left out.
    """
    start = ints(events, "ts", 0)[operators]
    end = start + ints(events, "dur", 0)[operators]
    codes: dict[str, int] = {}
    names = matches(events, "name", lambda name: codes.setdefault(name or "", len(codes))).astype(np.int64)[
        operators
    ]
    order = np.lexsort((-end, start))
    start, end, names = start[order], end[order], names[order]
    step = np.searchsorted(each[0], start, "right") - 1
    inside = step >= 0
    inside[inside] &= start[inside] < each[1][step[inside]]
    inner = inside & (np.append(start[1:], np.iinfo(np.int64).max) >= end)
    inner[inner] = np.array(inside_each(exposed, (start[inner], end[inner]))) == 0
    return _by_name((end - start)[inner], names[inner], step[inner], list(codes)) if inner.any() else {}


def _by_name(lasted: I64, name: I64, step: I64, words: list[str]) -> dict[str, Operators]:
    """Return the operators by name; `words` are the names by number."""
    first, count, ranked = _by_kind(lasted, step * len(words) + name)
    medians = (ranked[first + (count - 1) // 2] + ranked[first + count // 2]) / 2
    of = np.unique(step * len(words) + name) % len(words)
    median = np.bincount(of, medians) / np.maximum(np.bincount(of), 1)
    first, _, ranked = _by_kind(lasted, name)
    found = {}
    for number, some in zip(np.unique(name).tolist(), np.split(ranked, first[1:]), strict=True):
        longer = int((some - some[0] > MINOR * TIME_SLICE_NS).sum())
        found[words[number]] = Operators(
            len(some), float(some.sum()), float(median[number]), float(some[0]) * len(some), longer
        )
    return found


def _by_kind(lasted: I64, kind: I64) -> tuple[I64, I64, I64]:
    """(where each kind begins, how many it has, the times sorted by kind and length)."""
    order = np.lexsort((lasted, kind))
    first = np.flatnonzero(np.diff(kind[order], prepend=-1))
    return first, np.diff(first, append=len(kind)), lasted[order]


def _begun(start: I64, windows: Intervals) -> int:
    """Return the number of moments in `start` between the first and the last of the `windows`."""
    return int(((start >= windows[0][0]) & (start < windows[1][-1])).sum())


def _within(intervals: Intervals, windows: Intervals) -> float:
    return sum(inside_each(intervals, windows))
