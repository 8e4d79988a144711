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
    bogus_id: bool = False  # a kernel without a record has its correlation for External id: up to 2.5


FORMS = {
    "plain": Form(),
    "2.4": Form(ends=False, rank=False, titles=True),
    "2.5": Form(titles=True),
    "2.5-batched": Form(titles=True, batched=True, ended=False, bogus_id=True),
    "2.6-batched": Form(batched=True, ended=False),
    "2.9-batched": Form(batched=True),
    "2.9-no-ends": Form(ends=False, batched=True),
}
"""By torch version; `plain` is what 2.5 and later write without titles."""
