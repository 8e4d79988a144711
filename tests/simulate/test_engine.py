"""The engine against closed forms, against the exact times of schedules, and against streams by hand."""

from fractions import Fraction

import numpy as np
import pytest

from reftrain.errors import ScheduleError
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.timing import time_schedule
from reftrain.simulate.compile import compile_programs
from reftrain.simulate.conditions import Conditions, HostCosts
from reftrain.simulate.engine import Engine
from reftrain.simulate.grid import Grid
from reftrain.simulate.pipeline_rank import StageTimes
from reftrain.simulate.program import Builder, Kind, Parcel, Program
from reftrain.thresholds import LAUNCH_QUEUE
from tests.simulate.plain_operations import PlainOperations

ORDER = ("tp", "cp", "pp", "dp")


def grid_of(**sizes: int) -> Grid:
    return Grid({"tp": 1, "cp": 1, "pp": 1, "dp": 1, **sizes}, ORDER)


def run(spec: ScheduleSpec, p2p: float = 0.0) -> tuple[float, float]:
    """(Makespan, idle share) of a schedule with f = 1, b = 2."""
    schedule = lower(generate(spec), 1)
    grid = grid_of(pp=schedule.ranks)
    programs = compile_programs(schedule, grid, PlainOperations(1.0, 2.0, p2p))
    times = Engine(programs, grid, 1, host=HostCosts()).run()
    total = max(float(t.bounds[-1].max()) for t in times)
    busy = sum(op.ns for p in programs for op in p.ops if op.kind is Kind.COMPUTE)
    return total, 1 - busy / (total * schedule.ranks)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 12), (8, 8), (16, 32)])
def test_bubble_of_gpipe_and_1f1b_is_the_closed_form(name, p, m):
    assert run(ScheduleSpec(name, p, m))[1] == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)


@pytest.mark.quick(1)
@pytest.mark.parametrize("m", [16, 32])
def test_bubble_of_the_flexible_schedule_is_llamas(m):
    p, v = 16, 8
    idle = run(ScheduleSpec("flexible", p, m, v, p))[1]
    assert idle / (1 - idle) == pytest.approx((p - 1) / (m * v), abs=1e-12)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("p2p", [Fraction(0), Fraction(1, 4)])
def test_every_scheme_takes_as_long_as_its_exact_replay(name, p, p2p):
    simulated = 0
    for m in (p, 2 * p, 2 * p + 1):
        for virtual in (1, 2):
            for concat in ("direct", "doubling", "halving"):
                try:
                    spec = ScheduleSpec(name, p, m, virtual, p, concatenation=concat)
                    exact = time_schedule(generate(spec), Costs(p2p=p2p)).makespan
                except ScheduleError:
                    continue
                took = run(spec, float(p2p))[0]
                if p2p and SCHEMES[name].bidirectional:  # messages that cross take turns on their stream
                    assert took >= float(exact) - 1e-9
                else:
                    assert took == pytest.approx(float(exact), abs=1e-9)
                simulated += 1
    assert simulated


def build(grid: Grid, *actions) -> list[Program]:
    """Programs of hand: each action is a function of a builder, the same on every pipeline rank."""
    programs = []
    for rank in range(grid.stages):
        builder = Builder(rank, grid)
        for action in actions:
            action(builder)
        builder.sync(builder.open)
        programs.append(builder.program)
    return programs


def times_of(
    grid: Grid, programs: list[Program], host: HostCosts, told: Conditions | None = None
) -> StageTimes:
    conditions = {} if told is None else {(0, 0): told}
    return Engine(programs, grid, 1, host=host, conditions=conditions).run()[0]


