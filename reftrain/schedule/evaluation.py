"""Times, bubbles and memory of a table: the answer of `reftrain schedule`. No drawing here.

An asynchronous schedule is never flushed, so its bubbles and memory are those of the steady state. They are
taken from the same schedule laid out over more steps (`steady_steps`); the table itself stays as it was asked for.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from reftrain.schedule.actions import Schedule
from reftrain.schedule.check import check
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import generate
from reftrain.schedule.memory_peaks import MemoryPeaks, memory_peaks
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.timing import Timing, time_schedule

if TYPE_CHECKING:
    from reftrain.documents import ScheduleDocument


@dataclass(frozen=True)
class Evaluation:
    """A table with its times and memory.

    `timing` has the times of the table itself, `steady` those from which bubbles are taken (the same object for a
    synchronous table). `peaks` is the memory of each rank.
    """

    schedule: Schedule
    costs: Costs
    timing: Timing
    steady: Timing
    peaks: tuple[MemoryPeaks, ...]

    def document(self, micro_batches: int) -> "ScheduleDocument":
        """Return the contents of `reftrain.schedule/1`; `micro_batches` are those of one step.

        Times are in the unit of the costs; ratios are fractions of 1; memory is counted as `MemoryPeaks` does.
        """
        schedule = self.schedule
        return {
            "schema": "reftrain.schedule/1",
            "name": schedule.name,
            "stages": schedule.ranks,
            "virtual_stages": schedule.stages,
            "micro_batches": micro_batches,
            "consecutive": schedule.consecutive,
            "replicas": schedule.replicas,
            "synchronous": schedule.synchronous,
            "makespan": number(self.timing.makespan),
            "bubble_ratio": number(self.steady.bubble_ratio),
            "bubble_over_compute": number(self.steady.bubble_over_compute),
            "steady_state": not schedule.synchronous,
            "weights_per_rank": [p.weights for p in self.peaks],
            "peak_activations_per_rank": [p.activations for p in self.peaks],
            "peak_inputs_per_rank": [p.inputs for p in self.peaks],
            "placement": [list(p) for p in schedule.placements],
            "actions": [[str(a) for a in actions] for actions in schedule.actions],
        }


def number(value: Fraction) -> int | float:
    """Return a fraction as a JSON number: an integer where it is one, else the nearest float."""
    return value.numerator if value.denominator == 1 else float(value)


def evaluate(schedule: Schedule, costs: Costs, spec: ScheduleSpec | None = None) -> Evaluation:
    """Return times, bubbles and memory of a table; `spec` made it, or is None for a table that was read.

    Raises `ScheduleError` when the table cannot run or the costs do not fit its stages.
    """
    check(schedule)
    timing = time_schedule(schedule, costs, steady=not schedule.synchronous)
    longer, steady = schedule, timing
    if spec is not None and not schedule.synchronous:
        longer = generate(replace(spec, steps=steady_steps(spec)))
        steady = time_schedule(longer, costs, steady=True)
    peaks = tuple(memory_peaks(longer, rank) for rank in range(longer.ranks))
    return Evaluation(schedule, costs, timing, steady, peaks)


def steady_steps(spec: ScheduleSpec) -> int:
    """Return the steps that leave a steady window of at least 6p micro-batches between start-up and drain."""
    return max(spec.steps, 2 + -(-8 * spec.ranks // spec.micro_batches))
