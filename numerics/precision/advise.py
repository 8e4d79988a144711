"""Finds the gradient buffers that need FP32: the cost of BF16 accumulation, measured in the run and predicted.

A buffer needs FP32 where its error exceeds that of a single rounding by the budget: no BF16 buffer can err less than a
single rounding, and the rest is the price of accumulating in BF16.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numerics.precision.rounding_error import running_sum_error
from numerics.precision.shadow_sums import SHADOW_FOLDER, SQUARES, read_shadow_sums
from numerics.thresholds.precision import BUDGET
from tracekit.errors import InputError

ADVICE_SCHEMA: Final = "numerics.advise/1"
_BYTES_SAVED: Final = 2
"""Bytes that an element costs less in BF16 than in FP32."""


@dataclass(frozen=True)
class Buffer:
    """One gradient buffer over all ranks and steps. Errors are relative to the sum in FP64 (norm over norm).

    `measured` is the error of the running sum in BF16, `predicted` the one that `running_sum_error` expects. `in_fp32`
    is the error of the sum in FP32, `rounded_once` of that sum rounded to BF16 at the end. `extra_bytes` is the cost of
    FP32 on the rank that holds most of the buffer. `kept` is the format in which the run itself accumulated.
    """

    tensor: str
    kept: str
    micro_batches: int
    measured: float
    predicted: float
    in_fp32: float
    rounded_once: float
    extra_bytes: int
    needs_fp32: bool

    @property
    def agreement(self) -> float:
        """Predicted over measured error."""
        return self.predicted / self.measured if self.measured else math.nan

    @property
    def ratio(self) -> float:
        """Measured error over that of a single rounding; infinite where only accumulation errs."""
        if self.rounded_once:
            return self.measured / self.rounded_once
        return math.inf if self.measured else 0.0


@dataclass(frozen=True)
class Advice:
    """The answer of `numerics advise`: buffers by need, and the cost of FP32 on the rank that holds most, in bytes."""

    run: str
    ranks: int
    steps: int
    budget: float
    buffers: tuple[Buffer, ...]
    extra_bytes: int
    notes: tuple[str, ...]

    @property
    def flagged(self) -> tuple[Buffer, ...]:
        """Buffers that need FP32."""
        return tuple(buffer for buffer in self.buffers if buffer.needs_fp32)


def advise(run: Path, budget: float = BUDGET) -> Advice:
    """Return which gradient buffers of a run need FP32.

    `budget` is the error allowed to BF16, in errors of a single rounding, at least 1. InputError for another budget, or
    where the run left no shadow sums, ranks are missing, or a file is damaged.
    """
    if not (math.isfinite(budget) and budget >= 1):
        raise InputError(
            f"a budget of {budget} is not a factor of 1 or more; 2 allows twice a single rounding's error"
        )
    sums = read_shadow_sums(run)
    rows = [(rank, row) for rank, own in sums.items() for row in own]
    if not rows:
        raise InputError(f"{run / SHADOW_FOLDER}: holds no step; let the run make one")
    by_tensor: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for rank, row in rows:
        by_tensor[row["tensor"]].append((rank, row))
    buffers = tuple(
        sorted(
            (_buffer(tensor, found, budget) for tensor, found in by_tensor.items()),
            key=lambda b: (not b.needs_fp32, -b.measured, b.tensor),
        )
    )
    return Advice(
        run=str(run),
        ranks=len(sums),
        steps=len({row["step"] for _, row in rows}),
        budget=budget,
        buffers=buffers,
        extra_bytes=_extra_bytes(rows, {b.tensor for b in buffers if b.needs_fp32}),
        notes=tuple(_notes(buffers)),
    )


def _extra_bytes(rows: list[tuple[int, dict[str, Any]]], flagged: set[str]) -> int:
    """Return the bytes that FP32 costs for the flagged buffers on the rank that holds most of them."""
    cost: dict[int, int] = defaultdict(int)
    first = min(row["step"] for _, row in rows)
    for rank, row in rows:
        if row["tensor"] in flagged and row["step"] == first:
            cost[rank] += _BYTES_SAVED * row["numel"]
    return max(cost.values(), default=0)


def _buffer(tensor: str, rows: list[tuple[int, dict[str, Any]]], budget: float) -> Buffer:
    """Return the figures of one tensor's buffer, summed over its rows of all ranks and steps."""
    total = {name: math.fsum(float(row[name]) for _, row in rows) for name in SQUARES}
    relative = {
        name: math.sqrt(total[name] / total["square"]) if total["square"] > 0 else 0.0
        for name in SQUARES
        if name.startswith("error_")
    }
    measured, once = relative["error_bfloat16"], relative["error_rounded_once"]
    predicted = running_sum_error(total["squares_of_sums"], total["square_of_last"], "bfloat16")
    finite = all(math.isfinite(value) for value in total.values())
    return Buffer(
        tensor=tensor,
        kept="/".join(sorted({row["kept"] for _, row in rows})),
        micro_batches=max(row["micro_batches"] for _, row in rows),
        measured=measured,
        predicted=max(predicted, once) if not math.isnan(predicted) else math.nan,
        in_fp32=relative["error_float32"],
        rounded_once=once,
        extra_bytes=_BYTES_SAVED * max(row["numel"] for _, row in rows),
        needs_fp32=not finite or measured > budget * once,
    )


def _notes(buffers: tuple[Buffer, ...]) -> Iterable[str]:
    if all(b.micro_batches < 2 for b in buffers):
        yield "one micro-batch a step: nothing is accumulated, so no buffer can need FP32 for it"
    wide = [b for b in buffers if b.kept != "bfloat16"]
    if wide:
        yield (
            f"{len(wide)} of {len(buffers)} buffers are kept in {wide[0].kept} already: "
            "their BF16 error is what accumulating in BF16 would cost"
        )
    yield "reductions between ranks are not part of it: they have a format of their own"