def test_collective_members_await_the_last_and_leave_together():
    grid = grid_of(tp=2, dp=2)
    programs = build(
        grid,
        lambda b: b.compute("ffn", 100.0),
        lambda b: b.collective("tp", "allreduce", 7.0, (1, 1)),
        lambda b: b.compute("ffn", 10.0),
    )
    told = Conditions(factor=np.array([1.0, 1.5, 1.0, 1.0]))
    times = times_of(grid, programs, HostCosts(), told)
    assert times.start[1].tolist() == [100.0, 150.0, 100.0, 100.0]
    assert times.end[1].tolist() == [157.0, 157.0, 107.0, 107.0]
    assert times.waits["tp"][0].tolist() == [57.0, 7.0, 7.0, 7.0]


def test_a_transfer_beside_compute_delays_only_its_waiters():
    grid = grid_of(dp=2)
    found: list[int | None] = []

    def reduce(b: Builder) -> None:
        found.append(b.collective("dp", "allreduce", 50.0, (1, 1), wait=False))

    programs = build(
        grid,
        lambda b: b.compute("ffn", 10.0),
        reduce,
        lambda b: b.compute("ffn", 30.0),
        lambda b: b.wait(*found),
        lambda b: b.compute("optimizer", 5.0),
    )
    times = times_of(grid, programs, HostCosts())
    assert times.start[2].tolist() == [10.0, 10.0]
    assert times.start[3].tolist() == [60.0, 60.0]
    assert times.waits["dp"][0].tolist() == [20.0, 20.0]


def test_a_slow_host_starves_its_device_kernel_by_kernel():
    grid = grid_of(tp=1)
    programs = build(grid, lambda b: b.compute("ffn", 8.0), lambda b: b.compute("ffn", 8.0))
    times = times_of(grid, programs, HostCosts(), Conditions(launch=np.array([20.0])))
    assert times.start[:2, 0].tolist() == [20.0, 40.0]
    assert times.waits["host"][0, 0] == 32.0


def test_the_host_is_at_most_a_launch_queue_ahead():
    grid = grid_of(tp=1)
    kernel = [lambda b: b.compute("ffn", 1e4)] * (LAUNCH_QUEUE + 10)
    times = times_of(grid, build(grid, *kernel), HostCosts(launch=1.0))
    assert times.issued[LAUNCH_QUEUE - 1, 0] == LAUNCH_QUEUE  # not held up yet
    assert times.issued[LAUNCH_QUEUE + 9, 0] == times.start[9, 0] + 1.0


def test_calls_a_stopped_host_never_issues_are_infinite():
    grid = grid_of(tp=2, dp=2)
    programs = build(
        grid,
        lambda b: b.compute("ffn", 10.0),
        lambda b: b.collective("tp", "allreduce", 1.0, (1, 1)),
        lambda b: b.compute("ffn", 10.0),
    )
    times = times_of(grid, programs, HostCosts(), Conditions(stops=[(1, 1)]))
    assert np.isfinite(times.issued[1]).tolist() == [True, False, True, True]
    assert np.isfinite(times.end[1]).tolist() == [False, False, True, True]


def test_messages_out_of_order_are_refused_by_name():
    grid = grid_of(pp=2)
    programs = []
    for rank, batches in ((0, (0, 1)), (1, (1, 0))):
        builder = Builder(rank, grid)
        for batch in batches:
            builder.at(rank, batch, backward=False)
            kind = Kind.SEND if rank == 0 else Kind.RECV
            builder.message(kind, "send" if rank == 0 else "recv", 1 - rank, Parcel(1.0, 8))
        programs.append(builder.program)
    with pytest.raises(ScheduleError, match="receives micro-batch 1 where rank 0 sends 0"):
        Engine(programs, grid, 1, host=HostCosts()).run()


def test_a_receive_without_a_send_is_refused():
    grid = grid_of(pp=2)
    builder, other = Builder(0, grid), Builder(1, grid)
    builder.sync([builder.message(Kind.RECV, "recv", 1, Parcel(1.0, 8))])
    with pytest.raises(ScheduleError, match="pipeline rank 0 never gets past"):
        Engine([builder.program, other.program], grid, 1, host=HostCosts()).run()
