"""Which links a link is compared with where a pipeline is short: those of other ranks, and those found to be sound.

Most links of a short pipeline touch the two ranks at a slow one. Where all links of a rank are slow, the median link is
as slow as they are.
"""

from collections.abc import Collection, Mapping, Sequence

from tracekit.tables.channels import Channel
from tracekit.thresholds.unlike import FEW_LINKS

Ends = Mapping[int, tuple[int, ...]]
"""Members of each channel."""


def short_pipeline(channels: Sequence[Channel]) -> Ends:
    """The ends of `channels` where all carry messages and they are few; empty elsewhere."""
    few = len(channels) <= FEW_LINKS and all(c.p2p for c in channels)
    return {c.number: c.members for c in channels} if few else {}


def crowded(ends: Ends, channel: int) -> bool:
    """Whether at most half of the other channels are links of other ranks than those that `channel` connects."""
    return channel in ends and 2 * len(_apart(ends, channel)) < len(ends)


def beside(ends: Ends, channel: int, slow: Collection[int]) -> list[int]:
    """The channels of other ranks than those that `channel` connects; where it has none, those that are not `slow`."""
    sound = [c for c in ends if c not in slow and set(ends[c]) != set(ends[channel])]
    return _apart(ends, channel) or (sound if slow else [])


def _apart(ends: Ends, channel: int) -> list[int]:
    return [c for c in ends if not set(ends[c]) & set(ends[channel])] if ends else []
