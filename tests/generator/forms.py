"""The forms in which versions of torch write communication, from shared/facts/p2p.md and the released wheels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """What one version of torch writes of its communication."""

    ends: bool = True  # Src Rank and Dst Rank: 2.5 to 2.14
    rank: bool = True  # the peer's rank in the group, on the host's record: from 2.5
    titles: bool = False  # nccl:send 0->1 around the host's record: 2.2 to 2.14
    batched: bool = False  # one kernel without arguments for all messages of a batch
    ended: bool = True  # nccl:coalesced ends with the call; up to 2.8 nothing ends it
    inputs: bool = False  # record_shapes: peer and tag among the inputs of c10d::send and c10d::recv_
    nccl2: bool = (
        False  # the backend of 2.15: other names, no lists of members, one Seq for all calls of a group
    )
    bogus_id: bool = False  # a kernel without a record has its correlation for External id: up to 2.5
    keys: tuple[tuple[str, str], ...] | None = None  # up to 2.3: arguments written, and how they are spelt
    lists_groups: bool = True  # distributedInfo.pg_config: from 2.3
    old_kernels: bool = False  # ncclKernel_…, before NCCL 2.19
    silent: bool = False  # messages have no record on the host, and their kernels no arguments: up to 2.1


_SIZED = ("dtype", "Group size")
_OLDER = (*((k, k) for k in _SIZED), ("In msg nelems", "In msg size"), ("Out msg nelems", "Out msg size"))
_SPLIT = (*_SIZED, "In msg nelems", "Out msg nelems", "In split size", "Out split size")

FORMS = {
    "plain": Form(),
    "2.1": Form(silent=True),
    "2.1-batched": Form(silent=True, batched=True),
    "2.4-no-titles": Form(ends=False, rank=False),
    "2.4-no-titles-batched": Form(ends=False, rank=False, batched=True, ended=False, bogus_id=True),
    "torch-2.1": Form(
        ends=False,
        rank=False,
        titles=True,
        keys=(),
        lists_groups=False,
        silent=True,
        old_kernels=True,
    ),
    "torch-2.2": Form(ends=False, rank=False, titles=True, keys=_OLDER, lists_groups=False),
    "torch-2.3": Form(ends=False, rank=False, titles=True, keys=tuple((k, k) for k in _SPLIT)),
    "2.4": Form(ends=False, rank=False, titles=True),
    "2.5": Form(titles=True),
    "2.5-batched": Form(titles=True, batched=True, ended=False, bogus_id=True),
    "2.6-batched": Form(batched=True, ended=False),
    "2.9-batched": Form(batched=True),
    "2.15": Form(ends=False, rank=False, inputs=True, nccl2=True),
    "2.15-batched": Form(ends=False, rank=False, batched=True, inputs=True, nccl2=True),
    "2.9-no-ends": Form(ends=False, batched=True),
    "2.15-no-inputs": Form(ends=False, rank=False, batched=True, nccl2=True),
}
"""By torch version; `plain` is what 2.5 and later write without titles."""
PEERLESS = ("2.1", "2.1-batched", "2.4-no-titles", "2.4-no-titles-batched", "2.15-no-inputs")
"""Forms that tell no peer, unless the group has two members."""

NCCL2 = {
    "allreduce": "all_reduce",
    "_allgather_base": "allGatherSingleImpl",
    "_reduce_scatter_base": "reduceScatterSingleImpl",
}
"""Names of collectives in the backend of 2.15, where they differ."""
TITLES = {
    "allreduce": "nccl:all_reduce",
    "_allgather_base": "nccl:_all_gather_base",
    "_reduce_scatter_base": "nccl:_reduce_scatter_base",
    "broadcast": "nccl:broadcast",
}
"""Titles of collectives up to 2.14."""
LISTS = ("Process Group Ranks", "Global rank start", "Global rank stride")
"""Arguments that list the members of a group: the backend of 2.15 has none."""
