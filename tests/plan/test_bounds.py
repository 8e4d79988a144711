"""Bounds lie below what they bound, and near enough to be of use."""

from dataclasses import replace

import pytest

from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.memory import MemoryModel
from reftrain.cost.shapes import layer_counts
from reftrain.plan.lower_bounds import in_flight, memory_bound, time_bound
from reftrain.plan.projection import project

H100 = load_hardware("h100")
MODEL = ModelConfig(preset="70b", **MODEL_PRESETS["70b"])


def job(schedule, p, v, m, zero, dp=8):
    return Job(
        MODEL,
        MeshConfig(tp=8, pp=p, dp=dp, zero=zero),
        8192,
        m,
        layer_counts(80, p * v, balanced=p > 1),
        schedule=schedule,
        virtual=v,
        consecutive=min(p, m),
    )


JOBS = [
    job(schedule, p, v, m, zero)
    for schedule, p, v in [
        ("flexible", 4, 4),
        ("afab", 4, 4),
        ("1f1b", 8, 1),
        ("flexible", 8, 2),
        ("1f1b", 1, 1),
    ]
    for m in (3, 8, 17)
    for zero in ((1, 2, 3) if p == 1 else (1, 2))
]


@pytest.mark.quick(12)
@pytest.mark.parametrize(
    "one", JOBS, ids=lambda j: f"{j.schedule}-{j.mesh.pp}-{j.micro_batches}-{j.mesh.zero}"
)
def test_bounds_hold_and_are_near(one):
    memory, seconds = MemoryModel(one).peak(), project(one, H100).step_s
    assert memory_bound(one) <= memory
    bound = time_bound(one, cost_model_of(one, H100))
    assert bound <= seconds
    if one.mesh.pp > 1 and one.micro_batches >= one.mesh.pp:
        assert memory_bound(one) > 0.6 * memory
        assert bound > 0.7 * seconds


@pytest.mark.parametrize(
    "one", JOBS, ids=lambda j: f"{j.schedule}-{j.mesh.pp}-{j.micro_batches}-{j.mesh.zero}"
)
@pytest.mark.quick(6)
def test_the_fullest_rank_is_among_those_looked_at(one):
    model = MemoryModel(one)
    assert model.peak() == max(rank.peak for rank in model.ranks())


@pytest.mark.parametrize(
    "one", JOBS, ids=lambda j: f"{j.schedule}-{j.mesh.pp}-{j.micro_batches}-{j.mesh.zero}"
)
def test_in_flight_is_the_schedules(one):
    most = max(rank.in_flight for rank in MemoryModel(one).ranks())
    assert in_flight(one) <= most
    if one.micro_batches % one.consecutive == 0:
        assert in_flight(one) == most


def test_zero_3_is_bound_by_its_transfers():
    """One sequence a micro-batch is too little computation to hide gathering all weights behind."""
    one = job("flexible", 1, 1, 4, 3, dp=512)
    slow = replace(one, mesh=MeshConfig(tp=1, dp=512, zero=3))
    plain = replace(slow, mesh=MeshConfig(tp=1, dp=512, zero=1))
    starved = H100.with_constant("network.gb_s", 1.0)
    assert time_bound(slow, cost_model_of(slow, starved)) > 1.5 * time_bound(
        plain, cost_model_of(plain, starved)
    )
