"""The replay against the exact one of `reftrain.schedule.timing`, closed forms, and cases worked out by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest

from reftrain.config import MeshConfig, ModelConfig
from reftrain.presets import MODEL_PRESETS
from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.timing import replay as exact_replay
from reftrain.simulate.hardware import load_hardware
from reftrain.simulate.job import Job
from reftrain.simulate.projection import Durations, project, replay
from reftrain.simulate.shapes import layer_counts


def equal(stages, forward=1.0, backward=2.0, **more):
    return Durations((forward,) * stages, (backward,) * stages, (backward / 2,) * stages, **more)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "flexible", "interleaved", "afab", "chimera", "zb_h1"])
@pytest.mark.parametrize("message", [0, Fraction(1, 4)])
def test_the_replay_is_the_exact_one(name, message):
    virtual = 2 if name in {"flexible", "interleaved", "afab"} else 1
    schedule = make_schedule(name, 4, virtual, 8, 4)
    ours = replay(schedule, equal(schedule.stages, message=float(message)))
    exact = exact_replay(schedule, Costs(p2p=Fraction(message)))
    assert ours.seconds == pytest.approx(float(exact.makespan), rel=1e-12)
    assert ours.bubble == pytest.approx(float(exact.bubble_over_compute), rel=1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 1, 8), (4, 2, 4), (16, 8, 16), (16, 8, 32), (8, 3, 24)])
def test_bubble_of_the_flexible_schedule(p, v, m):
    """(p-1)/(m·v), "Scaling Llama 3 Training", section 3.1."""
    schedule = make_schedule("flexible", p, v, m, p)
    assert replay(schedule, equal(schedule.stages)).bubble == pytest.approx((p - 1) / (m * v), rel=1e-9)


def one_rank(*actions):
    placement = (0,) * (1 + max(a.stage for a in actions))
    return Schedule("by hand", 2, 1, placement, (actions,))


F, B, R = Kind.FORWARD, Kind.BACKWARD, Kind.REDUCE_GRADIENT


def test_gathers_go_ahead_and_only_the_first_is_waited_for():
    table = one_rank(Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(B, 0, 0))
    assert replay(table, equal(2, gather=(0.5, 1.0))).seconds == pytest.approx(0.5 + 6)
    assert replay(table, equal(2, gather=(0.5, 2.0))).seconds == pytest.approx(2.5 + 1 + 4)


def test_the_last_reduction_is_waited_for():
    table = one_rank(Action(F, 0, 0), Action(B, 0, 0), Action(R, 0, 0))
    assert replay(table, equal(1, reduce=(5.0,))).seconds == pytest.approx(8)
    assert replay(table, equal(1, reduce=(5.0,), optimizer=(0.5,))).seconds == pytest.approx(8.5)


def test_a_hidden_reduction_delays_what_runs_beside_it():
    """Backward of stage 0 (2 s) beside a reduction of 1 s at an overlap of 0.5: 1 s beside does 2/3 s of work."""
    table = one_rank(
        Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(R, 1, 0), Action(B, 0, 0), Action(R, 0, 0)
    )
    durations = equal(2, reduce=(0.0, 1.0), overlap=0.5)
    assert replay(table, durations).seconds == pytest.approx(6 + 1 / 3)


def test_zero_3_gathers_for_every_use_one_action_ahead():
    table = one_rank(Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(B, 0, 0))
    hidden = replay(table, equal(2, gather=(1.0, 1.0), every_use=True)).seconds
    assert hidden == pytest.approx(1 + 6)
    # 3 s gathers beside computations of 1, 1, 2 s: the link is busy all the time until the last backward.
    assert replay(table, equal(2, gather=(3.0, 3.0), every_use=True)).seconds == pytest.approx(4 * 3 + 2)


def test_attention_of_a_micro_batch_counts_once_a_layer():
    table = one_rank(Action(F, 0, 0), Action(F, 0, 1), Action(B, 0, 0), Action(B, 0, 1))
    durations = equal(1, layers=(3,), attention=((0.1, 0.2), (1.0, 2.0)))
    assert replay(table, durations).seconds == pytest.approx(6 + 3 * (0.3 + 3.0))


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
