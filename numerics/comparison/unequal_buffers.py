"""Buffers that data-parallel ranks keep apart, as running statistics of their own part of each batch."""

import numpy as np

from numerics.columns import Columns
from numerics.schema import BUFFER
from tracekit.axes import AXES


def statistics_declared(run: Columns) -> bool:
    """Return whether a run says that each of its ranks and micro-batches is meant to take its own statistics."""
    layout = (run.capture.config or {}).get("layout")
    return isinstance(layout, dict) and layout.get("batch_statistics") == "local"


def unequal_buffers(run: Columns) -> str:
    """Return in words that data-parallel ranks end a step with unequal buffers of one model part; "" where none do.

    Ranks that share an index and all coordinates hold parts that the record does not tell apart.
    """
    rows = np.flatnonzero(run.named("phase", "step") & run.named("kind", "input"))
    held: dict[tuple[int, str, tuple[int, ...]], dict[int, set[int]]] = {}
    for row in rows.tolist():
        name = run.name("tensor", row)
        if name.startswith(BUFFER):
            part = tuple(int(run[axis][row]) for axis in AXES if axis != "dp")
            by_rank = held.setdefault((int(run["step"][row]), name, part), {})
            by_rank.setdefault(int(run["dp"][row]), set()).add(int(run.digest[row]))
    unequal = [
        (key[0], key[1])
        for key, by in sorted(held.items())
        if all(len(digests) == 1 for digests in by.values()) and len(set().union(*by.values())) > 1
    ]
    if not unequal:
        return ""
    step = unequal[0][0]
    names = list(dict.fromkeys(name.removeprefix(BUFFER) for at, name in unequal if at == step))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    are = "differ" if more else "differs"
    return (
        f"after step {step} the buffer {names[0]}{more} {are} between data-parallel ranks, and a checkpoint holds "
        "those of the rank that saves it"
    )
