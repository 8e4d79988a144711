"""The time line of a simulation: actions of every pipeline rank with begin and end, and memory by kind after each.

Both are those of the first data, context and tensor coordinate, which represents its pipeline rank.
"""

from reftrain.cost.activations import embedding_kept, head_kept, layer_kept
from reftrain.cost.job import Job
from reftrain.cost.memory import MemoryModel
from reftrain.schedule.actions import ENDS_BACKWARD, Action
from reftrain.schedule.actions import Kind as Act
from reftrain.simulate.program import Kind
from reftrain.simulate.simulation import Simulation


def time_line(simulation: Simulation, job: Job) -> dict[str, object]:
    """Return the contents of timeline.json: actions and memory of every pipeline rank over time."""
    ranks = [_rank_line(simulation, job, stage) for stage in range(simulation.grid.stages)]
    return {
        "schema": "reftrain.timeline/1",
        "unit": "ms",
        "steps_ms": (simulation.step_bounds() / 1e6).round(6).tolist(),
        "ranks": ranks,
    }


def _rank_line(simulation: Simulation, job: Job, stage: int) -> dict[str, object]:
    """Return the row of one pipeline rank: times in ms, memory in bytes."""
    program, times = simulation.programs[stage], simulation.times[stage]
    count = len(program.ops)
    rank = int(simulation.grid.ranks(stage)[0])
    actions: list[list[object]] = []
    held = _HeldBytes(job, stage)
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


class _HeldBytes:
    """Bytes that a pipeline rank holds: constant kinds, and the activations of the micro-batches in flight."""

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
        bytes_of = sum(n * layer_kept(job, kind=kind).total for kind, n in shape.counts.items())
        bytes_of += embedding_kept(job).total if shape.first else 0.0
        return round(bytes_of + (head_kept(job).total if shape.last else 0.0))

    def apply(self, action: Action) -> None:
        """Add or take off the activations that an action keeps or gives back."""
        key = action.replica, action.stage, action.micro_batch
        if action.kind in {Act.FORWARD, Act.RECOMPUTE}:
            self._live[key] = self._stage_bytes[action.stage]
        elif action.kind in ENDS_BACKWARD or action.kind is Act.FREE:
            self._live.pop(key, None)
        self.total = sum(self._live.values())

    def row(self) -> list[int]:
        """Return the bytes by kind."""
        return [*self._constant, self.total]
