"""The share of a collective's buffer that each member sends in a ring, as nccl-tests count it (doc/PERFORMANCE.md)."""

from typing import Final

_RING: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often a ring sends (N−1)/N of the buffer; other operations send it once."""


def ring_share(op: str, members: int) -> float:
    """Return the share of a call's size that each of its `members` sends in a ring."""
    times = _RING.get(op, 0)
    return times * (members - 1) / members if times and members else 1.0


def is_ring(op: str) -> bool:
    """Whether all members of an operation send and receive equal amounts."""
    return op in _RING
