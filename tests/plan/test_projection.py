"""The projected step against the exact times of `reftrain.schedule.timing`, closed forms, and cases by hand."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.shapes import layer_counts
from reftrain.plan.projection import durations, project
from reftrain.plan.step_time import Durations, time_step
from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import generate, make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.timing import time_schedule


def equal(stages, forward=1.0, backward=2.0, **more):
    return Durations((forward,) * stages, (backward,) * stages, (backward / 2,) * stages, **more)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "flexible", "interleaved", "afab", "chimera", "zb_h1"])
@pytest.mark.parametrize("message", [0, Fraction(1, 4)])
def test_the_replay_is_the_exact_one(name, message):
    virtual = 2 if name in {"flexible", "interleaved", "afab"} else 1
    schedule = make_schedule(name, 4, virtual, 8, 4)
    ours = time_step(schedule, equal(schedule.stages, message=float(message)))
    exact = time_schedule(schedule, Costs(p2p=Fraction(message)))
    assert ours.seconds == pytest.approx(float(exact.makespan), rel=1e-12)
    assert ours.bubble == pytest.approx(float(exact.bubble_over_compute), rel=1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 1, 8), (4, 2, 4), (16, 8, 16), (16, 8, 32), (8, 3, 24)])
def test_bubble_of_the_flexible_schedule(p, v, m):
    """(p-1)/(m·v), "Scaling Llama 3 Training", section 3.1."""
    schedule = make_schedule("flexible", p, v, m, p)
    assert time_step(schedule, equal(schedule.stages)).bubble == pytest.approx((p - 1) / (m * v), rel=1e-9)


def one_rank(*actions):
    placement = (0,) * (1 + max(a.stage for a in actions))
    return Schedule("by hand", 2, 1, placement, (actions,))


F, B, R = Kind.FORWARD, Kind.BACKWARD, Kind.REDUCE_GRADIENT


def test_an_asynchronous_update_waits_for_its_gradients():
    """Each micro-batch of PipeDream steps; 1 rank: forward 1, backward 2, reduction 4, step 0.5, four times."""
    table = lower(generate(ScheduleSpec("pipedream", 1, 1, steps=4)), 0)
    times = equal(1, reduce=(4.0,), optimizer=(0.5,))
    assert time_step(table, times).seconds == pytest.approx(4 * 7.5)


def test_gathers_run_ahead_and_only_the_first_waits():
    table = one_rank(Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(B, 0, 0))
    assert time_step(table, equal(2, gather=(0.5, 1.0))).seconds == pytest.approx(0.5 + 6)
    assert time_step(table, equal(2, gather=(0.5, 2.0))).seconds == pytest.approx(2.5 + 1 + 4)


def test_the_last_reduction_is_waited_for():
    table = one_rank(Action(F, 0, 0), Action(B, 0, 0), Action(R, 0, 0))
    assert time_step(table, equal(1, reduce=(5.0,))).seconds == pytest.approx(8)
    assert time_step(table, equal(1, reduce=(5.0,), optimizer=(0.5,))).seconds == pytest.approx(8.5)


def test_a_hidden_reduction_delays_what_runs_beside_it():
    """Backward of stage 0 (2 s) beside a reduction of 1 s at an overlap of 0.5: 1 s beside does 2/3 s of work."""
    table = one_rank(
        Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(R, 1, 0), Action(B, 0, 0), Action(R, 0, 0)
    )
    durations = equal(2, reduce=(0.0, 1.0), overlap=0.5)
    assert time_step(table, durations).seconds == pytest.approx(6 + 1 / 3)


def test_zero_3_gathers_for_every_use_one_action_ahead():
    table = one_rank(Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(B, 0, 0))
    hidden = time_step(table, equal(2, gather=(1.0, 1.0), every_use=True)).seconds
    assert hidden == pytest.approx(1 + 6)
    # 3 s gathers beside computations of 1, 1, 2 s: the link is busy all the time until the last backward.
    assert time_step(table, equal(2, gather=(3.0, 3.0), every_use=True)).seconds == pytest.approx(4 * 3 + 2)


@pytest.mark.parametrize(
    ("sync", "sums", "seconds"),
    [
        ("eager", (0.5, 1.0), 6.5),  # stage 1 is complete at 4, stage 0 at 6, on both ranks
        ("eager", (0.5, 3.0), 7.5),  # one sum after the other
        ("lazy", (0.5, 1.0), 7.5),  # both begin at 6
    ],
)
def test_replicas_are_summed_beside_the_computation(sync, sums, seconds):
    """Chimera on two ranks: either holds both stages, and computes from 0 to 6 without a gap."""
    table = lower(make_schedule("chimera", 2, 1, 2, 1), 1, sync)
    assert time_step(table, equal(2)).seconds == pytest.approx(6)
    assert time_step(table, equal(2, replicas=sums)).seconds == pytest.approx(seconds)


def test_recomputation_waits_for_the_gradient():
    schedule = make_schedule("chimera", 4, 1, 16, 1, concatenation="doubling")
    exact = time_schedule(schedule, Costs())
    assert time_step(schedule, equal(4)).seconds == pytest.approx(float(exact.makespan), rel=1e-12)


@pytest.mark.parametrize("name", ["flexible", "afab", "chimera"])
@pytest.mark.parametrize("every_use", [False, True])
def test_many_machines_at_once_are_each_alone(name, every_use):
    """Seconds as arrays, one element a machine, give what each machine gives by itself."""
    schedule = lower(make_schedule(name, 4, 1 if name == "chimera" else 2, 8, 4), 2)
    rng = np.random.default_rng(1)
    machines = rng.uniform(0.5, 2.0, size=(8, 5))

    def of(row, as_it_is):
        f, b, message, gather, reduce, sums, tail, overlap = (as_it_is(x) for x in row)
        n = schedule.stages
        return Durations(
            (f,) * n, (b,) * n, (b / 2,) * n, message / 5, (gather,) * n, (reduce,) * n, (sums,) * n,
            (tail,) * 4, overlap / 8, every_use,
        )  # fmt: skip

    together = time_step(schedule, of(machines, np.asarray))
    for i, row in enumerate(machines.T):
        alone = time_step(schedule, of(row, float))
        assert together.seconds[i] == alone.seconds
        assert [end[i] for end in together.ends] == list(alone.ends)


def test_attention_of_a_micro_batch_counts_once_a_layer():
    table = one_rank(Action(F, 0, 0), Action(F, 0, 1), Action(B, 0, 0), Action(B, 0, 1))
    durations = equal(1, layers=(3,), attention=((0.1, 0.2), (1.0, 2.0)))
    assert time_step(table, durations).seconds == pytest.approx(6 + 3 * (0.3 + 3.0))


H100 = load_hardware("h100")
MODEL = ModelConfig(preset="8b", **MODEL_PRESETS["8b"])


def job(**changes):
    mesh = MeshConfig(tp=8, pp=4, dp=4)
    return replace(
        Job(MODEL, mesh, 8192, 8, layer_counts(32, 8, balanced=False), virtual=2, consecutive=4), **changes
    )


def test_exposed_shares_are_shares():
    got = project(job(), H100)
    assert set(got.exposed) == {"tp", "cp", "pp", "dp"}
    assert all(0 <= share < 1 for share in got.exposed.values())
    assert got.exposed["cp"] == 0
    assert got.step_s > 0


def test_a_faster_network_never_slows_a_step_down():
    slow = project(job(), H100.with_constant("network.gb_s", 5.0))
    fast = project(job(), H100)
    assert slow.step_s > fast.step_s
    assert slow.exposed["pp"] > fast.exposed["pp"]


def test_a_slow_host_bounds_the_step():
    """Launches of 10 ms each take longer than the kernels."""
    slow = project(job(), H100.with_constant("host.launch_us", 1e4))
    kernels = 2 * 8 * 8  # at least this many launches on a rank: two a layer and micro-batch
    assert slow.step_s > kernels * 1e-2


def test_bytes_through_the_network_port():
    """tp stays in the node; a rank passes 2·m·(stages-1)/p messages and its parameters' gathers and sums."""
    got = project(job(mesh=MeshConfig(tp=8, pp=4, dp=4, zero=1)), H100)
    messages = 2 * 8 * 7 / 4 * (8192 // 8 * 4096 * 2)
    one = job()
    parameters = sum(one.stage_parameters(s) for s in range(8)) / 4
    assert got.network_bytes == pytest.approx(messages + 3 / 4 * parameters * (2 + 4))


@pytest.mark.parametrize("zero", [0, 1])
def test_the_sum_over_replicas_is_projected(zero):
    """It moves the shard (of dp) in FP32; on a slow network it is what a step of Chimera waits for."""
    mesh = MeshConfig(tp=8, pp=4, dp=4, zero=zero)
    layers = layer_counts(32, 4, balanced=False)
    made = Job(MODEL, mesh, 8192, 8, layers, schedule="chimera")
    slow = H100.with_constant("network.gb_s", 1e-3)
    costs = cost_model_of(made, slow)
    sums = durations(made, costs).replicas
    shard = made.stage_parameters(1) / (4 if zero else 1) * 4
    assert sums[1] == pytest.approx(2 * 15e-6 + shard / (1e-3 * 1e9 * 0.8), rel=1e-6)
    assert durations(replace(made, schedule="1f1b"), costs).replicas == ()
    assert project(made, slow).step_s > sums[1]


def test_chimeras_sizes_reach_the_table():
    made = Job(MODEL, MeshConfig(pp=4), 8192, 8, layer_counts(32, 4, balanced=False), schedule="chimera")
    assert replace(made, pipelines=4).table.replicas == 4
    kinds = {a.kind for _, _, a in replace(made, concatenation="doubling").table.everything()}
    assert Kind.RECOMPUTE in kinds
    assert Kind.RECOMPUTE not in {a.kind for _, _, a in made.table.everything()}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_is_projected(name):
    """Schedules without a short step are projected as well: dualpipe_v needs 2·p micro-batches."""
    virtual = SCHEMES[name].default_virtual
    layers = layer_counts(32, 4 * virtual, balanced=False)
    made = Job(MODEL, MeshConfig(pp=4, dp=2), 8192, 8, layers, schedule=name, virtual=virtual, consecutive=4)
    assert project(made, H100).step_s > 0
