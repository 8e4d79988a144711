"""Simulates a job with a schedule on a machine: compiles programs, plants faults, runs the engine.

Flow: `Setup` → programs (`compile`, `model_operations`) → conditions (`faults`) → times (`engine`) → `Simulation`,
which the writers (`kineto_writer`, `flight_writer`), `summary` and `timeline` read.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from reftrain.config.fault_kinds import HANGS
from reftrain.config.fault_spec import FaultSpec
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.errors import ConfigError
from reftrain.simulate.compile import compile_programs
from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.engine import Engine
from reftrain.simulate.faults import Table, conditions_of, deal, last_step
from reftrain.simulate.grid import Grid
from reftrain.simulate.jitter import Jitter, draw_clocks
from reftrain.simulate.model_operations import ModelOperations
from reftrain.simulate.program import Program
from reftrain.simulate.setup import Setup
from reftrain.simulate.simulation import Simulation
from reftrain.thresholds import (
    CALL_LAUNCHES,
    LAUNCH_LATENCY_NS,
    MOST_LAYER_RUNS,
    MOST_SIMULATED_RANKS,
    MOST_TIMES,
)

BEGIN_NS: Final = 1_774_000_123_456_789_012
"""Wall time of every simulated job's begin: fixed, so that the same seed writes the same bytes."""


def host_costs(hardware: Hardware) -> HostCosts:
    """Return the host times of a machine, ns."""
    launch = hardware.host.launch_us * 1e3
    return HostCosts(launch, CALL_LAUNCHES * launch, LAUNCH_LATENCY_NS if launch else 0.0)


def programs_of(setup: Setup, grid: Grid) -> list[Program]:
    """Return the programs of all pipeline ranks."""
    job, schedule = setup.job, setup.schedule
    held = [[stage for _, stage in schedule.held_by(rank)] for rank in range(schedule.ranks)]
    operations = ModelOperations(
        cost_model_of(job, setup.hardware), job.stages, held, merge=setup.merge, clip=job.clips,
        host_waits=setup.host_waits, encoders=schedule.encoders,
    )  # fmt: skip
    return compile_programs(schedule, grid, operations)


def simulate(setup: Setup) -> Simulation:
    """Return the simulation of a job; raises ConfigError or ScheduleError for one that cannot be simulated."""
    grid = setup.grid
    if grid.world > MOST_SIMULATED_RANKS:
        raise ConfigError(
            "--mesh", f"{grid.world} ranks are too many", f"simulate up to {MOST_SIMULATED_RANKS}"
        )
    if setup.schedule.ranks != grid.stages:
        problem = f"the schedule has {setup.schedule.ranks} ranks and the mesh pp {grid.stages}"
        raise ConfigError("--schedule", problem, "give both the same")
    _check(setup.job)
    _check_length(setup)
    programs = programs_of(setup, grid)
    steps = last_step(setup.faults, setup.steps)
    size = max(len(p.ops) for p in programs) * grid.world * steps
    if size > MOST_TIMES:
        remedy = "simulate fewer steps or micro-batches, or write --detail collectives"
        raise ConfigError("--steps", f"{size} operations are too many", remedy)
    conditions = conditions_of(setup, grid, programs, steps)
    for step in range(steps if setup.packing else 0):
        _deal_documents(setup, grid, conditions, step)
    noise = Jitter(setup.seed, grid, setup.jitter, first=setup.first) if setup.jitter else None
    host = host_costs(setup.hardware)
    times = Engine(programs, grid, steps, host=host, noise=noise, conditions=conditions).run()
    nodes = -(-grid.world // setup.hardware.node_size)
    clocks = draw_clocks(setup.seed, nodes, 2e6 * setup.jitter, 2e-6 * setup.jitter)
    left_out, resized = _struck(grid, programs, conditions)
    begin_ns = BEGIN_NS + round(setup.window.begun_s * 1e9)
    return Simulation(
        grid, programs, times, steps, host, clocks, setup.hardware.node_size, begin_ns, left_out, resized,
        setup.first,
    )  # fmt: skip


def _check(job: Job) -> None:
    """Refuse features that would be simulated as something else."""
    mesh = job.mesh
    if mesh.dp_shard not in {0, mesh.dp}:
        raise ConfigError("mesh.dp_shard", "hybrid sharding is not simulated", "leave it out")
    if job.ring:
        raise ConfigError("numerics.cp_method", "a ring is not simulated", "choose all_gather")


def _check_length(setup: Setup) -> None:
    """Refuse, before any program is compiled, what would take hours."""
    steps = last_step(setup.faults, setup.steps)
    runs = 2 * sum(setup.job.layers) * setup.schedule.micro_batches * steps
    if runs > MOST_LAYER_RUNS:
        problem = f"{runs} runs of a layer are too many"
        remedy = f"stay below {MOST_LAYER_RUNS} with fewer micro-batches, steps or layers"
        raise ConfigError("--steps, --micro-batches", problem, remedy)


def _deal_documents(setup: Setup, grid: Grid, conditions: Table, step: int) -> None:
    """Scale the time of attention by the pairs of each micro-batch over the causal ones, by data and context rank."""
    packing = setup.packing
    if packing is None:
        return
    dp, cp, _ = grid.shape
    found = packing.pairs(step, setup.schedule.micro_batches, dp, cp) / (packing.causal_pairs() / cp)
    deal(conditions, grid, step, dict(enumerate(found)))


def without_faults(setup: Setup, steps: int) -> Simulation | None:
    """Return the simulation of the same job without its faults; None for a job without faults."""
    return simulate(replace(setup, faults=(), steps=steps)) if setup.faults and steps else None


def hang_of(setup: Setup) -> FaultSpec | None:
    """Return the planted fault that ends the job, or None."""
    ending = [f for f in setup.faults if f.kind in HANGS and f.first < setup.steps]
    return min(ending, key=lambda f: f.first) if ending else None


Rows = frozenset[tuple[int, int]]


def _struck(grid: Grid, programs: Sequence[Program], conditions: Table) -> tuple[Rows, Rows]:
    """(Rank, row) of calls that are left out, and of those made with another size."""
    left_out, resized = set(), set()
    for (stage, step), planted in conditions.items():
        ranks, base = grid.ranks(stage), step * len(programs[stage].ops)
        left_out |= {(int(ranks[place]), base + index) for place, index in planted.skips}
        resized |= {(int(ranks[place]), base + index) for place, index in planted.breaks}
    return frozenset(left_out), frozenset(resized)
