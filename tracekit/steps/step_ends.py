"""Ends of steps as operations, for traces without any communication: of one GPU, or of ranks without recorded calls.

Elsewhere the last operation of a step ends it. Here its last work does. Such an operation takes no time, and has no
counterpart and no group.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.findings.shared import Quality
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.store import Run
from tracekit.units import I64

STEP_END: Final = "step_end"
"""Kind of the operation that represents the end of a step."""
_NO_CALLS: Final = "none was recorded: a step lasts until its last kernel, or until its mark ends on the host"
_COLUMNS: Final = ["ts", "dur", "cat", "name", "pid", "tid", "device", "stream", "correlation", "external_id"]


def with_step_ends(run: Run, ranks: Sequence[RankOps]) -> tuple[Run, list[RankOps]]:
    """Return `run` and `ranks` with the ends of their steps as operations; unchanged if any rank communicates.

    A rank without marked steps gets one end, that of its recording; one without events gets none. A quality row reports
    how steps end.
    """
    if not ranks or any(len(rank.start) for rank in ranks):
        return run, list(ranks)
    row = Quality("no_communication", None, 0, _NO_CALLS)
    ended = [_ended(rank, *_ends(rank)) for rank in ranks]
    return replace(run, quality=(*run.quality, row)), ended


def _ends(rank: RankOps) -> tuple[I64, I64]:
    """Return (number of each step, its end in ns); one step without a number where no step is marked."""
    if rank.window == (0, 0):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not rank.steps:
        return np.array([NO_STEP]), np.array([rank.window[1]])
    begins, ends = np.array([rank.worked[n] for n in sorted(rank.worked)], np.int64).T
    if rank.on_gpu and len(rank.computed[1]):
        last = rank.computed[1][np.maximum(np.searchsorted(rank.computed[1], ends, "right") - 1, 0)]
        ends = np.where((last > begins) & (last <= ends), last, ends)
    return np.array(sorted(rank.worked), np.int64), np.maximum.accumulate(ends)


def _ended(rank: RankOps, numbers: I64, ends: I64) -> RankOps:
    """Return `rank` with operations that end its steps."""
    count = len(numbers)
    none64, none32 = np.full(count, -1, np.int64), np.full(count, -1, np.int32)
    issued = np.array(
        [
            rank.steps[n][1] - 1 if n in rank.steps else e
            for n, e in zip(numbers.tolist(), ends.tolist(), strict=True)
        ],
        np.int64,
    )
    return replace(
        rank, start=ends, end=ends, op=(STEP_END,) * count, token=(STEP_END,) * count, group=none32, src=none32,
        dst=none32, seq=none64, nelems=np.zeros(count, np.int64), step=numbers.astype(np.int32),
        kernel=np.arange(count), issued=issued, ready=None, stream=none64, way=np.zeros(count, np.int64), message=None,
        told_size=none32, found=np.zeros(count, bool), taken=none64, place=none64, own=none64, grid=none64,
        waited=None, hint=None, inferred=None, held=None,
        used=None,
    )  # fmt: skip
