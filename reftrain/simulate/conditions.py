"""Conditions under which the engine runs a job: costs of the host, planted disturbances, random deviations."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reftrain.faults.pace import Pace
from reftrain.simulate.grid import F64

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HostCosts:
    """Host times, ns: to launch a kernel, to call a collective, and from a launch to the kernel's start."""

    launch: float = 0.0
    collective: float = 0.0
    latency: float = 0.0


@dataclass
class Conditions:
    """Disturbances of one pipeline rank in one step; arrays are (width,), and None where there is no disturbance.

    `stops`, `skips` and `breaks` hold (place, operation). At a stop the host issues neither the operation nor any
    later one; a skip leaves the call out; a break makes the call contradict the others, so that it never ends.
    """

    factor: F64 | None = None  # of compute time
    paces: list[tuple[Pace, F64]] = field(default_factory=list)  # 1 at the ranks that a pace holds for
    attention: dict[int, F64] = field(default_factory=dict)  # by micro-batch: factor of attention's time
    launch: F64 | None = None  # host ns added to every kernel launch
    pauses: list[tuple[F64, int]] = field(default_factory=list)  # (ns, once every so many segments)
    retries: list[tuple[F64, int]] = field(default_factory=list)  # the same, of the allocator
    turns: list[tuple[float, F64]] = field(
        default_factory=list
    )  # (ns that the host runs, ns that it waits then)
    saves: F64 | None = None  # host ns at the end of the step
    evaluations: F64 | None = None  # device ns at the end of the step
    late: F64 | None = None  # host ns added to loading
    link: F64 | None = None  # ns added to every transfer that the rank takes part in
    network: F64 | None = None  # ns added to every transfer to other hosts that the rank takes part in
    sends: F64 | None = None  # ns added to every message that the rank sends to another host
    copies: F64 | None = None  # ns added to every copy between device and host
    stops: list[tuple[int, int]] = field(default_factory=list)
    skips: list[tuple[int, int]] = field(default_factory=list)
    breaks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def delays(self) -> bool:
        """Whether any transfer of these ranks is delayed."""
        return any(ns is not None for ns in (self.link, self.network, self.sends))


class Noise(Protocol):
    """Random deviations, which do not depend on planted faults: factors of kernel, transfer and loading times."""

    def compute(self, stage: int, step: int, count: int) -> F32 | None:
        """Return factors of `count` kernels, (count, width)."""

    def transfer(self, stage: int, step: int, count: int) -> F32 | None:
        """Return factors of `count` transfers, (count, width)."""

    def tail(self, stage: int, step: int) -> F32 | None:
        """Return the time until each rank has left a collective, ns; (tails, width)."""

    def load(self, stage: int, step: int) -> F64 | None:
        """Return factors of loading, (width,)."""
