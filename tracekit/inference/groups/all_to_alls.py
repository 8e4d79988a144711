"""All-to-alls with kernels that have the name of a message's, and no argument that shows more.

NCCL carries an all-to-all out by sends and receives, in a kernel of that name. An operation that leaves together on
three or more ranks that arrived one after the other is not a message between two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.inference.groups.common_ends import Members, Together, choose
from tracekit.inference.groups.inferred_groups import named
from tracekit.inference.groups.places_apart import ways_by_place
from tracekit.inference.groups.stream_sequences import NO_GROUP, StreamClass, stream_classes
from tracekit.inference.groups.usual_numbering import Way, allowed_ways, by_parts, members_of
from tracekit.mesh import Mesh
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.rank_events.rank_ops import RankOps
from tracekit.store import Run
from tracekit.thresholds.tables import LEAST_IN_ALL_TO_ALL

ALL_TO_ALL = "all_to_all"


def silent_messages(rank: RankOps) -> npt.NDArray[np.bool_]:
    """Return whether each operation may be a message and names neither direction nor peer nor group."""
    if rank.stream is None or not rank.op:
        return np.zeros(len(rank.op), bool)
    silent = among(rank.op, ("send_recv",)) & (rank.src == NO_GROUP) & (rank.dst == NO_GROUP)
    silent &= (rank.group == NO_GROUP) & (rank.stream != NO_GROUP)
    return silent if rank.way is None else np.asarray(silent & (rank.way == 0), bool)


def with_all_to_alls(run: Run, ranks: list[RankOps], mesh: Mesh) -> tuple[Run, list[RankOps]]:
    """Return `run` and `ranks` with the all-to-alls among silent messages, in their groups."""
    recorded = {r.rank for r in ranks}
    classes = stream_classes(ranks, by_place=True, rows=silent_messages)
    found: dict[tuple[int, int], Members] = {}
    for streams, ways in allowed_ways(run, mesh, classes, recorded):
        alike = _dealt(streams, ways, recorded)
        found |= members_of([(streams, alike)], recorded) if alike else {}
    if mesh.stages > 1:
        mute = {r.rank for r in ranks if not _exchanges(r, found)}
        found = {key: group for key, group in found.items() if not mute & set(group)}
    if not found:
        return run, ranks
    return named(run, [_renamed(r, found) for r in ranks], found)


def _exchanges(rank: RankOps, found: Mapping[tuple[int, int], Members]) -> bool:
    """Whether a rank of a pipeline has messages besides the all-to-alls in `found`, as every stage must.

    The messages of tensor-parallel ranks, which run in step, end together too and could be mistaken for all-to-alls.
    """
    silent, stream = silent_messages(rank), rank.stream
    if stream is not None:
        silent &= ~np.isin(stream, [s for r, s in found if r == rank.rank])
    return bool(silent.any() or among(rank.op, MESSAGES).any())


def _dealt(streams: StreamClass, ways: Sequence[Way], recorded: set[int]) -> list[Way]:
    """Return the ways that fit a class as all-to-alls; empty unless every position shows the same proven groups."""
    by_part = by_parts(streams, ways, recorded)
    parts, together = list(by_part), Together(streams)
    way = choose(together, parts)
    if way is None or not set(ways_by_place(streams, parts).values()) <= {way}:
        return []
    several = min(len(group) for group in parts[way]) >= LEAST_IN_ALL_TO_ALL
    return by_part[parts[way]] if several and together.proven(parts[way]) else []


def _renamed(rank: RankOps, found: dict[tuple[int, int], Members]) -> RankOps:
    """Return `rank` with the silent messages of the streams in `found` as all-to-alls."""
    silent = silent_messages(rank)
    if rank.stream is not None:
        silent &= np.isin(rank.stream, [s for r, s in found if r == rank.rank])
    op, token = list(rank.op), list(rank.token)
    for row in np.flatnonzero(silent).tolist():
        op[row] = ALL_TO_ALL
        token[row] = f"{ALL_TO_ALL}/{token[row].partition('/')[2]}"
    return replace(rank, op=tuple(op), token=tuple(token))
