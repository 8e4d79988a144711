"""Real runs with a capture, and their replays, for tests."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from numerics.schema import ROWS
from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.job.launcher import prepare_folder
from reftrain.replay.command import replay
from tests.reftrain import workers

SMALL: dict[str, dict[str, Any]] = {
    "model": {"layers": 2, "dim": 32, "ffn_dim": 64},
    "data": {"batch_size": 4, "seq_len": 32},
    "numerics": {"policy": "bf16"},
}
NUMBERS = {"digest", "digest_nz", "sum", "sum_squares", "abs_max", "min", "max", "sketch", "values", "order"}


def config_of(folder: Path, tables: dict[str, dict[str, Any]]) -> RunConfig:
    merged: dict[str, dict[str, Any]] = {}
    own = {"run": {"out": str(folder), "steps": 2}, "evidence": {"capture": "digest"}}
    for source in (SMALL, own, tables):
        for table, values in source.items():
            merged.setdefault(table, {}).update(values)
    return load(None, merged)


def captured(ranks, folder: Path, tables: dict[str, dict[str, Any]]) -> RunConfig:
    """Run with a capture into `folder`."""
    config = config_of(folder, tables)
    prepare_folder(folder)
    ranks.run(workers.whole_run, config.mesh.world_size, config)
    return config


def replayed(run: Path, *variants: str, level: str = "digest") -> Path:
    """Replay a run in this process."""
    out = run.with_name(f"{run.name}-replay{'-'.join(variants)}")
    replay(run, out, level, (), variants, None)
    return out


def rows(run: Path) -> dict[tuple[Any, ...], tuple[int, str]]:
    """Digest and tensor of every row by all that identifies it, repetitions counted."""
    names = [name for name in ROWS.names if name not in NUMBERS]
    found: dict[tuple[Any, ...], tuple[int, str]] = {}
    for path in sorted((run / "capture").glob("rank*.parquet")):
        seen: Counter[tuple[Any, ...]] = Counter()
        for row in pq.read_table(path).to_pylist():
            key = tuple(row[name] for name in names)
            found[(*key, seen[key])] = row["digest"], row["tensor"]
            seen[key] += 1
    return found


def unequal(run: Path, other: Path) -> list[str]:
    """Tensors whose rows differ, or that only one run recorded."""
    mine, theirs = rows(run), rows(other)
    different = [
        tensor for key, (digest, tensor) in mine.items() if key in theirs and theirs[key][0] != digest
    ]
    alone = [
        found[key][1] for found, rest in ((mine, theirs), (theirs, mine)) for key in found if key not in rest
    ]
    return different + alone
