"""What a transfer takes on described hardware: latency and bandwidth inside a node and between nodes.

The numbers are those of a hardware file of `reftrain plan`; the time of a call is alpha + bytes · beta, as there: rings
in Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH", and Rabenseifner's all-reduce.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Way:
    """One device's way to others, one direction: latency of a step in ns, bandwidth of large transfers in GB/s."""

    latency_ns: float
    gb_s: float


@dataclass(frozen=True)
class Hardware:
    """The ways of a device in a cluster of equal nodes.

    `factors` holds by operation (message, all_gather, …) how many times as long it takes as latency and bandwidth say.
    """

    name: str
    node: Way
    network: Way
    factors: Mapping[str, float] = field(default_factory=dict)

    def transfer_ns(self, op: str, ring_bytes: float, members: int, inside: int) -> float:
        """Return the time of a call in which each of `members` sends `ring_bytes` in a ring, ns.

        `inside` of the members are on one node at least: a ring passes between nodes by all their ports, up to the rate
        of the node's own links.
        """
        way, rate = self.node, self.node.gb_s
        if inside < members:
            way, rate = self.network, min(self.node.gb_s, max(inside, 1) * self.network.gb_s)
        steps = (
            members - 1 if op != "all_reduce" else min(2 * (members - 1), 2 * math.ceil(math.log2(members)))
        )
        name = "message" if op in {"send", "recv"} else op
        return self.factors.get(name, 1.0) * (max(steps, 1) * way.latency_ns + ring_bytes / rate)
