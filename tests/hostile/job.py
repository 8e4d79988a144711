"""A small slow job as JSON documents, to be damaged, and the answer to a folder of them."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.generator import generate
from tests.generator.mesh import Mesh
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.findings import SlowRankFinding
from tracekit.ingest import load

Document = dict[str, Any]
DAMAGED = 3  # the rank whose file is damaged: an innocent


@cache
def texts(seed: int = 301, kind: str = "slow_compute") -> tuple[tuple[str, str], ...]:
    """(file name, JSON) of each of eight ranks; rank 6 is slow where the kind is."""
    mesh = Mesh(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 1, "pp": 2, "dp": 2})
    case = generate(
        seed, kind=kind, mesh=mesh, missing=set(), truncated={}, gz=False, names=0, steps=3, ragged=False
    )
    with TemporaryDirectory() as folder:
        case.write(Path(folder))
        return tuple((p.name, p.read_text()) for p in sorted(Path(folder).iterdir()))


def documents(seed: int = 301, kind: str = "slow_compute") -> list[Document]:
    """The traces of the eight ranks, by rank, free to be changed."""
    return [json.loads(text) for _, text in texts(seed, kind)]


def one_parsed(seed: int = 301, kind: str = "slow_compute") -> list[Document | str]:
    """The traces of the eight ranks, by rank: the damaged one's free to be changed, the others' as they are written."""
    listed = enumerate(texts(seed, kind))
    return [json.loads(text) if rank == DAMAGED else text for rank, (_, text) in listed]


def write(folder: Path, traces: Sequence[Document | str | None]) -> Path:
    """Put traces into a folder, by rank; None leaves a rank out, text is written as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for (name, _), trace in zip(texts(), traces, strict=True):
        if trace is not None:
            (folder / name).write_text(trace if isinstance(trace, str) else json.dumps(trace))
    return folder


def answer(*folders: Path) -> SlowRankFinding:
    """The finding of `tracekit slowrank` on folders."""
    return analyse(load([str(f) for f in folders]))
