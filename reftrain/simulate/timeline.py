"""What a simulation shows: step times, where each pipeline rank's time goes, bubble, exposed communication, memory.

The time line has the actions of every pipeline rank with begin and end, and the memory by kind after each;
both of the first data, context and tensor coordinate, which stands for its pipeline rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reftrain.cost.activations import embedding_kept, head_kept, layer_kept
from reftrain.cost.job import Job
from reftrain.cost.memory import MemoryModel
from reftrain.schedule.actions import ENDS_BACKWARD, Action
from reftrain.schedule.actions import Kind as Act
from reftrain.simulate.lane import WAITS
from reftrain.simulate.program import Kind
from reftrain.simulate.simulation import Simulation

EXPOSED = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True)
class StageShare:
    """Mean over a pipeline rank's ranks and all whole steps, ms: computing, and standing still by cause."""

    compute_ms: float
    waits_ms: Mapping[str, float]  # by WAITS


@dataclass(frozen=True)
class Summary:
    """Figures of a simulation over its whole steps.

    `step_ms` is each step's length on the rank that ends last. `bubble_ratio` is time that compute waits for
    the pipeline (a message that has not been sent yet, the end of the step) over step time,
    `bubble_over_compute` the same over compute time. `exposed` are shares of the step for which compute stands
    still for transfers of an axis.
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
        """Share of the step for which compute stands still for transfers and waits, by axis."""
        return {axis: self._share(axis) for axis in EXPOSED}

    @property
    def host_share(self) -> float:
        """Share of the step for which compute waits for the host."""
        return self._share("host")


def summarise(simulation: Simulation) -> Summary:
    """Figures of the whole steps."""
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


def tflops_per_gpu(job: Job, step_ms: float) -> float:
    """Model FLOPs a second and device (PaLM, appendix B: attention in full, recomputation not counted)."""
    model = job.model
    attention = model.dim * model.head_dim * 2 * (model.heads + model.kv_heads)
    matrices = model.layers * (attention + 3 * model.dim * model.ffn_dim) + model.vocab_size * model.dim
    token = 6 * matrices + 12 * model.layers * model.heads * model.head_dim * job.seq_len
    tokens = job.micro_batches * job.micro_batch_size * job.seq_len * job.mesh.dp
    return tokens * token / (step_ms / 1e3) / job.mesh.world_size / 1e12 if step_ms else 0.0


def time_line(simulation: Simulation, job: Job) -> dict[str, object]:
    """Actions and memory of every pipeline rank over time, as the run folder's timeline.json has them."""
    ranks = [_rank_line(simulation, job, stage) for stage in range(simulation.grid.stages)]
    return {
        "schema": "reftrain.timeline/1",
        "unit": "ms",
        "steps_ms": (simulation.step_bounds() / 1e6).round(6).tolist(),
        "ranks": ranks,
    }


def _rank_line(simulation: Simulation, job: Job, stage: int) -> dict[str, object]:
    program, times = simulation.programs[stage], simulation.times[stage]
    count = len(program.ops)
    rank = int(simulation.grid.ranks(stage)[0])
    actions: list[list[object]] = []
    held = _Held(job, stage)
    memory: list[list[float]] = []
    for step in range(simulation.whole_steps):
        for action, first, end in program.actions:
            kernels = [step * count + i for i in range(first, end) if program.ops[i].kind is Kind.COMPUTE]
            if not kernels:
                held.apply(action)
                continue
            begin_ms, end_ms = times.start[kernels[0], 0] / 1e6, times.end[kernels[-1], 0] / 1e6
            actions.append([str(action), round(float(begin_ms), 6), round(float(end_ms), 6)])
            before = held.total
            held.apply(action)
            at = begin_ms if held.total >= before else end_ms
            memory.append([round(float(at), 6), *held.row()])
    return {
        "pipeline_rank": stage,
        "rank": rank,
        "actions": actions,
        "memory": {"kinds": held.kinds, "rows": memory},
    }


class _Held:
    """Bytes that a pipeline rank holds, from the schedule's live set: constant kinds, and activations."""

    kinds = ("weights", "gradients", "optimizer", "activations")

    def __init__(self, job: Job, rank: int) -> None:
        largest = MemoryModel(job).rank(rank).largest
        self._constant = [round(largest.weights), round(largest.gradients), round(largest.optimizer)]
        self._stage_bytes = [self._activations(job, stage) for stage in range(len(job.stages))]
        self._live: dict[tuple[int, int, int], int] = {}
        self.total = 0

    @staticmethod
    def _activations(job: Job, stage: int) -> int:
        shape = job.stages[stage]
        bytes_of = shape.layers * layer_kept(job).total
        bytes_of += embedding_kept(job).total if shape.first else 0.0
        return round(bytes_of + (head_kept(job).total if shape.last else 0.0))

    def apply(self, action: Action) -> None:
        """Take or give back what an action takes or gives."""
        key = action.replica, action.stage, action.micro_batch
        if action.kind in {Act.FORWARD, Act.RECOMPUTE}:
            self._live[key] = self._stage_bytes[action.stage]
        elif action.kind in ENDS_BACKWARD or action.kind is Act.FREE:
            self._live.pop(key, None)
        self.total = sum(self._live.values())

    def row(self) -> list[int]:
        """Bytes by kind."""
        return [*self._constant, self.total]
