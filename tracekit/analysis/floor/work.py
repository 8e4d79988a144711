"""What one rank computed in its steps: recomputation, small kernels, and the time of each class of kernel.

All three lie within the compute of `tracekit breakdown` (no exposed communication), and are cut at the same moments.
Calls of the allocator lie within its host time.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.case.case import Case
from tracekit.intervals import Intervals, covered_until, empty, intersect, subtract, union
from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.compute import OPERATOR, communicates
from tracekit.rank_events.event_columns import categories, ints, matches, truth
from tracekit.rank_events.host_events import Host, host_of
from tracekit.rank_events.step_marks import launch_rows
from tracekit.steps.features import ALLOCATOR
from tracekit.steps.host_need import on_host
from tracekit.steps.steps import windows_of
from tracekit.thresholds.floor import SMALL_KERNEL_NS
from tracekit.timing.device_gaps import gaps_of
from tracekit.units import I64, Mask

_COLUMNS: Final = [
    "ts", "dur", "cat", "name", "pid", "tid", "stream", "correlation", "external_id", "collective", "flops",
]  # fmt: skip
_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_SPAN: Final = re.compile(
    r"\brecompute|torch/utils/checkpoint\.py\(\d+\): (unpack_hook|recompute_fn)", re.IGNORECASE
)
"""Spans of recomputed forwards: of frameworks that name them, and of torch's checkpoint where stacks were recorded."""
_REENTRANT: Final = re.compile(r"^(?!autograd::).*Checkpoint\w*Backward")
"""The node of a reentrant checkpoint: a forward, and then a backward of its own inside."""
_NODE: Final = re.compile(r"^autograd::engine::evaluate_function: ")
_SUM: Final = re.compile(r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")
"""The node that adds a parameter's gradient to that of earlier micro-batches, with the hooks behind it."""
_ATEN: Final = re.compile(r"^aten::")
_FORWARD: Final = re.compile(
    r"^aten::(linear|matmul|layer_norm|rms_norm|scaled_dot_product_attention|dropout|softmax|log_softmax|conv[123]d|embedding"
    r"|silu|gelu|relu|_\w*flash_attention(_forward)?|_\w*efficient_attention(_forward)?)$"
)
"""Operators that no formula of a derivative calls: inside a node of autograd a forward runs again."""


@dataclass(frozen=True)
class RankWork:
    """One rank's whole steps; times in ns, one entry a step of `columns`.

    spent, calls: by class of kernel, the time (without recomputed and small kernels) and the number in each step.
    shows_recomputation: whether the trace would show a forward that runs again, by nodes of autograd or by spans.
    flops: of matrix products by their shapes, forwards that run again left out, a step; None without a record.
    summed: gradients added to those of earlier micro-batches, which grow with the parameters that a rank holds and not
    with its tokens. allocator: the device waited for its host, which was in a call of the allocator.
    """

    rank: int
    columns: list[int]
    shows_recomputation: bool
    flops: float | None
    spent: dict[str, I64]
    calls: dict[str, I64]
    compute: I64
    recomputed: I64
    small: I64
    summed: I64
    allocator: I64

    @property
    def regular(self) -> I64:
        """Compute that is neither recomputation nor small kernels."""
        return self.compute - self.recomputed - self.small


def work_of(case: Case, rank: int) -> RankWork | None:
    """Return the work of `rank`; None where it has no whole step. Raises InputError where its events cannot be read."""
    steps, source = case.steps, case.ops.per_rank[rank]
    columns = np.flatnonzero(np.isfinite(steps.wall[steps.row(rank)])).tolist()
    if not columns:
        return None
    windows = windows_of(case.ops, steps, rank, columns)
    computed = subtract(source.computed, case.ops.progress[rank].exposed)
    events = case.run.events(rank, _COLUMNS)
    host = host_of(events)
    cat = categories(events)
    rows = _kernels(events, cat, host, on_gpu=source.on_gpu)
    spans = _spans(events, cat, host)
    launch = launch_rows(events, cat, rows, source.begins) if source.on_gpu else rows
    again = _computed_in(host, spans, rows, launch, on_gpu=source.on_gpu)
    sums = _computed_in(host, _sums(events, cat, host), rows, launch, on_gpu=source.on_gpu)
    small = _small(host, rows, cat) if source.on_gpu and case.table is None else empty()
    small = subtract(intersect(small, computed), again)
    recomputed = intersect(again, computed)
    rest = subtract(subtract(computed, recomputed), small)
    spent, calls = _classes(events, host, rows, rest, windows)
    allocator = _in_allocator(case, rank, events, cat, host)
    inside = (
        _within(part, windows) for part in (computed, recomputed, small, intersect(sums, computed), allocator)
    )
    flops = _flops(case, rank, columns, events, host, spans)
    return RankWork(rank, columns, _nested(events, cat, host), flops, spent, calls, *inside)


def _kernels(events: pa.Table, cat: Column, host: Host, *, on_gpu: bool) -> I64:
    """Return the rows of kernels and copies without communication; on a CPU trace of the outermost operators."""
    if on_gpu:
        kernel = cat == "kernel"
        return np.flatnonzero(cat.among(_DEVICE) & ~communicates(events, kernel, on_gpu=True))
    operator = (cat == "cpu_op") & truth(events, "name", OPERATOR)
    return _outermost(host, np.flatnonzero(operator & ~communicates(events, operator, on_gpu=False)))


def _outermost(host: Host, rows: I64) -> I64:
    """Return those of `rows` that begin inside no other one on their thread."""
    kept = [np.zeros(0, np.int64)]
    for thread in np.unique(host.tid[rows]).tolist():
        mine = rows[host.tid[rows] == thread]
        mine = mine[np.lexsort((-host.end[mine], host.start[mine]))]
        before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(host.end[mine])[:-1]])
        kept.append(mine[host.start[mine] >= before])
    return np.sort(np.concatenate(kept))


