"""Reads shadow sums: each micro-batch's gradients added up in BF16, FP32 and FP64 side by side.

A trainer leaves them in RUN/shadow/rankNNNNN.json ("numerics.shadow/1").
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from numerics.thresholds.reading import MAX_EXTENT, MAX_PLAN_BYTES, MAX_RANKS, MAX_SQUARE
from tracekit.errors import InputError
from tracekit.small_files import read_small

SHADOW_SCHEMA: Final = "numerics.shadow/1"
SHADOW_FOLDER: Final = "shadow"
SQUARES: Final = (
    "squares_of_sums",
    "square_of_last",
    "square",
    "error_bfloat16",
    "error_float32",
    "error_rounded_once",
)
"""Sums of squares in a row: of the running sums, of the last one, of the sum in FP64, and of three errors."""

_FILE: Final = re.compile(r"rank(\d{1,7})\.json")
_WHOLE: Final = ("step", "micro_batches", "numel")


def read_shadow_sums(run: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of every rank: one for each step and tensor, with counts and sums of squares.

    InputError where the run left none, ranks are missing, or a file is damaged.
    """
    return {rank: list(_rows(run, rank, document)) for rank, document in _documents(run).items()}


def _documents(run: Path) -> dict[int, Mapping[str, Any]]:
    """Return the shadow sums of every rank as read."""
    folder = run / SHADOW_FOLDER
    if not folder.is_dir():
        raise InputError(
            f"{run}: left no shadow sums ({SHADOW_FOLDER}/ is missing); run again with "
            "--set evidence.shadow_gradients=true, or with a trainer that writes numerics.shadow/1"
        )
    found = {int(m[1]): path for path in sorted(folder.iterdir()) if (m := _FILE.fullmatch(path.name))}
    documents = {rank: _document(path, rank) for rank, path in found.items()}
    sizes = {document["world_size"] for document in documents.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{folder}: files of runs of {' and '.join(map(str, sorted(sizes)))} ranks; keep the files of one run"
        )
    missing = sorted(set(range(next(iter(sizes), 1))) - set(documents))
    if missing:
        raise InputError(
            f"{folder}: rank {missing[0]} of {next(iter(sizes), 1)} left no file; copy it here or run again"
        )
    return documents


def _document(path: Path, rank: int) -> Mapping[str, Any]:
    try:
        found = json.loads(read_small(path, MAX_PLAN_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: unreadable ({str(error)[:200]}); run again") from error
    if not isinstance(found, dict) or found.get("schema") != SHADOW_SCHEMA:
        raise InputError(f"{path}: is not a {SHADOW_SCHEMA}; remove the foreign file")
    ranks = found.get("world_size")
    if found.get("rank") != rank or not isinstance(ranks, int) or not rank < ranks <= MAX_RANKS:
        said = f"rank {str(found.get('rank'))[:20]} of {str(ranks)[:20]}"
        raise InputError(f"{path}: says it is {said}; copy the right file here")
    return found


def _rows(run: Path, rank: int, document: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the rows of one rank; InputError where one lacks a figure."""
    rows = document.get("rows")
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, dict) or not (
            isinstance(row.get("tensor"), str)
            and isinstance(row.get("kept"), str)
            and all(type(row.get(name)) is int and 0 <= row[name] <= MAX_EXTENT for name in _WHOLE)
            and all(_is_sum_of_squares(row.get(name)) for name in SQUARES)
        ):
            raise InputError(
                f"{run / SHADOW_FOLDER}: rank {rank} has a row without all its figures; run again"
            )
        yield row


def _is_sum_of_squares(value: Any) -> bool:
    """Whether a value can be a sum of squares: of gradients that overflowed it is infinite or not a number."""
    if type(value) is float and not math.isfinite(value):
        return value != -math.inf
    return type(value) in (int, float) and 0 <= value <= MAX_SQUARE
