"""A finished simulation, from which writers and summaries start."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.grid import F64, Grid
from reftrain.simulate.jitter import Clocks
from reftrain.simulate.pipeline_rank import StageTimes
from reftrain.simulate.program import Program


@dataclass(frozen=True)
class Simulation:
    """Programs and times of all pipeline ranks, and how the job lies on hosts.

    `node_size` is ranks a host; `begin_ns` the wall time of the job's true begin, ns since the epoch.
    """

    grid: Grid
    programs: Sequence[Program]
    times: Sequence[StageTimes]
    steps: int
    host: HostCosts
    clocks: Clocks
    node_size: int
    begin_ns: int
    left_out: frozenset[tuple[int, int]] = frozenset()  # (rank, row of its times): calls never made
    resized: frozenset[tuple[int, int]] = frozenset()  # calls made with another size than the peers'
    first: int = 0  # number of the first step among those of all windows

    @property
    def nodes(self) -> int:
        """Hosts of the job."""
        return math.ceil(self.grid.world / self.node_size)

    def node(self, rank: int) -> int:
        """Host of a rank."""
        return rank // self.node_size

    def host_name(self, rank: int) -> str:
        """Name of a rank's host."""
        return f"node{self.node(rank)}"

    @property
    def whole_steps(self) -> int:
        """Steps that every rank finished: all, or those before a hang."""
        done = [np.isfinite(t.bounds[1:]).all(axis=1) for t in self.times]
        return int(np.logical_and.reduce(done).cumprod().sum())

    def step_bounds(self) -> F64:
        """Return begin and ends of the whole steps on the rank that ends last; ns, (whole steps + 1,)."""
        bounds = np.max([t.bounds.max(axis=1) for t in self.times], axis=0)
        return np.asarray(bounds[: self.whole_steps + 1], np.float64)
