"""Costs of communication: the places of process groups on nodes, and alpha-beta times of collectives on them.

Sources: message time alpha + bytes · beta, and Rabenseifner's all-reduce, as in "Chimera" (SC'21),
section 3.4; rings in Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH".
"""

import math
from dataclasses import dataclass, field
from typing import Final

from reftrain.config.run import MeshConfig
from reftrain.cost.hardware import Hardware, Link, Operations
from tracekit.axes import AXES

SPANS: Final = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dp",),
    "dp_cp": ("dp", "cp"),
    "ep": ("dp",),
    "world": AXES,
}
"""Axes along which the members of each kind of process group differ."""


@dataclass(frozen=True)
class AxisLinks:
    """The groups of an axis on the nodes.

    A group has `size` members, `inside` of them in one node. `latency_s` is the time of a step; `bytes_per_s` the rate
    of one member's way through a ring, `message_bytes_per_s` of its way to its neighbour. `operations` has factors by
    which operations take longer than these say.
    """

    size: int
    inside: int
    latency_s: float
    bytes_per_s: float
    message_bytes_per_s: float
    operations: Operations = field(default_factory=Operations)

    @property
    def in_node(self) -> bool:
        """Whether no member of a group is on another node."""
        return self.inside >= self.size


def members_along(mesh: MeshConfig, axis: str, name: str) -> int:
    """Return how many members of a group of `axis` differ along the mesh's axis `name`: of ep, neighbours on dp."""
    if name not in SPANS[axis]:
        return 1
    return mesh.ep if axis == "ep" else int(getattr(mesh, name))


def axis_links(hardware: Hardware, mesh: MeshConfig, axis: str) -> AxisLinks:
    """Return the places of the groups of an axis (tp, cp, pp, dp, dp_cp, ep, world) on nodes filled in rank order.

    A group inside a node uses the node's links. One that spans nodes with g members in each uses the
    network ports of all g, up to the node's own links: a ring can enter and leave a node once for each port.
    """
    stride, inside, size = 1, 1, 1
    for name in mesh.order:
        members = members_along(mesh, axis, name)
        size *= members
        inside *= max(min(members, hardware.node_size // stride), 1)
        stride *= int(getattr(mesh, name))
    link: Link = hardware.node if inside >= size else hardware.network
    rate = link.bytes_per_s
    if inside < size:
        rate = min(hardware.node.bytes_per_s, inside * link.bytes_per_s)
    return AxisLinks(size, inside, link.latency_s, rate, link.bytes_per_s, hardware.operations)


def collective_seconds(links: AxisLinks, op: str, nbytes: float) -> float:
    """Return the seconds of a collective with a larger buffer of `nbytes`: the gathered tensor or a reduction's input.

    Rings for all_gather, reduce_scatter, all_to_all and broadcast; all_reduce is the faster of a ring and
    Rabenseifner's algorithm. Raises `ValueError` for an operation that has no cost here.
    """
    n = links.size
    if n <= 1:
        return 0.0
    seconds = nbytes / links.bytes_per_s
    if op == "all_reduce":
        steps = min(2 * (n - 1), 2 * math.ceil(math.log2(n)))
        return links.operations.all_reduce * (steps * links.latency_s + 2 * (n - 1) / n * seconds)
    if op == "barrier":
        return 2 * math.ceil(math.log2(n)) * links.latency_s
    if op in {"all_gather", "reduce_scatter", "all_to_all", "broadcast"}:
        longer: float = getattr(links.operations, op, 1.0)
        return longer * ((n - 1) * links.latency_s + (n - 1) / n * seconds)
    raise ValueError(f"collective {op!r} has no cost")


def message_seconds(links: AxisLinks, nbytes: float) -> float:
    """Return the seconds of a message between neighbours of an axis: alpha + bytes · beta, one port's."""
    if links.size <= 1:
        return 0.0
    return links.operations.message * (links.latency_s + nbytes / links.message_bytes_per_s)
