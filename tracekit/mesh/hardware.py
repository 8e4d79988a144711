"""What a transfer takes on described hardware, and the peak of devices by their names.

The numbers of transfers are those of a hardware file of `reftrain plan`; the time of a call is alpha + bytes · beta, as
there: rings in Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH", and Rabenseifner's
all-reduce. Traces name their devices, so that a roofline needs no option.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


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
        steps = members - 1
        if op == "all_reduce":
            steps = min(2 * steps, 2 * math.ceil(math.log2(members)))
        name = "message" if op in {"send", "recv"} else op
        return self.factors.get(name, 1.0) * (max(steps, 1) * way.latency_ns + ring_bytes / rate)


_PEAK_TFLOPS: Final[Mapping[str, float]] = {
    "P100 SXM2": 21.2,
    "P100": 18.7,
    "V100 SXM2": 125.0,
    "V100 PCIE": 112.0,
    "T4": 65.0,
    "A30": 165.0,
    "A40": 149.7,
    "A100": 312.0,
    "A800": 312.0,
    "L4": 121.0,
    "L40S": 362.0,
    "H20": 148.0,
    "H100 PCIE": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800 PCIE": 756.0,
    "H800": 989.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "GH200": 989.0,
    "B200": 2250.0,
    "GB200": 2500.0,
    "MI210": 181.0,
    "MI250": 181.0,
    "MI250X": 191.5,
    "MI300X": 1307.0,
    "MI325X": 1307.0,
}
"""Dense 16-bit TFLOP/s by the makers' data sheets, by words of a device's name; the first whose words the name holds.
Without a form factor it is that of SXM. Of MI250 and MI250X a device is one of two dies."""
_PART: Final = "MIG"
"""The word that names a part of a device, which has only a part of the peak."""


def peak_tflops(name: str) -> float | None:
    """Return the dense 16-bit peak of the device of this name, TFLOP/s; None where it is not known."""
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    if _PART in words:
        return None
    return next((peak for known, peak in _PEAK_TFLOPS.items() if words.issuperset(known.split())), None)
