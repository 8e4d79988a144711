"""Figures of a simulation: step times, where the time of each pipeline rank goes, bubble, exposed communication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reftrain.cost.job import Job
from reftrain.model.flops import flops_per_sequence
from reftrain.simulate.pipeline_rank import WAITS
from reftrain.simulate.program import Kind
from reftrain.simulate.simulation import Simulation
from tracekit.axes import AXES


@dataclass(frozen=True)
class StageShare:
    """Mean over a pipeline rank's ranks and all whole steps, ms: compute time, and idle time by cause."""

    compute_ms: float
    waits_ms: Mapping[str, float]  # by WAITS


@dataclass(frozen=True)
class Summary:
    """Figures of a simulation over its whole steps.

    `step_ms` is each step's length on the rank that ends last. `bubble_ratio` is time that compute waits for
    the pipeline (a message that has not been sent yet, the end of the step) over step time,
    `bubble_over_compute` the same over compute time. `exposed` are shares of the step during which compute is
    idle for transfers of an axis.
    """

    step_ms: tuple[float, ...]
    stages: tuple[StageShare, ...]

    @property
    def mean_step_ms(self) -> float:
        """Mean length of a step; 0 where none is whole."""
        return float(np.mean(self.step_ms)) if self.step_ms else 0.0

    def _share(self, *causes: str) -> float:
        if not self.step_ms:
            return 0.0
        mean = np.mean([sum(s.waits_ms[c] for c in causes) for s in self.stages])
        return float(mean) / self.mean_step_ms

    @property
    def bubble_ratio(self) -> float:
        """Waiting for the pipeline over step time."""
        return self._share("bubble", "world")

    @property
    def bubble_over_compute(self) -> float:
        """Waiting for the pipeline over compute time."""
        compute = float(np.mean([s.compute_ms for s in self.stages])) if self.stages else 0.0
        return self.bubble_ratio * self.mean_step_ms / compute if compute else 0.0

    @property
    def exposed(self) -> dict[str, float]:
        """Return the share of the step during which compute is idle for transfers and waits, by axis."""
        return {axis: self._share(axis) for axis in AXES}

    @property
    def host_share(self) -> float:
        """Share of the step for which compute waits for the host."""
        return self._share("host")


def summarise(simulation: Simulation) -> Summary:
    """Return the figures of the whole steps."""
    steps = simulation.whole_steps
    if not steps:
        return Summary((), ())
    shares = []
    for program, times in zip(simulation.programs, simulation.times, strict=True):
        kernels = [i for i, op in enumerate(program.ops) if op.kind is Kind.COMPUTE]
        rows = np.array([s * len(program.ops) + i for s in range(steps) for i in kernels], np.int64)
        compute = float((times.end[rows] - times.start[rows]).mean(axis=1).sum()) / steps
        waits = {name: float(times.waits[name][:steps].mean()) / 1e6 for name in WAITS}
        shares.append(StageShare(compute / 1e6, waits))
    return Summary(tuple((np.diff(simulation.step_bounds()) / 1e6).tolist()), tuple(shares))


def joined(summaries: Sequence[Summary]) -> Summary:
    """Return the summaries of windows of one job as one: all their steps, and means of the pipeline ranks' figures."""
    stages = [
        StageShare(
            float(np.mean([s.compute_ms for s in shares])),
            {name: float(np.mean([s.waits_ms[name] for s in shares])) for name in WAITS},
        )
        for shares in zip(*(s.stages for s in summaries), strict=True)
    ]
    return Summary(tuple(ms for s in summaries for ms in s.step_ms), tuple(stages))


def tflops_per_gpu(job: Job, step_ms: float) -> float:
    """Return model TFLOP/s a device (PaLM, appendix B: attention in full, recomputation not counted)."""
    sequences = job.micro_batches * job.micro_batch_size * job.mesh.dp
    work = sequences * flops_per_sequence(job.model, job.encoder, job.seq_len)
    return work / (step_ms / 1e3) / job.mesh.world_size / 1e12 if step_ms else 0.0