def _small(host: Host, rows: I64, cat: Column) -> Intervals:
    """Return when small kernels ran; copies do not count."""
    small = rows[(cat[rows] == "kernel") & (host.end[rows] - host.start[rows] <= SMALL_KERNEL_NS)]
    return union(host.start[small], host.end[small])


def _in_allocator(case: Case, rank: int, events: pa.Table, cat: Column, host: Host) -> Intervals:
    """Return when the device waited for its host, which was in a call of the allocator; disjoint, ns."""
    calls = ~cat.among(_DEVICE) & truth(events, "name", ALLOCATOR)
    if not calls.any():
        return empty()
    return intersect(gaps_of(case.run, case.ops, rank).host, union(host.start[calls], host.end[calls]))


def _spans(events: pa.Table, cat: Column, host: Host) -> dict[int, Intervals]:
    """Return by thread the recomputed forwards on the host."""
    on_host = ~cat.among([*_DEVICE, "gpu_user_annotation"])
    threads = _threads(events, host, on_host)
    return {t: _forwards(events, host, on_host & (host.tid == t)) for t in threads}


def _sums(events: pa.Table, cat: Column, host: Host) -> dict[int, Intervals]:
    """Return by thread when gradients are added to those of earlier micro-batches on the host."""
    nodes = (cat == "cpu_op") & truth(events, "name", _SUM)
    threads = np.unique(host.tid[nodes]).tolist()
    return {t: union(host.start[nodes & (host.tid == t)], host.end[nodes & (host.tid == t)]) for t in threads}


def _computed_in(
    host: Host, spans: dict[int, Intervals], rows: I64, launch: I64, *, on_gpu: bool
) -> Intervals:
    """Return when kernels `rows` ran that a `launch` in `spans` began, or a CPU's `spans`; disjoint, ns."""
    if not on_gpu:
        return union(
            *(np.concatenate([s[i] for s in spans.values()] or [np.zeros(0, np.int64)]) for i in (0, 1))
        )
    again = _within_spans(host, spans, launch)
    return union(host.start[rows[again]], host.end[rows[again]])


def _within_spans(host: Host, spans: dict[int, Intervals], rows: I64) -> Mask:
    """Whether each of `rows` begins in a span of its thread; not where it is -1."""
    found = np.zeros(len(rows), bool)
    for thread, (begin, end) in spans.items():
        if len(begin):
            at = host.start[rows]
            last = np.searchsorted(begin, at, side="right") - 1
            found |= (rows >= 0) & (host.tid[rows] == thread) & (last >= 0) & (at < end[np.maximum(last, 0)])
    return found


def _flops(
    case: Case, rank: int, columns: list[int], events: pa.Table, host: Host, spans: dict[int, Intervals]
) -> float | None:
    """Return the FLOPs of products that the host of `rank` calls a step, of `columns`; None where not recorded."""
    flops = ints(events, "flops", -1)
    rows = np.flatnonzero(flops >= 0)
    whole = [c for c in columns if case.steps.shares[c] == 1.0]
    begins, ends = (side[whole] for side in on_host(case.ops, case.steps, rank))
    if not len(rows) or not whole or not (ends > begins).all():
        return None
    rows = rows[~_within_spans(host, spans, rows)]
    step = np.searchsorted(begins, host.start[rows], side="right") - 1
    inside = (step >= 0) & (host.start[rows] < ends[np.maximum(step, 0)])
    return float(flops[rows[inside]].sum()) / len(whole)


