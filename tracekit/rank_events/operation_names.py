"""Canonical names of the kinds of communication, for all libraries and kernels."""

import re
from functools import lru_cache
from typing import Final

_OPS = (
    ("all_to_all", r"all_?to_?all|a2a|deep_ep::"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_reduce", r"all_?reduce|cross_device_reduce"),
    ("send_recv", r"send_?recv|batch_op_issue"),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier"),
    ("scatter", r"scatter"),
    ("gather", r"gather"),
    ("reduce", r"reduce"),
    ("send", r"send"),
    ("recv", r"recv"),
)
_OP_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _OPS)
OTHER: Final = "other"
"""Kind of a kernel if its name does not show one, as RCCL's: it may be a message."""
COLLECTIVE: Final = "collective"
"""Kind of such a kernel once its ends on several ranks show that it is a collective."""
ROOTED: Final = ("broadcast", "scatter", "gather", "reduce")
"""Operations in which one member may leave before the others arrive: durations do not show the order of arrival."""
MESSAGES: Final = ("send", "recv")
"""Operations between two ranks that name each other."""
CALL_OPS: Final = {"c10d::send": "send", "c10d::recv_": "recv"}
"""Calls that enclose the record of a message."""
SENDS: Final = 1
RECEIVES: Final = -1
WAYS: Final = {"send": SENDS, "recv": RECEIVES}
"""Directions of messages as numbers; 0 is an unknown one."""
UNDIRECTED: Final = (*MESSAGES, "send_recv")
"""Operations that may be messages; a kernel alone shows neither direction nor peer."""


@lru_cache(4096)
def canonical_op(text: str) -> str:
    """Return the canonical name: `_allgather_base` and `ncclDevKernel_AllGather_RING_LL` are `all_gather`."""
    return next((name for name, pattern in _OP_PATTERNS if pattern.search(text)), OTHER)


def directed(op: str, src: int, dst: int, rank: int) -> str:
    """Return `send` or `recv` for a message of `rank` that names its peer, `send_recv` for one without a peer.

    `src` and `dst` are global ranks, -1 where the recording does not name them. Collectives keep their name.
    """
    if op in UNDIRECTED:
        if src == rank and dst not in {-1, rank}:
            return "send"
        if dst == rank and src not in {-1, rank}:
            return "recv"
        if op == "send" and dst in {-1, rank}:
            return "send_recv"
        if op == "recv" and src in {-1, rank}:
            return "send_recv"
    return op


# The share of a collective's buffer that each member sends in a ring, as nccl-tests count it
# (doc/PERFORMANCE.md).

_RING: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often a ring sends (N−1)/N of the buffer; other operations send it once."""


def ring_share(op: str, members: int) -> float:
    """Return the share of a call's size that each of its `members` sends in a ring."""
    times = _RING.get(op, 0)
    return times * (members - 1) / members if times and members else 1.0


def is_ring(op: str) -> bool:
    """Whether all members of an operation send and receive equal amounts."""
    return op in _RING
