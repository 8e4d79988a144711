"""Joins collectives of unknown groups with those at the same position on the other ranks of their stage.

Ranks of a pipeline stage run the same program, so the members of such a collective's group are at the same place of the
same stream. Letting all ranks of the stage wait for each other there is more than they did; a step model of that takes
no less time than the job, and if it still gives the recorded waits, it shows what an operation waited for.
"""

from collections import defaultdict

import numpy as np

from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


def mates(run: Measured) -> I64:
    """Return by operation a number shared by the same position on all ranks of its stage; −1 for other operations.

    Only collectives without a group are numbered, and only where all ranks of the stage run equally many of them. One
    that every rank of the job runs once a step is shared by all stages.
    """
    ops = run.ops
    number = np.full(len(ops.start), -1, np.int64)
    open_ = (ops.channel < 0) & run.analysed & ~ops.among(UNDIRECTED)
    if not open_.any():
        return number
    places: dict[tuple[int, int, str], dict[int, list[I64]]] = defaultdict(dict)
    for stage, rows in enumerate(run.stages):
        for row in rows.tolist():
            for key, found in _of_rank(run, run.steps.ranks[row], open_).items():
                places[key].setdefault(stage, []).append(found)
    following = 0
    count = len(run.steps.ranks)
    for _, by_stage in sorted(places.items(), key=lambda item: item[0]):
        every = [found for members in by_stage.values() for found in members]
        once = len(every) == count and all(len(found) == 1 for found in every)
        for members in [every] if once else by_stage.values():
            if len(members) > 1 and len({len(found) for found in members}) == 1:
                together = np.array(members)  # ranks × places
                number[together] = following + np.arange(together.shape[1])
                following += together.shape[1]
    return number


def with_mates(run: Measured, fixed: F64, transfer: F64) -> tuple[I64, F64, F64]:
    """Return (instance by operation, fixed duration, transfer by instance) with joined ones behind matched ones; ns.

    `fixed` and `transfer` are those of a step model. The last rank at a place shows how long the transfer is.
    """
    ops, number = run.ops, mates(run)
    rows = np.flatnonzero(number >= 0)
    instance = ops.instance.copy()
    instance[rows] = len(transfer) + number[rows]
    least = np.full(int(number.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, number[rows], (ops.end - ops.start)[rows].astype(np.float64))
    return instance, np.where(number >= 0, -1.0, fixed), np.concatenate([transfer, least])


def _of_rank(run: Measured, rank: int, open_: Mask) -> dict[tuple[int, int, str], I64]:
    """Return the `open_` operations of a rank in order of start, by step, stream and token."""
    ops, where = run.ops, run.ops.of(rank)
    rows = np.flatnonzero(open_[where])
    stream = ops.per_rank[rank].stream
    streams = np.full(len(rows), -1) if stream is None else stream[rows]
    found: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for row, on in zip((rows + where.start).tolist(), streams.tolist(), strict=True):
        found[int(ops.step[row]), int(on), str(ops.token[row])].append(row)
    return {key: np.array(of, np.int64) for key, of in found.items()}
