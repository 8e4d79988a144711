"""Buffers that data-parallel ranks keep apart, as running statistics of their own part of each batch."""

import numpy as np

from numerics.columns import Columns
from numerics.schema import BUFFER
from tracekit.axes import AXES


def statistics_declared(run: Columns) -> bool:
    """Return whether a run declares that each of its ranks and micro-batches takes its own statistics."""
    layout = (run.capture.config or {}).get("layout")
    return isinstance(layout, dict) and layout.get("batch_statistics") == "local"


def other_buffers(run: Columns, baseline: Columns) -> bool:
    """Return whether a rank of a run holds a buffer with other bits than the same rank of a baseline of as many ranks.

    Each rank's are its own, so that no comparison of whole tensors covers them.
    """
    if run.capture.world_size != baseline.capture.world_size:
        return False
    mine, other = _of_ranks(run), _of_ranks(baseline)
    return any(mine[key] != other[key] for key in mine.keys() & other.keys())


def _of_ranks(run: Columns) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the digests of each rank's buffers by step, phase, tensor, micro-batch and rank, in order of time."""
    names = [name for name in run.names.texts if name.startswith(BUFFER)]
    rows = np.flatnonzero(run.named("kind", "input") & run.named("tensor", *names))
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for row in rows[np.argsort(run["order"][rows], kind="stable")].tolist():
        key = tuple(int(run[c][row]) for c in ("step", "phase", "tensor", "micro_batch", "rank"))
        found[key] = (*found.get(key, ()), int(run.digest[row]))
    return found


def unequal_buffers(run: Columns) -> str:
    """Return in words that data-parallel ranks end a step with unequal buffers of one model part; "" where none do.

    Ranks that share an index and all coordinates hold parts that the record does not separate.
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
        f"after step {step} the buffer {names[0]}{more} {are} between data-parallel ranks, and a checkpoint holds only "
        "the values of the rank that saves it"
    )
