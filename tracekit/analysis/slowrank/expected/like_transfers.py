"""Which transfers a transfer is compared with: those of the same message, on links that do not share its fault.

An all-to-all of uneven size takes the time of the member with most elements. In a short pipeline most links touch one
of the two ranks of a slow link: where all links of a rank are slow, the median link is slow as well. The same holds for
nodes that each run a stage, because all links of a node share its network card.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tracekit.matching.channels import Channel
from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.thresholds.slowrank import FEW_LINKS
from tracekit.timing.measured import Measured
from tracekit.units import F64


def message_of(run: Measured) -> tuple[list[str], F64]:
    """(the message of each instance, its size over the usual one), by instance.

    Instances of the same message are comparable. All-to-alls of one type are one message whatever their known size; for
    other operations the size is part of the message, and the ratio is 1.0. Where the size is unknown, groups with
    equally many calls of the kind in a step carry the same message.
    """
    ops, first = run.ops, run.waits.first_row
    message = _of_unknown_size(run, ops.token[first].astype(str).tolist())
    scale = np.ones(len(first))
    dealt = np.flatnonzero(ops.op[first] == "all_to_all")
    if not len(dealt):
        return message, scale
    elements = np.concatenate([ops.per_rank[rank].nelems for rank in ops.ranks])
    most = np.zeros(len(first), np.int64)
    rows = np.flatnonzero(ops.instance >= 0)
    np.maximum.at(most, ops.instance[rows], elements[rows])
    dealt = dealt[most[dealt] > 0]
    for number in dealt.tolist():
        message[number] = message[number].rpartition("/")[0]
    for kind in sorted({message[number] for number in dealt.tolist()}):
        mine = np.array([number for number in dealt.tolist() if message[number] == kind])
        scale[mine] = most[mine] / np.median(most[mine])
    return message, scale


def _of_unknown_size(run: Measured, told: list[str]) -> list[str]:
    """The messages (by instance) with the number of calls of the kind in the group's step where the size is unknown."""
    ops, first = run.ops, run.waits.first_row
    keys = list(
        zip(ops.op[first].tolist(), ops.channel[first].tolist(), ops.step[first].tolist(), strict=True)
    )
    calls = Counter(keys)
    return [
        f"{token} of {calls[key]}" if token.endswith(UNKNOWN_SIZE) else token
        for token, key in zip(told, keys, strict=True)
    ]


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
