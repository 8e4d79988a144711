"""All that passes a slow link: also transfers that no other channel carries, so that no peer shows their usual time.

Compared transfers prove that the link is slow and show what it does: it delays each of them by the same time, or takes
the same share longer for each. Whichever varies less between them holds for the others, and the two bound the price.
"""

from collections.abc import Collection, Mapping

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.nodes import Reach, reach
from tracekit.units import F64


def uncompared_lateness(
    case: Case,
    slow: Mapping[int, Collection[tuple[float, float]]],
    tested: Mapping[int, Collection[int]],
    ranks: Collection[int],
    nodes: Mapping[int, str | int],
) -> tuple[F64, F64, F64]:
    """Return the lateness of transfers that were not compared, at least, likely and at most, by instance, ns.

    `slow` holds for each slow channel its transfer and its peers' transfer of each compared message, ns; `tested` the
    compared instances of each channel. A channel of which nothing was compared passes the link where it has all
    `ranks` at the link as members, and is of the kind of a slow channel: it proves nothing, so its least lateness is 0.
    """
    first, channels = case.waits.first_row, case.ops.channels
    usable = case.waits.complete & case.waits.timed & case.analysed[first]
    usable[[number for numbers in tested.values() for number in numbers]] = False
    kinds = {(channels[c].p2p, _leaves_node(reach(channels[c], nodes))) for c in slow}
    passed = [
        c.number
        for c in channels
        if c.number not in tested
        and set(ranks) <= set(c.members)
        and (c.p2p, _leaves_node(reach(c, nodes))) in kinds
    ]
    channel = case.ops.channel[first]
    proven = usable & np.isin(channel, list(slow))
    spent = np.where(proven | (usable & np.isin(channel, passed)), case.waits.delivery, 0).astype(np.float64)
    likely, other = _by_delay_and_share(spent, [pair for pairs in slow.values() for pair in pairs])
    least = np.where(proven, np.minimum(likely, other), 0.0)
    return least, likely, np.maximum(likely, other)


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
