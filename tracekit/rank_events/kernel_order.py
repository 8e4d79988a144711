"""What a rank's device ran, in order: the kernels of its busiest stream, which show steps without marks.

A stream runs in order of launch, so the order of its kernels is the program's, whatever the timing was.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.compute import COMM_KERNEL
from tracekit.rank_events.event_columns import holds, matches, truth
from tracekit.rank_events.operation_names import canonical_op
from tracekit.rank_events.rank_ops import KernelOrder
from tracekit.units import I64, Mask

_OPTIMIZER: Final = re.compile(r"adam|adafactor|sgd|optimi[sz]er", re.IGNORECASE)
"""Names of kernels that only an optimizer runs."""
_OPTIMIZER_SPAN: Final = re.compile(r"^Optimizer\.step#")
"""The span that torch puts around the step of every optimizer, where the host is recorded."""


@dataclass(frozen=True)
class Launched:
    """Kernels of a rank, one entry a kernel: event rows, the streams, and when the host issued them, ns."""

    rows: I64
    stream: I64
    issued: I64


def window_of(times: I64, begins: Sequence[int]) -> I64:
    """Return the number of the recording window in which each of `times` lies; `begins` are sorted, ns."""
    return np.maximum(np.searchsorted(np.array(begins), times, side="right") - 1, 0)


def kernel_order(
    events: pa.Table, cat: Column, comm: Mask, kernels: Launched, start: I64, end: I64, begins: Sequence[int]
) -> KernelOrder | None:
    """Return the order of the stream with the most compute kernels; None where no kernel computes.

    `comm`, `start` and `end` are per event, `begins` are of windows.
    """
    computes = ~comm[kernels.rows]
    if not computes.any():
        return None
    streams, counts = np.unique(kernels.stream[computes], return_counts=True)
    mine = np.flatnonzero(kernels.stream == streams[np.argmax(counts)])
    window = window_of(start[kernels.rows[mine]], begins)
    mine = mine[kernels.issued[mine] >= np.array(begins)[window]]
    mine = mine[np.argsort(start[kernels.rows[mine]], kind="stable")]
    rows, issued = kernels.rows[mine], kernels.issued[mine]
    names: dict[str, int] = {}
    kinds = matches(events, "name", lambda v: names.setdefault(_kind(v or ""), len(names)))
    pause = issued - _worked_until(start[rows], end[rows], start[comm], end[comm])
    optimizer = truth(events, "name", _OPTIMIZER)[rows]
    spans = np.flatnonzero(
        holds(events, "name", lambda v: v and _OPTIMIZER_SPAN.match(v)) & (cat != "gpu_user_annotation")
    )
    return KernelOrder(
        tuple(names), kinds[rows].astype(np.int64), window_of(start[rows], begins), issued, pause,
        optimizer | _inside(issued, start[spans], end[spans]), communicates=comm[rows],
    )  # fmt: skip


def _kind(name: str) -> str:
    """Return the name of a kernel; for communication only the operation, as the protocol depends on the size."""
    return canonical_op(name) if COMM_KERNEL.search(name) else name


def _worked_until(start: I64, end: I64, comm_start: I64, comm_end: I64) -> I64:
    """Return for each kernel the latest end of earlier kernels and communication, ns; the first one's own start."""
    order = np.argsort(comm_start, kind="stable")
    ended = np.maximum.accumulate(comm_end[order]) if len(order) else comm_end
    before = np.searchsorted(comm_start[order], start, side="left")
    earlier = np.where(before > 0, ended[np.maximum(before, 1) - 1], start[:1]) if len(order) else start
    own = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    return np.asarray(np.maximum(own, np.minimum(earlier, start)), np.int64)


def _inside(times: I64, begin: I64, finish: I64) -> npt.NDArray[np.bool_]:
    """Whether each of `times` lies in a span, given by `begin` (sorted) and `finish`."""
    if not len(begin):
        return np.zeros(len(times), bool)
    last = np.searchsorted(begin, times, side="right") - 1
    return np.asarray((last >= 0) & (times < np.maximum.accumulate(finish)[np.maximum(last, 0)]), bool)
