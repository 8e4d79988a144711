"""Which links a link is compared with where a pipeline is short: those of other ranks, and those found to be sound.

Most links of a short pipeline touch the two ranks at a slow one. Where all links of a rank are slow, the median link is
as slow as they are. The same holds of nodes, each of which runs a stage: all links of one share its network card.
"""

from collections.abc import Collection, Mapping, Sequence

from tracekit.matching.channels import Channel
from tracekit.thresholds.unlike import FEW_LINKS

Ends = Mapping[int, tuple[object, ...]]
"""Members of each channel, or their nodes."""


def short_pipeline(channels: Sequence[Channel], nodes: Mapping[int, str | int]) -> Ends:
    """The ends of `channels` where all carry messages and they are few, or connect few of the `nodes`; else empty."""
    if not all(c.p2p for c in channels):
        return {}
    if len(channels) <= FEW_LINKS:
        return {c.number: c.members for c in channels}
    ends = {c.number: tuple(nodes.get(m) for m in c.members) for c in channels}
    apart = all(None not in where and len(set(where)) > 1 for where in ends.values())
    return ends if apart and len(set(ends.values())) <= FEW_LINKS else {}


def crowded(ends: Ends, channel: int) -> bool:
    """Whether at most half of the other channels are links of other ranks than those that `channel` connects."""
    return channel in ends and 2 * len(_apart(ends, channel)) < len(ends)


def beside(ends: Ends, channel: int, slow: Collection[int]) -> list[int]:
    """The channels of other ranks than those that `channel` connects; where it has none, those that are not `slow`."""
    sound = [c for c in ends if c not in slow and set(ends[c]) != set(ends[channel])]
    return _apart(ends, channel) or (sound if slow else [])


def _apart(ends: Ends, channel: int) -> list[int]:
    return [c for c in ends if not set(ends[c]) & set(ends[channel])] if ends else []
