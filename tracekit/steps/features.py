"""How a rank spent its own time: compute by kind of kernel, gaps, data loading, garbage collection, allocation.

Features are read only for suspects and some of their peers, because they need every event of the rank.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.intervals import Intervals, subtract, union
from tracekit.matching.match import Operations
from tracekit.rank_events.event_columns import matches, truth
from tracekit.steps.compute_time import idle_within, inside_each, windows_of
from tracekit.steps.operator_times import Operators, OperatorTimes, operator_times
from tracekit.steps.steps import Steps
from tracekit.store import Run
from tracekit.units import I64

LOADER = re.compile(r"dataloader|data_load|next_batch|get_batch", re.IGNORECASE)
"""Spans in which a host waits for its next batch."""

COLLECTOR = re.compile(r"^(python )?gc\b|garbage", re.IGNORECASE)
"""Spans of Python's garbage collector."""

_ALLOCATOR = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocAsync|FreeAsync)", re.IGNORECASE)
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


@dataclass(frozen=True)
class Features:
    """Mean ns a step over the analysed steps, of one rank."""

    rank: int
    on_gpu: bool
    own: float
    busy: float  # compute
    gap: float  # own time in which nothing computed
    typical: float  # on a CPU, compute if each operator took the median of its name in the step; else `busy`
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
    steps: int = 1
    operators: Mapping[str, Operators] = field(default_factory=dict)  # of a CPU by name, over all steps


def read_features(run: Run, ops: Operations, steps: Steps, rank: int) -> Features | None:
    """Return the features of `rank` over the analysed steps; None where it has none of them whole.

    Raises ValueError for a rank that `steps` lacks, InputError where its events cannot be read.
    """
    row = steps.row(rank)
    columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
    each = windows_of(ops, steps, rank, columns)
    windows = union(*each)
    if not len(windows[0]):
        return None
    events = run.events(rank, ["ts", "dur", "cat", "name"])
    source = ops.per_rank[rank]
    start = np.asarray(events.column("ts").to_numpy(), np.int64)
    end = start + np.asarray(events.column("dur").to_numpy(), np.int64)
    cat = matches(events, "cat", lambda v: v)
    exposed = ops.progress[rank].exposed
    idle = idle_within(ops, rank, windows)
    computing = np.isin(cat, ["kernel", "gpu_memcpy", "gpu_memset"]) if source.on_gpu else cat == "cpu_op"
    host = ~np.isin(cat, ["kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"])
    n = float(len(columns))

    def named(pattern: re.Pattern[str], where: npt.NDArray[np.bool_]) -> Intervals:
        rows = where & truth(events, "name", pattern)
        return union(start[rows], end[rows])

    def spent(pattern: re.Pattern[str], where: npt.NDArray[np.bool_], when: Intervals = windows) -> float:
        return _within(named(pattern, where), when) / n

    still = idle if source.on_gpu else windows  # beside work of a device a span of the host costs nothing
    gaps = np.sort(idle[1] - idle[0])[::-1]
    busy = _within(subtract(source.computed, exposed), windows) / n
    times = OperatorTimes() if source.on_gpu else operator_times(events, computing, each, exposed)
    typical = busy if source.on_gpu else times.typical / n
    return Features(
        rank, source.on_gpu, float(np.mean(steps.own[row, columns])),
        busy, float(gaps.sum()) / n, typical, gaps,
        spent(ATTENTION, computing), spent(MATMUL, computing), spent(COPIES, computing), spent(LOADER, host, still),
        spent(COLLECTOR, host, still), spent(_ALLOCATOR, host, still), _begun(start[computing], windows) / n,
        inside_each(subtract(source.computed, exposed), each), inside_each(named(ATTENTION, computing), each),
        len(columns), times.by_name,
    )  # fmt: skip


def _begun(start: I64, windows: Intervals) -> int:
    """Return the number of moments in `start` between the first and the last of the `windows`."""
    return int(((start >= windows[0][0]) & (start < windows[1][-1])).sum())


def _within(intervals: Intervals, windows: Intervals) -> float:
    return sum(inside_each(intervals, windows))
