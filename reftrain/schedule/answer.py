"""What `reftrain schedule` answers about a table: times, bubbles, memory. No drawing here.

An asynchronous schedule is never flushed, so its bubbles and memory are those of the steady state: they are
taken from the same schedule laid out over more steps, `steady_steps`, while the table itself stays as asked.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from reftrain.schedule.actions import Schedule
from reftrain.schedule.check import check
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import generate
from reftrain.schedule.live import Live, live
from reftrain.schedule.request import Request
from reftrain.schedule.timing import Timing, replay

SCHEMA = "reftrain.schedule/1"


@dataclass(frozen=True)
class Answer:
    """A table with its replay. `ratios` is the replay that bubbles are taken from, `held` what ranks hold."""

    schedule: Schedule
    costs: Costs
    timing: Timing
    ratios: Timing
    held: tuple[Live, ...]

    def document(self, micro_batches: int) -> dict[str, object]:
        """Contents of `reftrain.schedule/1`; `micro_batches` are those of one step."""
        schedule = self.schedule
        return {
            "schema": SCHEMA,
            "name": schedule.name,
            "stages": schedule.ranks,
            "virtual_stages": schedule.stages,
            "micro_batches": micro_batches,
            "consecutive": schedule.consecutive,
            "replicas": schedule.replicas,
            "synchronous": schedule.synchronous,
            "makespan": number(self.timing.makespan),
            "bubble_ratio": number(self.ratios.bubble_ratio),
            "bubble_over_compute": number(self.ratios.bubble_over_compute),
            "steady_state": not schedule.synchronous,
            "weights_per_rank": [h.weights for h in self.held],
            "peak_activations_per_rank": [h.activations for h in self.held],
            "peak_inputs_per_rank": [h.inputs for h in self.held],
            "placement": [list(p) for p in schedule.placements],
            "actions": [[str(a) for a in actions] for actions in schedule.actions],
        }


def number(value: Fraction) -> int | float:
    """Return a fraction as the JSON number that says it best."""
    return value.numerator if value.denominator == 1 else float(value)


def answer(schedule: Schedule, costs: Costs, request: Request | None = None) -> Answer:
    """Check and replay a table; `request` is what it was generated from, None for one that was read.

    Raises `ScheduleError` when the table cannot run.
    """
    check(schedule)
    timing = replay(schedule, costs, steady=not schedule.synchronous)
    steady, ratios = schedule, timing
    if request is not None and not schedule.synchronous:
        steady = generate(replace(request, steps=steady_steps(request)))
        ratios = replay(steady, costs, steady=True)
    return Answer(schedule, costs, timing, ratios, tuple(live(steady, r) for r in range(steady.ranks)))


def steady_steps(request: Request) -> int:
    """Steps that leave a steady window of at least 6p micro-batches between start-up and drain."""
    return max(request.steps, 2 + -(-8 * request.ranks // request.micro_batches))
