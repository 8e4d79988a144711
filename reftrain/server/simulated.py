"""Steps of data parallelism with and without a parameter server, event by event, on described hardware.

All weights go out of the server's link to one worker after the other, and all gradients come in over it; a ring
spreads the same bytes over all links. Computing is drawn once for all rows, so that they differ by their rule alone.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reftrain.config.fault_spec import FaultSpec
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.plan.projection import project
from reftrain.server.clocks import Clocks
from reftrain.simulate.grid import F64


@dataclass(frozen=True)
class Row:
    """One way to train: mean seconds a step, the share of the workers' time that waits, mean staleness of gradients."""

    name: str
    staleness: int | None
    step_s: float
    waiting: float
    stale: float


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a step: computing without faults, a message with all weights, or gradients, a ring."""

    compute: float
    pull: float
    push: float
    ring: float


def costs_of(job: Job, hardware: Hardware) -> Costs:
    """Return the costs of a purely data-parallel job."""
    alone = project(replace(job, mesh=replace(job.mesh, dp=1)), hardware).step_s
    costs = cost_model_of(job, hardware)
    link = hardware.node if job.mesh.dp + 1 <= hardware.node_size else hardware.network
    parameters = sum(job.stage_parameters(stage) for stage in range(len(job.stages)))
    pull, push = (
        link.latency_s + parameters * width / link.bytes_per_s
        for width in (job.compute_bytes, job.reduce_bytes)
    )
    return Costs(alone, pull, push, costs.collective("dp", "all_reduce", parameters * job.reduce_bytes))


def computing(
    costs: Costs, workers: int, steps: int, faults: Sequence[FaultSpec], jitter: float, seed: int
) -> F64:
    """Return the seconds that each worker computes in each step, (steps, workers); `jitter` of a log-normal factor."""
    rng = np.random.default_rng(seed)
    took = costs.compute * np.exp(jitter * rng.standard_normal((steps, workers)))
    for fault in faults:
        rows = [step for step in range(steps) if fault.active(step)]
        took[rows, (fault.rank or 1) - 1] *= fault.values["factor"]
    return took


def synchronous(costs: Costs, took: F64) -> Row:
    """Return the row of synchronous data parallelism: the slowest worker of each step, then a ring's all-reduce."""
    step = float(took.max(axis=1).mean()) + costs.ring
    return Row("synchronous", None, step, 1 - float(took.mean()) / step, 0.0)


def with_server(costs: Costs, took: F64, staleness: int) -> Row:
    """Return the row of a parameter server with a bound."""
    steps, workers = took.shape
    clocks = Clocks(workers, staleness)
    clock = [0] * workers
    asking = dict.fromkeys(range(workers), 0.0)
    events: list[tuple[float, int]] = []  # (gradient has come, worker)
    out = into = end = 0.0
    stale = 0

    def hand_out(now: float) -> None:
        """Send weights to all that may begin; the link carries them one after the other."""
        nonlocal out, into, stale
        for worker in sorted(asking, key=lambda w: (asking[w], w)):
            if clocks.may_begin(clock[worker]):
                out = max(out, now, asking.pop(worker)) + costs.pull
                stale += clock[worker] - clocks.version
                heapq.heappush(events, (out + float(took[clock[worker], worker]), worker))

    hand_out(0.0)
    while events:
        computed, worker = heapq.heappop(events)
        into = max(into, computed) + costs.push
        end = max(end, into)
        clocks.arrive(clock[worker], worker)
        clock[worker] += 1
        if clock[worker] < steps:
            asking[worker] = into
        hand_out(into)
    step = end / steps
    return Row(f"server, s = {staleness}", staleness, step, 1 - float(took.mean()) / step, stale / took.size)