def _threads(events: pa.Table, host: Host, on_host: Mask) -> list[int]:
    """Return the threads with nodes of autograd or named spans of recomputation."""
    hints = on_host & (
        truth(events, "name", _NODE) | truth(events, "name", _SPAN) | truth(events, "name", _REENTRANT)
    )
    return [int(t) for t in np.unique(host.tid[hints])]


def _nested(events: pa.Table, cat: Column, host: Host) -> bool:
    """Whether nodes of autograd hold operators, so that a forward that runs again would be seen there."""
    operators = np.flatnonzero((cat == "cpu_op") & truth(events, "name", _ATEN))
    nodes = np.flatnonzero((cat == "cpu_op") & truth(events, "name", _NODE))
    within = [
        _innermost(host, operators[host.tid[operators] == tid], nodes[host.tid[nodes] == tid])
        for tid in np.unique(host.tid[nodes]).tolist()
    ]
    return any(bool((node >= 0).any()) for node in within)


def _forwards(events: pa.Table, host: Host, mine: Mask) -> Intervals:
    """Return the recomputed forwards on the host of one thread; `mine` are its events."""

    def named(pattern: re.Pattern[str]) -> I64:
        return np.flatnonzero(mine & truth(events, "name", pattern))

    spans, nodes = named(_SPAN), named(_NODE)
    found = union(host.start[spans], host.end[spans])
    checkpoints = named(_REENTRANT)
    inner = nodes[_begins_in(host, nodes, checkpoints)]
    whole = subtract(
        union(host.start[checkpoints], host.end[checkpoints]), union(host.start[inner], host.end[inner])
    )
    forward = named(_FORWARD)
    node = _innermost(host, forward, nodes)
    held = node >= 0
    until = union(host.start[nodes[node[held]]], host.end[forward[held]])
    joined = [np.concatenate(side) for side in zip(found, whole, until, strict=True)]
    return union(joined[0], joined[1])


def _begins_in(host: Host, rows: I64, outer: I64) -> Mask:
    """Whether each of `rows` begins inside one of `outer` (any of one thread)."""
    begin, end = union(host.start[outer], host.end[outer])
    if not len(begin):
        return np.zeros(len(rows), bool)
    last = np.searchsorted(begin, host.start[rows], side="right") - 1
    return np.asarray((last >= 0) & (host.start[rows] < end[np.maximum(last, 0)]), bool)


def _innermost(host: Host, rows: I64, nodes: I64) -> npt.NDArray[np.int64]:
    """Return for each of `rows` the index of the node that began last before it and holds it; -1 where none does."""
    if not len(nodes):
        return np.full(len(rows), -1, np.int64)
    order = np.argsort(host.start[nodes], kind="stable")
    last = np.searchsorted(host.start[nodes[order]], host.start[rows], side="right") - 1
    node = order[np.maximum(last, 0)]
    holds = (last >= 0) & (host.end[nodes[node]] >= host.end[rows])
    return np.where(holds, node, -1)


def _classes(
    events: pa.Table, host: Host, rows: I64, rest: Intervals, windows: Intervals
) -> tuple[dict[str, I64], dict[str, I64]]:
    """Return the time within `rest` and the number of kernels of each name, one entry a window."""
    names: dict[str, int] = {}
    code = matches(events, "name", lambda v: names.setdefault(v or "", len(names)))[rows].astype(np.int64)
    took = covered_until(rest, host.end[rows]) - covered_until(rest, host.start[rows])
    at = np.searchsorted(windows[0], host.start[rows], side="right") - 1
    inside = (at >= 0) & (host.start[rows] < windows[1][np.maximum(at, 0)]) & (took > 0)
    spent = np.zeros((len(names), len(windows[0])), np.int64)
    calls = np.zeros_like(spent)
    np.add.at(spent, (code[inside], at[inside]), took[inside])
    np.add.at(calls, (code[inside], at[inside]), 1)
    ran = {name: i for name, i in names.items() if calls[i].any()}
    return {n: spent[i] for n, i in ran.items()}, {n: calls[i] for n, i in ran.items()}


def _within(spans: Intervals, windows: Intervals) -> I64:
    """Return the length of the disjoint `spans` inside each of the `windows`, ns."""
    return covered_until(spans, windows[1]) - covered_until(spans, windows[0])
