"""Which transfers a transfer is compared with: those of the same message, on links that do not share its fault.

An all-to-all of uneven size takes the time of the member with most elements. In a short pipeline most links touch one
of the two ranks of a slow link: where all links of a rank are slow, the median link is slow as well. The same holds for
nodes that each run a stage, because all links of a node share its network card.

Transfers that no other channel carries have no peer. Compared ones show what a slow link does: it delays each by the
same time, or takes the same share longer for each. Whichever varies less between them holds for the others.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tracekit.expected.nodes import Nodes, Reach, reach
from tracekit.expected.sound_transfers import slowest_ns
from tracekit.matching.channels import Channel
from tracekit.matching.clock import aligned
from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.thresholds.slowrank import FEW_LINKS, MAJORITY, MINOR
from tracekit.thresholds.tables import TAIL_NS
from tracekit.timing.measured import Measured
from tracekit.timing.waits import left_before
from tracekit.units import F64, Mask


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


def comparable(
    run: Measured, message: list[str], nodes: Nodes, *, bounded: bool = False
) -> list[dict[int, list[int]]]:
    """Return channel → instances of one `message` (by instance), for each set of channels that can be compared.

    `nodes` gives the node of each rank; where it is empty, channels of any reach are compared. With `bounded`, the only
    channel that was recorded whole is compared with others as well, whose recorded members bound the transfer: wherever
    their members are, if its own are inside a node.
    """
    whole = families(run, message, nodes, run.waits.complete)
    if bounded:
        partly = families(run, message, {}, ~run.waits.complete)
        for (shape, near, p2p, token), channels in whole.items():
            if not p2p and len(channels) == 1 and (near is None or len(near) == 1):
                others = partly.get((shape, None, p2p, token), {})
                channels.update({c: found for c, found in others.items() if c not in channels})
    return [channels for channels in whole.values() if len(channels) > 1]


def families(
    run: Measured, message: list[str], nodes: Nodes, chosen: Mask
) -> dict[tuple[tuple[object, ...], Reach, bool, str], dict[int, list[int]]]:
    """Return channel → `chosen` instances, by shape and reach of channels, whether they are p2p, and the message."""
    ops, rows = run.ops, run.waits.first_row
    result: dict[tuple[tuple[object, ...], Reach, bool, str], dict[int, list[int]]]
    result = defaultdict(lambda: defaultdict(list))
    usable = np.flatnonzero(chosen & run.waits.timed & run.analysed[rows])
    channels, which = np.unique(ops.channel[rows[usable]], return_inverse=True)
    found = [ops.channels[c] for c in channels.tolist()]
    shapes = [(run.shape_of(c), reach(c, nodes), c.p2p) for c in found]
    for number, at in zip(usable.tolist(), which.tolist(), strict=True):
        if shapes[at][0]:
            result[*shapes[at], message[number]][found[at].number].append(number)
    return result


def _of_unknown_size(run: Measured, tokens: list[str]) -> list[str]:
    """The messages (by instance) with the number of calls of the kind in the group's step where the size is unknown."""
    ops, first = run.ops, run.waits.first_row
    keys = list(zip(*(part[first].tolist() for part in (ops.op, ops.channel, ops.step)), strict=True))
    calls = Counter(keys)
    return [
        f"{token} of {calls[key]}" if token.endswith(UNKNOWN_SIZE) else token
        for token, key in zip(tokens, keys, strict=True)
    ]


Ends = Mapping[int, tuple[object, ...]]
"""The members of each channel, or their nodes."""


def short_pipeline(channels: Sequence[Channel], nodes: Nodes) -> Ends:
    """The ends of `channels` where all carry messages and are few, or connect few pairs of `nodes`; else empty."""
    if not all(c.p2p for c in channels):
        return {}
    ends = {c.number: tuple(nodes.get(m) for m in c.members) for c in channels}
    apart = all(None not in where and len(set(where)) > 1 for where in ends.values())
    apart &= len(set(map(frozenset, ends.values()))) > 1  # of one pair of nodes, each link is by itself
    if apart and len(set(ends.values())) <= FEW_LINKS:
        return ends
    return {c.number: c.members for c in channels} if len(channels) <= FEW_LINKS else {}


def beside(ends: Ends, channel: int, slow: Collection[int]) -> list[int]:
    """The channels that share no end with `channel`; where there are none, the channels that are not `slow`."""
    apart = [c for c in ends if not set(ends[c]) & set(ends[channel])]
    sound = [c for c in ends if c not in slow and set(ends[c]) != set(ends[channel])]
    return apart or (sound if slow else [])


