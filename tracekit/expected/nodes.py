"""The nodes of ranks: a link between nodes is slower by design than one inside a node, within bounds."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from tracekit.matching.channels import Channel
from tracekit.text import plain
from tracekit.timing.measured import Measured

LONE_LINK: Final = "it alone connects two nodes along its axis, and links inside a node are faster by design"
UNPLACED: Final = (
    "all links between these stages do, and the traces do not name the nodes of the ranks: these may be the only "
    "links between nodes"
)

NAME_NODES: Final = (
    "record with torch.profiler.tensorboard_trace_handler, which writes the host into the names of its files"
)

Nodes = Mapping[int, str | int]
"""The node of each rank, as far as known."""

Reach = tuple[int, ...] | None
"""The numbers of a channel's members on each of its nodes, largest first; None where the nodes are unknown."""


def nodes_of(run: Measured) -> Nodes:
    """The node of each rank, as far as known: as the user's file says, by the hosts that traces name, else by devices.

    The number of its device counts where each process has a host of its own name, as containers have.
    """
    if run.run.places:
        return {r.rank: r.host for r in run.run.ranks if r.host} | {
            rank: place.host for rank, place in run.run.places.items() if rank in run.mesh.coordinates
        }
    hosts = {r.rank: r.host for r in run.run.ranks if r.host}
    shared = len(set(hosts.values())) < len(hosts) == len(run.ops.ranks)  # else containers, each with a name
    if shared and len(set(hosts.values())) > 1:
        return hosts
    device = {rank: run.ops.per_rank[rank].device for rank in run.ops.ranks}
    each = 1 + max(device.values(), default=-1)
    if each > 1 and all(rank % each == number for rank, number in device.items()):  # as launchers number them
        return {rank: rank // each for rank in run.mesh.coordinates} or (hosts if shared else {})
    return hosts if shared else {}


def nodes_with_unseen(run: Measured) -> Nodes:
    """`nodes_of` with the ranks without a trace that are between two ranks of one node.

    Launchers number ranks node after node; where the ranks of two nodes are mixed, nothing is added.
    """
    nodes = nodes_of(run)
    ranks: dict[str | int, list[int]] = defaultdict(list)
    for rank in sorted(nodes):
        ranks[nodes[rank]].append(rank)
    if any(nodes.get(r, node) != node for node, of in ranks.items() for r in range(of[0], of[-1])):
        return nodes
    return {r: node for node, of in ranks.items() for r in range(of[0], of[-1] + 1)}


def reach(channel: Channel, nodes: Nodes) -> Reach:
    """The numbers of members of `channel` on each of its nodes, largest first; None where a node is unknown."""
    where = [nodes.get(member) for member in channel.members]
    return None if None in where else tuple(sorted(Counter(where).values(), reverse=True))


def whole_part(run: Measured, ranks: Sequence[int]) -> str:
    """Return in words the host, switch or rail that holds several `ranks` and no other one; empty without one."""
    of_hosts, places = nodes_of(run), run.run.places
    parts: dict[str, Nodes] = {
        "host": of_hosts,
        "switch": {rank: place.switch for rank, place in places.items() if place.switch},
        "rail": {rank: place.rail for rank, place in places.items() if place.rail},
    }
    for kind, names in parts.items():
        own = {names.get(rank) for rank in ranks}
        if len(ranks) < 2 or len(own) > 1 or None in own or len(set(names.values())) < 2:
            continue
        (name,) = own
        if {rank for rank, other in names.items() if other == name} == set(ranks):
            by_device = "all ranks of one host, by their devices"
            return f"all ranks of {kind} {plain(name)}" if isinstance(name, str) else by_device
    return ""


def at_the_link(run: Measured, slow: set[int], tested: set[int]) -> tuple[int, ...]:
    """The ranks in most slow channels; only the ranks without a healthy channel if there are such ranks.

    The evidence cannot separate them.
    """
    bad = {r: 0 for c in slow for r in run.ops.channels[c].members}
    sound = dict.fromkeys(bad, 0)
    for c in tested:
        for r in run.ops.channels[c].members:
            if r in bad:
                (bad if c in slow else sound)[r] += 1
    most = max(bad.values())
    worst = [r for r, n in bad.items() if n == most]
    clear = [r for r in worst if not sound[r]] if most > 1 else []
    return tuple(sorted(clear or worst))


def lone_links(run: Measured, nodes: Nodes) -> set[int]:
    """The channels between two ranks on different nodes that are the only such link along their axes."""
    links: dict[tuple[object, ...], dict[frozenset[int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for number in np.unique(run.ops.channel[run.ops.channel >= 0]).tolist():
        channel = run.ops.channels[number]
        if channel.p2p and reach(channel, nodes) == (1, 1):
            links[run.axes_of(channel)][frozenset(channel.members)].append(number)
    alone = (next(iter(found.values())) for found in links.values() if len(found) == 1)
    return {number for numbers in alone for number in numbers}


def on_slow_node(
    run: Measured, slow: Collection[int], tested: Collection[int], nodes: Nodes
) -> tuple[int, ...]:
    """The ranks of the `slow` channels on the one node with only slow links to other nodes, among `tested` channels.

    Empty where there is no such node or several, where fewer than two of its links were tested, or where one rank is in
    all slow channels: it may have a network card of its own.
    """
    links: dict[str | int, dict[int, bool]] = defaultdict(dict)
    for number in sorted(tested):
        where = {nodes[m] for m in run.ops.channels[number].members if m in nodes}
        for node in where if len(where) > 1 else ():
            links[node][number] = number in slow
    members = [set(run.ops.channels[number].members) for number in sorted(slow)]
    cut_off = [n for n, found in links.items() if all(found.values()) and len(found) >= _LINKS_OF_NODE]
    if len(cut_off) != 1 or set.intersection(*members):
        return ()
    return tuple(sorted(r for r in set.union(*members) if nodes.get(r) == cut_off[0]))


_LINKS_OF_NODE: Final = 2
"""The least number of links of a node that must be slow: one alone has two ends, and either may be slow."""


def whole_boundaries(run: Measured, slow: Sequence[int]) -> bool:
    """Whether all compared links between the pipeline stages that the channels `slow` connect are slow.

    Then the boundary of a node may lie between these stages, with a slower network. False for collectives, which do not
    show that.
    """
    channels, first = run.ops.channels, run.waits.first_row
    if not all(channels[c].p2p for c in slow):
        return False
    usable = run.waits.complete & run.waits.timed & run.analysed[first]
    compared = [channels[c] for c in np.unique(run.ops.channel[first[usable]]).tolist()]
    ends = {_stages(run, channels[c]) for c in slow}
    pairs = {frozenset(channels[c].members) for c in slow}
    return all(frozenset(c.members) in pairs for c in compared if c.p2p and _stages(run, c) in ends)


def _stages(run: Measured, channel: Channel) -> frozenset[int]:
    """The pipeline stages that a channel between two ranks connects; none where their places are unknown."""
    return frozenset(run.mesh.stage(m) for m in channel.members if m in run.mesh.coordinates)
