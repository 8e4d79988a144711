"""Memory of a job's ranks as JSON and as a table."""

from collections.abc import Sequence
from dataclasses import asdict

from reftrain.cost.job import Job
from reftrain.cost.memory import RankMemory
from reftrain.documents import MemoryDocument

COLUMNS = ("weights", "gradients", "optimizer", "activations", "buffers")
MIB, GIB = 1 << 20, 1 << 30


def document(job: Job, ranks: Sequence[RankMemory]) -> MemoryDocument:
    """The memory as `reftrain.memory/1`, in bytes; a row a pipeline rank, equal on its other ranks."""
    return {
        "schema": "reftrain.memory/1",
        "unit": "bytes",
        "kernels": job.kernels,
        "ranks": [rank.as_json() for rank in ranks],
    }


def table(ranks: Sequence[RankMemory], kernels: str) -> str:
    """The memory as text, with the style of kernels it assumes, by pipeline rank, at the largest moment of a step."""
    most = max(rank.peak for rank in ranks)
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    hosted = any(rank.host for rank in ranks)
    head = ("pipeline rank", *COLUMNS, "peak", "in flight", *(["host"] if hosted else []))
    rows: list[tuple[str, ...]] = [head]
    for rank in ranks:
        kinds = asdict(rank.at_peak)
        values = [*(kinds[column] for column in COLUMNS), rank.peak]
        offloaded = [f"{rank.host / unit:.2f}"] if hosted else []
        sizes = (f"{value / unit:.2f}" for value in values)
        rows.append((str(rank.rank), *sizes, str(rank.in_flight), *offloaded))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    head_line = f"{name} at the largest moment of a step with {kernels} kernels"
    lines = [f"{head_line}; equal on all ranks of a pipeline rank"]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n"
