"""The forms in which versions of torch write point-to-point operations, from shared/facts/p2p.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """What one version of torch writes of a message."""

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
    silent: bool = False  # messages have no record on the host, and their kernels no arguments: up to 2.1


FORMS = {
    "plain": Form(),
    "2.1": Form(silent=True),
    "2.1-batched": Form(silent=True, batched=True),
    "2.4-no-titles": Form(ends=False, rank=False),
    "2.4-no-titles-batched": Form(ends=False, rank=False, batched=True, ended=False, bogus_id=True),
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
LISTS = ("Process Group Ranks", "Global rank start", "Global rank stride")
"""Arguments that list the members of a group: the backend of 2.15 has none."""
