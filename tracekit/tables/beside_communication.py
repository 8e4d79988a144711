"""How much longer each rank's kernels take because communication runs on the device at the same time.

A kernel that shares the device with a collective is longer on every rank, and ranks need not share alike: groups differ
in the length of their transfers, and some communicate when others do not. By how much a kind of kernel is longer is
learnt from kernels at the same place of a step that share the device for different parts of their time.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.store import Run
from tracekit.tables.compute import communicates
from tracekit.tables.compute_time import windows_of
from tracekit.tables.event_columns import ints, strings
from tracekit.tables.intervals import I64, covered_until, union
from tracekit.tables.match import Operations
from tracekit.tables.steps import F64, Steps
from tracekit.thresholds.tables import HOST_GAP_NS, LIKE_SHARE, MOST_STRETCHED

_COLUMNS = ["ts", "dur", "cat", "name", "stream", "collective"]


@dataclass(frozen=True)
class _Kernels:
    """Kernels of the busiest compute stream of one rank in its steps, in order; times in ns."""

    column: I64  # of Steps
    name: npt.NDArray[np.object_]
    lasted: F64
    shared: F64  # for how long communication ran at the same time
    counts: npt.NDArray[np.bool_]  # had it been shorter, the next operation would have begun earlier


def stretched(run: Run, ops: Operations, steps: Steps, rows: Sequence[int]) -> F64:
    """Own time that kernels of `rows` (of Steps) take longer beside communication, rows × steps, ns.

    `rows` do the same work. 0 where kernels at the same place share the device alike on all of them, so that nothing
    tells by how much it makes them longer.
    """
    read = [_kernels(run, ops, steps, row) for row in rows]
    places = _places(read)
    speed = np.array([_speed(places, i) for i in range(len(read))])
    share = {name: _share(table, speed) for name, table in places.items()}
    result = np.zeros((len(rows), len(steps.numbers)))
    for i, kernels in enumerate(read):
        part = np.array([share.get(n, 0.0) for n in kernels.name.tolist()])
        np.add.at(result[i], kernels.column, kernels.shared * part * kernels.counts)
    return result


def _kernels(run: Run, ops: Operations, steps: Steps, row: int) -> _Kernels:
    """The kernels of the rank in `row`."""
    rank = steps.ranks[row]
    events = run.events(rank, _COLUMNS)
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    kernel = np.array([c == "kernel" for c in strings(events.column("cat"))], bool)
    comm = communicates(events, kernel, on_gpu=True)
    talking = union(start[comm], end[comm])
    mine = np.flatnonzero(kernel & ~comm)
    streams, counts = np.unique(ints(events, "stream", -1)[mine], return_counts=True)
    mine = mine[ints(events, "stream", -1)[mine] == streams[np.argmax(counts)]] if len(mine) else mine
    mine = mine[np.argsort(start[mine], kind="stable")]
    columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
    begins, ends = windows_of(ops, steps, rank, columns)
    at = np.searchsorted(begins, start[mine], side="right") - 1
    inside = (at >= 0) & (start[mine] < ends[np.maximum(at, 0)]) if columns else np.zeros(len(mine), bool)
    mine, at = mine[inside], at[inside]
    shared = covered_until(talking, end[mine]) - covered_until(talking, start[mine])
    names = np.array(strings(events.column("name").take(mine)), object)
    return _Kernels(
        np.array(columns, np.int64)[at], names, (end - start)[mine].astype(np.float64), shared.astype(np.float64),
        _counts(start[mine], end[mine], ops.progress[rank].exposed),
    )  # fmt: skip


def _counts(start: I64, end: I64, exposed: tuple[I64, I64]) -> npt.NDArray[np.bool_]:
    """Whether a shorter kernel would have let the rank go on earlier: not where the next one waited for its host.

    A kernel that ends before the device stands still for its host, and all before it back to the last gap, cost
    nothing. `exposed` is when the device stood still for communication.
    """
    if not len(start):
        return np.zeros(0, bool)
    gap = np.append(start[1:] - end[:-1], 0)
    waited = np.append(covered_until(exposed, start[1:]) - covered_until(exposed, end[:-1]), 0)
    on_host, on_others = gap - waited > HOST_GAP_NS, waited > 0
    closes = on_host | on_others
    closes[-1] = True
    last = np.searchsorted(np.flatnonzero(closes), np.arange(len(start)), side="left")
    return np.asarray(~(on_host & ~on_others)[np.flatnonzero(closes)[last]], bool)


def _places(read: Sequence[_Kernels]) -> dict[str, F64]:
    """Kernel name → (length, shared time), ranks × places × 2, median over steps; only names that all run as often."""
    found: dict[str, list[F64]] = defaultdict(list)
    for kernels in read:
        for name in np.unique(kernels.name.astype(str)).tolist():
            mine = kernels.name == name
            steps = [np.flatnonzero(mine & (kernels.column == c)) for c in np.unique(kernels.column)]
            if len({len(s) for s in steps}) == 1:
                rows = np.array(steps)
                pair = np.stack([kernels.lasted[rows], kernels.shared[rows]], axis=-1)
                found[name].append(np.median(pair, axis=0))
    return {
        name: np.stack(tables)
        for name, tables in found.items()
        if len(tables) == len(read) and len({len(t) for t in tables}) == 1
    }


def _like(table: F64) -> tuple[F64, npt.NDArray[np.bool_]]:
    """(median kernel of each place, whether each rank's kernel shares the device as it does)."""
    usual = np.median(table, axis=0)
    part, others = table[..., 1] / np.maximum(table[..., 0], 1.0), usual[:, 1] / np.maximum(usual[:, 0], 1.0)
    return usual, np.abs(part - others) <= LIKE_SHARE


def _speed(places: dict[str, F64], rank: int) -> float:
    """How much longer kernels of a rank take than the usual ones that share the device as they do; 1 if none does."""
    ratio, weight = [np.zeros(0)], [np.zeros(0)]
    for table in places.values():
        usual, like = _like(table)
        ratio.append(table[rank, like[rank], 0] / np.maximum(usual[like[rank], 0], 1.0))
        weight.append(usual[like[rank], 0])
    return _weighted_median(np.concatenate(ratio), np.concatenate(weight), 1.0)


def _share(table: F64, speed: F64) -> float:
    """The part of the time in which kernels of one name share the device by which that makes them longer.

    A kernel that takes d and shares for s would take d − share × s alone. Kernels at one place of different ranks give
    the share, once each rank's own speed is taken out.
    """
    usual, like = _like(table)
    own = table / speed[:, None, None]
    longer, more = (own - usual)[~like].T
    told = _weighted_median(longer / np.where(more == 0, 1.0, more), np.abs(more), 0.0)
    return min(max(told, 0.0), MOST_STRETCHED)


def _weighted_median(values: F64, weights: F64, default: float) -> float:
    """The value at which half of the weight is reached; `default` without any weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    if not len(reached) or reached[-1] <= 0:
        return default
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
