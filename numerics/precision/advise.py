"""Which gradient buffers need FP32: what BF16 accumulation costs each of them, measured in the run and predicted.

Reads run/shadow/rankNNNNN.json ("numerics.shadow/1"), which a trainer leaves that sums each micro-batch's gradient in
BF16, FP32 and FP64 side by side. A buffer needs FP32 where its error exceeds that of a single rounding by the budget:
less cannot be had in BF16 anyhow, more is the price of accumulating in it.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numerics.precision.rounding_error import running_sum_error
from tracekit.errors import InputError

SHADOW_SCHEMA: Final = "numerics.shadow/1"
ADVICE_SCHEMA: Final = "numerics.advise/1"
FOLDER: Final = "shadow"
BUDGET: Final = 2.0
"""Default: twice the error of a single rounding. Two addends cost 1.1 times, four 1.6, sixteen three times."""

_FILE: Final = re.compile(r"rank(\d{1,7})\.json")
_MOST_BYTES: Final = 256 << 20
_WHOLE: Final = ("step", "micro_batches", "numel")
_SQUARES: Final = (
    "squares_of_sums",
    "square_of_last",
    "square",
    "error_bfloat16",
    "error_float32",
    "error_rounded_once",
)


@dataclass(frozen=True)
class Buffer:
    """One gradient buffer over all ranks and steps. Errors are relative (norm over norm), to the sum in FP64.

    `measured` is of the running sum in BF16, `predicted` what `bound.running_sum_error` expects of it, `in_fp32` of the
    sum in FP32 and `rounded_once` of that sum rounded to BF16 at the end. `extra_bytes` is what FP32 costs on the rank
    that holds most of it. `kept` is the format the run itself accumulated in.
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
        """Measured error over that of a single rounding; infinite where that is exact and accumulation is not."""
        if self.rounded_once:
            return self.measured / self.rounded_once
        return math.inf if self.measured else 0.0


@dataclass(frozen=True)
class Advice:
    """The answer of `numerics advise`: buffers from most to least in need, worst rank's cost in bytes."""

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
    """Judge every gradient buffer of a run.

    InputError where the run left no shadow sums, ranks are missing, or a file is damaged.
    """
    if not (math.isfinite(budget) and budget >= 1):
        raise InputError(
            f"a budget of {budget} is no factor of 1 or more; 2 allows twice a single rounding's error"
        )
    documents = _documents(run)
    rows = [(rank, row) for rank, document in documents.items() for row in _rows(run, rank, document)]
    if not rows:
        raise InputError(f"{run / FOLDER}: holds no step; let the run make one")
    by_tensor: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for rank, row in rows:
        by_tensor[row["tensor"]].append((rank, row))
    buffers = tuple(
        sorted(
            (_buffer(tensor, found, budget) for tensor, found in by_tensor.items()),
            key=lambda b: (not b.needs_fp32, -b.measured, b.tensor),
        )
    )
    flagged = {b.tensor for b in buffers if b.needs_fp32}
    cost: dict[int, int] = defaultdict(int)
    first = min(row["step"] for _, row in rows)
    for rank, row in rows:
        if row["tensor"] in flagged and row["step"] == first:
            cost[rank] += 2 * row["numel"]
    return Advice(
        run=str(run),
        ranks=len(documents),
        steps=len({row["step"] for _, row in rows}),
        budget=budget,
        buffers=buffers,
        extra_bytes=max(cost.values(), default=0),
        notes=tuple(_notes(buffers)),
    )


def _documents(run: Path) -> dict[int, Mapping[str, Any]]:
    folder = run / FOLDER
    if not folder.is_dir():
        raise InputError(
            f"{run}: left no shadow sums ({FOLDER}/ is missing); run again with "
            "--set evidence.shadow_gradients=true, or with a trainer that writes numerics.shadow/1"
        )
    found = {int(m[1]): path for path in sorted(folder.iterdir()) if (m := _FILE.fullmatch(path.name))}
    documents = {rank: _document(path, rank) for rank, path in found.items()}
    sizes = {document["world_size"] for document in documents.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{folder}: files of runs of {' and '.join(map(str, sorted(sizes)))} ranks; keep those of one"
        )
    missing = sorted(set(range(next(iter(sizes), 1))) - set(documents))
    if missing:
        raise InputError(
            f"{folder}: rank {missing[0]} of {next(iter(sizes), 1)} left no file; copy it here or run again"
        )
    return documents


def _document(path: Path, rank: int) -> Mapping[str, Any]:
    try:
        size = path.stat().st_size
        found = json.loads(path.read_text(encoding="utf-8")) if size <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: unreadable ({str(error)[:200]}); run again") from error
    if not isinstance(found, dict) or found.get("schema") != SHADOW_SCHEMA:
        raise InputError(f"{path}: is no {SHADOW_SCHEMA}; remove the foreign file")
    ranks = found.get("world_size")
    if found.get("rank") != rank or not isinstance(ranks, int) or not rank < ranks <= 1 << 20:
        said = f"rank {str(found.get('rank'))[:20]} of {str(ranks)[:20]}"
        raise InputError(f"{path}: says it is {said}; copy the right file here")
    return found


def _rows(run: Path, rank: int, document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    rows = document.get("rows")
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, dict) or not (
            isinstance(row.get("tensor"), str)
            and isinstance(row.get("kept"), str)
            and all(isinstance(row.get(name), int) and row[name] >= 0 for name in _WHOLE)
            and all(isinstance(row.get(name), int | float) for name in _SQUARES)
        ):
            raise InputError(f"{run / FOLDER}: rank {rank} has a row without all its figures; run again")
        yield row


def _buffer(tensor: str, rows: list[tuple[int, dict[str, Any]]], budget: float) -> Buffer:
    total = {name: math.fsum(float(row[name]) for _, row in rows) for name in _SQUARES}
    relative = {
        name: math.sqrt(total[name] / total["square"]) if total["square"] > 0 else 0.0
        for name in _SQUARES
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
        extra_bytes=2 * max(row["numel"] for _, row in rows),
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
