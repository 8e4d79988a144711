"""Operations take the groups that were inferred for them, and lose them to be inferred again."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tracekit.inference.groups.common_ends import Members
from tracekit.inference.groups.stream_sequences import NO_GROUP, unnamed_rows
from tracekit.rank_events.operation_names import COLLECTIVE, OTHER
from tracekit.rank_events.rank_ops import RankOps
from tracekit.store import InferredGroup, Run


def named(
    run: Run, ranks: list[RankOps], found: Mapping[tuple[int, int], Members], *, sure: bool = False
) -> tuple[Run, list[RankOps]]:
    """Return `run` with the groups in `found` ((rank, stream) → members), and the operations of their streams in them.

    Operations that left together on a stream are collectives, for any name of the kernel (RCCL has one name for all).
    Unless it is `sure`, because nothing else is possible, a group counts as inferred, and may be inferred again.
    """
    number = {g.ranks: g.group for g in run.groups}
    groups = list(run.groups)
    for members in sorted(set(found.values())):
        if members not in number:
            number[members] = len(groups)
            groups.append(InferredGroup(len(groups), members, (), ()))
    every = []
    for rank in ranks:
        group, mine = rank.group.copy(), unnamed_rows(rank)
        for stream in np.unique(rank.stream[mine]).tolist() if rank.stream is not None else []:
            if (rank.rank, stream) in found:
                group[mine & (rank.stream == stream)] = number[found[rank.rank, stream]]
        learnt = mine & (group != rank.group)
        op = tuple(
            COLLECTIVE if new and o == OTHER else o for o, new in zip(rank.op, learnt.tolist(), strict=True)
        )
        before = np.zeros(len(group), bool) if rank.inferred is None else rank.inferred
        inferred = before if sure else learnt | before
        every.append(replace(rank, group=group, op=op, inferred=inferred))
    return replace(run, groups=tuple(groups)), every


def without_inferred(rank: RankOps) -> RankOps:
    """Return `rank` with only the groups that its arguments name."""
    if rank.inferred is None:
        return rank
    return replace(rank, group=np.where(rank.inferred, NO_GROUP, rank.group).astype(rank.group.dtype))
