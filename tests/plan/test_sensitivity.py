"""Moved constants: one search on many machines decides as the planner does on each of them alone."""

import pytest

from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import ModelConfig
from reftrain.cost.hardware import load_hardware
from reftrain.plan.choose import Planner
from reftrain.plan.meshes import Workload
from studies.sensitivity import UNMOVED, Search, decisions, first_flips, moved

H100 = load_hardware("h100")
WORKLOAD = Workload(ModelConfig(preset="8b", **MODEL_PRESETS["8b"]), 8, 8192, 16)
WAYS = [
    UNMOVED,
    ("device.memory_gib", 0.6),
    ("network.gb_s", 0.05),
    ("node.gb_s", 0.1),
    ("host.kernel_us", 30.0),
]


@pytest.fixture(scope="module")
def taken():
    return decisions(WORKLOAD, H100, WAYS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [UNMOVED, *(pytest.param(how, marks=pytest.mark.slow) for how in WAYS[1:])],
    ids=lambda how: f"{how[0]} x {how[1]}",
)
def test_the_decision_is_the_planners(taken, how):
    plan = Planner(WORKLOAD, moved(H100, how)).plan()
    times = {row.mesh: row.step_s for row in plan.rejected if row.step_s is not None}
    times |= {choice.mesh: choice.projection.step_s for choice in plan.choices}
    fastest = min(times, key=times.__getitem__)
    assert taken[how].mesh == plan.taken.mesh
    assert taken[how].fastest == fastest
    assert taken[how].behind == pytest.approx(times[plan.taken.mesh] / times[fastest] - 1, abs=1e-9)


@pytest.mark.slow
def test_where_a_choice_turns(taken):
    """At the factor that is named the planner decides otherwise, a step nearer to 1 it does not yet."""
    chosen = taken[UNMOVED].mesh
    flips = [how for how in WAYS if taken[how].mesh != chosen]
    assert flips
    for how, factor in first_flips(WORKLOAD, H100, chosen, flips[:1]).items():
        before = factor - (how[1] - 1) / 20
        at, near = (Planner(WORKLOAD, moved(H100, (how[0], f))).plan().taken.mesh for f in (factor, before))
        assert at != chosen
        assert near == chosen


def test_most_jobs_need_no_replay():
    search = Search(WORKLOAD, [H100])
    assert 0 < search.timed_jobs < len(list(Planner(WORKLOAD, H100).jobs()))
