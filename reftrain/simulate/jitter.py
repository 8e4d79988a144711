"""Random deviations of a simulated job: kernels, transfers, ranks, paths, fetches, clocks.

Everything is drawn from the seed, the step and the pipeline rank, never in the order of events, so that a
planted fault leaves all other times as they were and the same seed gives the same run. Sizes are those of
healthy clusters: kernels of one kind differ by a few percent, GPUs of one type by a few tenths, all GPUs
together by about one from step to step (power and heat), clocks of hosts by milliseconds.
"""

from dataclasses import dataclass

import numpy as np

from reftrain.simulate.conditions import F32
from reftrain.simulate.grid import F64, Grid

_KERNEL, _TRANSFER, _TAIL, _LOAD, _COMMON, _SPEED, _PATH, _CLOCK = range(8)


@dataclass(frozen=True)
class Jitter:
    """Draws the deviations of one job; `scale` multiplies all of them (1: a healthy cluster's).

    `first` is added to the number of each step: windows of one job share its devices and paths, and no step.
    Relative standard deviations but for `leave_ns`, the mean time until a rank has left a collective.
    """

    seed: int
    grid: Grid
    scale: float = 1.0
    kernel_sigma: float = 0.015
    transfer_sigma: float = 0.03
    speed_sigma: float = 0.003
    path_sigma: float = 0.03
    common_sigma: float = 0.006
    fetch_sigma: float = 0.10
    leave_ns: float = 1_500.0
    first: int = 0

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def _factors(self, rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> F32:
        """Log-normal factors of mean one."""
        sigma *= self.scale
        out = rng.standard_normal(shape, dtype=np.float32)
        out *= np.float32(sigma)
        out -= np.float32(sigma * sigma / 2)
        return np.exp(out, out=out)

    def compute(self, stage: int, step: int, count: int) -> F32:
        """Return factors of `count` kernels, (count, width): its own, its GPU's and the step's."""
        width = self.grid.width
        out = self._factors(self._rng(_KERNEL, self.first + step, stage), (count, width), self.kernel_sigma)
        speed = self._factors(self._rng(_SPEED, stage), (width,), self.speed_sigma)
        common = self._factors(self._rng(_COMMON, self.first + step), (1,), self.common_sigma)
        out *= (
            np.clip(speed, 1 - 2 * self.speed_sigma * self.scale, 1 + 2 * self.speed_sigma * self.scale)
            * common
        )
        return out

    def transfer(self, stage: int, step: int, count: int) -> F32:
        """Return factors of `count` transfers, (count, width)."""
        rng = self._rng(_TRANSFER, self.first + step, stage)
        out = self._factors(rng, (count, self.grid.width), self.transfer_sigma)
        out *= self._factors(self._rng(_PATH, stage), (self.grid.width,), self.path_sigma)
        return out

    def tail(self, stage: int, step: int) -> F32:
        """Return the time until each rank has left a collective, ns; (251, width)."""
        rng = self._rng(_TAIL, self.first + step, stage)
        out = rng.standard_exponential((251, self.grid.width), dtype=np.float32)
        out *= np.float32(self.leave_ns * self.scale)
        return out

    def load(self, stage: int, step: int) -> F64:
        """Return factors of loading, (width,)."""
        drawn = self._factors(
            self._rng(_LOAD, self.first + step, stage), (self.grid.width,), self.fetch_sigma
        )
        return np.asarray(drawn, np.float64)


@dataclass(frozen=True)
class Clocks:
    """Deviations of the clocks of the hosts: `offset` ns and relative `drift`, by node."""

    offset: F64
    drift: F64

    def stamp(self, node: int, true: F64) -> F64:
        """Return the times that a host's clock shows, ns since the job's true begin."""
        return np.asarray(true * (1.0 + self.drift[node]) + self.offset[node])


def draw_clocks(seed: int, nodes: int, spread_ns: float = 2e6, drift: float = 2e-6) -> Clocks:
    """Draw the clocks of `nodes` hosts, kept by NTP: off by up to `spread_ns`, drifting by up to `drift`."""
    rng = np.random.default_rng([seed, _CLOCK])
    return Clocks(rng.uniform(-spread_ns, spread_ns, nodes), rng.uniform(-drift, drift, nodes))