def uncompared_lateness(
    run: Measured,
    slow: Mapping[int, Collection[tuple[float, float]]],
    tested: Mapping[int, Collection[int]],
    late: F64,
    ranks: Collection[int],
    nodes: Nodes,
) -> tuple[F64, F64, F64]:
    """Return the lateness of transfers that were not compared, at least, likely and at most, by instance, ns.

    `slow` holds for each slow channel its transfer and its peers' transfer of each compared message, ns; `tested` the
    compared instances of each channel, and `late` how late these were, ns. A channel without compared instances passes
    the link where it has all `ranks` at the link as members, and is of the kind of a slow channel. Nothing shows its
    least lateness, nor its likely one where the slow channels carry a message that is not late.
    """
    first, channels = run.waits.first_row, run.ops.channels
    usable = run.waits.complete & run.waits.timed & run.analysed[first]
    usable[[number for numbers in tested.values() for number in numbers]] = False
    kinds = {(channels[c].p2p, _leaves_node(reach(channels[c], nodes))) for c in slow}
    alike = [c for c in channels if (c.p2p, _leaves_node(reach(c, nodes))) in kinds]
    passed = [c for c in alike if c.number not in tested and set(ranks) <= set(c.members)]
    channel = run.ops.channel[first]
    proven = usable & np.isin(channel, list(slow))
    open_ = usable & np.isin(channel, [c.number for c in passed])
    spent = np.where(proven | open_, run.waits.delivery, 0).astype(np.float64)
    likely, other = _by_delay_and_share(spent, [pair for pairs in slow.values() for pair in pairs])
    least = np.where(proven, np.minimum(likely, other), 0.0)
    compared = np.array([number for c in slow for number in tested.get(c, ())], np.int64)
    messages = run.ops.token[first[compared]]
    all_late = np.isin(messages, messages[late[compared] > 0]).all()
    return least, likely if all_late else np.where(proven, likely, least), np.maximum(likely, other)


def _by_delay_and_share(spent: F64, compared: Collection[tuple[float, float]]) -> tuple[F64, F64]:
    """Return what of `spent` a slow link takes, as a delay and as a share of each; the better fit first, ns.

    `compared` holds transfers on the slow link with their peers' transfers, ns.
    """
    here, peers = np.array(list(compared), np.float64).T.clip(1.0)
    late = (here - peers).clip(1.0)
    delay = np.minimum(spent, np.exp(np.median(np.log(late))))
    share = spent * float(np.median(late / here))
    steady = np.std(np.log(late)) < np.std(np.log(late / peers))
    return (delay, share) if steady else (share, delay)


def _leaves_node(where: Reach) -> bool | None:
    """Return whether a channel of this reach connects nodes; None where nodes are unknown."""
    return None if where is None else len(where) > 1


# Whether the members of slow transfers are certain, where no recorded argument names them.
#
# A collective of an inferred group that lasts longer than any transfer may wait for a rank that the group lacks: the
# group is inferred from ranks that leave together, and replicas in step leave together as well. Where all ranks were
# recorded on one clock and no other rank leaves together with the members, the group is complete.


def beyond_inferred_group(run: Measured, numbers: Sequence[int]) -> bool:
    """Whether most of the collectives `numbers` may wait for ranks that are not their members.

    That is: their group is inferred, they last longer than on the slowest network, and another rank may leave with
    them.
    """
    ops = run.ops
    beyond = []
    for number, row in zip(numbers, run.waits.first_row[np.array(numbers)].tolist(), strict=True):
        rank = int(ops.rank[row])
        inferred = ops.per_rank[rank].inferred
        guessed = inferred is not None and bool(inferred[row - ops.of(rank).start])
        beyond.append(guessed and float(run.waits.delivery[number]) > slowest_ns(str(ops.token[row])))
    return float(np.mean(beyond)) > MAJORITY and not _leave_alone(run, numbers)


def _leave_alone(run: Measured, numbers: Sequence[int]) -> bool:
    """Whether every other rank was recorded on a common clock, and rarely leaves together with the members.

    Among many ranks some leave at the same moment by chance; a missing member does so most of the time, to within the
    doubt of its clock and its drift.
    """
    ops, clocks = run.ops, run.clocks
    members = ops.channels[int(ops.channel[run.waits.first_row[numbers[0]]])].members
    if run.missing or len({clocks.island[rank] for rank in ops.ranks}) > 1:
        return False
    end = aligned(ops, clocks, ops.end)
    left = end[run.waits.first_row[np.array(numbers)]].astype(np.float64)  # members leave together
    for rank in sorted(set(ops.ranks) - set(members)):
        error = TAIL_NS + clocks.error_ns(rank, members[0], float(np.ptp(left)))
        ends = np.sort(end[ops.of(rank)]).astype(np.float64)
        at = np.searchsorted(ends, left - error)
        together = (at < len(ends)) & (ends[np.minimum(at, len(ends) - 1)] <= left + error)
        if len(ends) and float(together.mean()) > MAJORITY:
            return False
    return True


def is_sure(run: Measured, channel: int, numbers: list[int], *, clockless: bool) -> bool:
    """Whether the slow instances `numbers` belong to `channel` for certain.

    Messages with inferred peers must be slow without any clock (`clockless`), and their sends wait for the receives.
    """
    ends = run.ops.channels[channel]
    if not ends.p2p:
        return not beyond_inferred_group(run, numbers)
    pair = [n for n, c in enumerate(run.ops.channels) if c.p2p and set(c.members) == set(ends.members)]
    if not any(run.ops.channels[n].inferred for n in pair):
        return True  # neither direction was inferred from end times only
    return clockless and left_before(run.ops, run.clocks, pair) <= MINOR
