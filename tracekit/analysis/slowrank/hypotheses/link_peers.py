"""Which links a link is compared with in a short pipeline: links of other ranks, or links that are not slow.

In a short pipeline most links touch one of the two ranks of a slow link. Where all links of a rank are slow, the median
link is slow as well. The same holds for nodes that each run a stage: all links of a node share its network card.
"""

from collections.abc import Collection, Mapping, Sequence

from tracekit.matching.channels import Channel
from tracekit.thresholds.unlike import FEW_LINKS

Ends = Mapping[int, tuple[object, ...]]
"""The members of each channel, or their nodes."""


def short_pipeline(channels: Sequence[Channel], nodes: Mapping[int, str | int]) -> Ends:
    """The ends of `channels` where all carry messages and are few, or connect few pairs of `nodes`; else empty."""
    if not all(c.p2p for c in channels):
        return {}
    if len(channels) <= FEW_LINKS:
        return {c.number: c.members for c in channels}
    ends = {c.number: tuple(nodes.get(m) for m in c.members) for c in channels}
    apart = all(None not in where and len(set(where)) > 1 for where in ends.values())
    return ends if apart and len(set(ends.values())) <= FEW_LINKS else {}


def crowded(ends: Ends, channel: int) -> bool:
    """Whether fewer than half of the channels share no end with `channel`."""
    return channel in ends and 2 * len(_apart(ends, channel)) < len(ends)


def beside(ends: Ends, channel: int, slow: Collection[int]) -> list[int]:
    """The channels that share no end with `channel`; where there are none, the channels that are not `slow`."""
    sound = [c for c in ends if c not in slow and set(ends[c]) != set(ends[channel])]
    return _apart(ends, channel) or (sound if slow else [])


def _apart(ends: Ends, channel: int) -> list[int]:
    return [c for c in ends if not set(ends[c]) & set(ends[channel])] if ends else []
