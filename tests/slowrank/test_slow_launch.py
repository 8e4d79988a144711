"""A host that launches more slowly than its peers' is named with what it costs, though its device works no longer."""

from dataclasses import replace

import numpy as np
import pytest

from tests.shapes.case import make, save
from tests.shapes.draw import drawn_case
from tests.shapes.fault import Fault, Part
from tests.shapes.fsdp import Sharded
from tests.slowrank.jobs import LAYER_US, grid, job, prepared
from tests.slowrank.test_late_launch import LAST, LONG_US, SOON_US, launched
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses import slow_launch as hosts
from tracekit.analysis.slowrank.hypotheses.slow_launch import places_of, saved_as_peers, slow_launch
from tracekit.ingest import load

RANK, HOST_BOUND = 5, 2105
CALLS = 6  # layers × axes


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.quick(1)
def test_a_slow_host_is_named_and_priced(tmp_path, factor):
    shape = Sharded(layers=4, unit=80.0, parameters=2 * 10**7, activations=4096 * 1024)
    fault = Fault("slow_host", (Part("host", (RANK,), factor),))
    case = replace(drawn_case(HOST_BOUND), shape=shape, world=8, recorded=tuple(range(8)), fault=fault)
    made = make(case)
    save(made, tmp_path / "traces")
    found = analyse(load(tmp_path / "traces"))
    if factor == 1:
        assert found.verdict == "healthy"
        return
    assert made.slowdown > 0.05
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == (
        "slow_rank",
        "cpu_launch",
        [RANK],
    )
    assert found.what_if.slowdown - 1 == pytest.approx(made.slowdown, abs=0.03)
    assert found.suspects[0].evidence[-1].unit == "µs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "factor", "steps", "verdict"),
    [
        (55.0, 1.5, 2, "inconclusive"),  # host_launches_late: too few steps to price it, but no health
        (60.0, 1.5, 3, "inconclusive"),  # its price, 2.4 %, lies within 1.2 points of the threshold
        (60.0, 1.6, 3, "slow_rank"),  # host_launches_slowly: its device works no longer than its peers'
        (60.0, 2.0, 3, "slow_rank"),  # launched_late: its gaps are a fourth of what it costs
    ],
)
def test_late_gathers_of_a_slow_host_cost_the_others(tmp_path, unit, factor, steps, verdict):
    """Small layers of FSDP, gathered ahead: the job is healthy, or priced at a fourth, without the rule."""
    shape = Sharded(layers=6, unit=unit, parameters=10**7, activations=4096 * 1024)
    fault = Fault("slow_host", (Part("host", (RANK,), factor),))
    case = replace(
        drawn_case(HOST_BOUND), shape=shape, world=8, recorded=tuple(range(8)), fault=fault, host_us=12.0,
        steps=tuple(range(10, 10 + steps)),
    )  # fmt: skip
    made = make(case)
    save(made, tmp_path)
    found = analyse(load(tmp_path))
    assert made.slowdown > 0.02
    assert found.verdict == verdict
    assert [(s.rank, s.cause) for s in (*found.suspects, *found.candidates)] == [(RANK, "cpu_launch")]
    if found.suspects:
        assert found.what_if.slowdown - 1 == pytest.approx(made.slowdown, abs=0.005)


def test_issuing_as_a_peer_saves_what_others_wait(tmp_path):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={LAST: 1.2}, jitter=0), mesh)
    saved = saved_as_peers(case, LAST)
    assert saved == pytest.approx(np.full(3, CALLS * 0.2 * LAYER_US * 1000), rel=0.02)
    (little,) = saved_as_peers(case, 0)
    assert little == pytest.approx(0, abs=1000)


def test_places_tell_both_ends_of_messages_apart(tmp_path):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh), mesh)
    places = places_of(case)
    every = np.array(
        [case.ops.of(rank).start + np.argsort(places[case.ops.of(rank)]) for rank in case.ops.ranks]
    )
    assert (places[every] == np.arange(every.shape[1])).all()
    assert (case.ops.op[every] == case.ops.op[every[0]]).all()
    assert (case.axis[every] == case.axis[every[0]]).all()
    pair = replace(case.ops.channels[0], members=(0, 2), p2p=True)
    met = replace(case, ops=replace(case.ops, channels=(pair, *case.ops.channels[1:])))
    places = places_of(met)
    last = case.ops.of(2)
    assert set(places[case.ops.of(0)]).isdisjoint(places[last][case.ops.channel[last] == 0])


@pytest.mark.parametrize(
    ("paces", "factor", "change", "named"),
    [
        ((20e3, 10e3), 1.1, {}, True),
        ((11e3, 10e3), 1.1, {}, False),  # its host is as quick as any
        (None, 1.1, {}, False),  # nothing tells
        ((20e3, 10e3), 1.01, {}, False),  # little is lost
        ((20e3, 10e3), 1.5, {"slow_steps": {1}}, False),  # in one step alone
        ((20e3, 10e3), 1.1, {"steps": 2}, False),  # too few steps
    ],
)
def test_only_a_proven_host_is_named(tmp_path, monkeypatch, paces, factor, change, named):
    monkeypatch.setattr(hosts, "pace_beside", lambda *_: paces)
    case = launched(tmp_path, SOON_US, LONG_US, factor, **change)
    found = slow_launch(case)
    assert (found is not None) is named
    if found is not None:
        assert case.steps.ranks[found.row] == LAST
        assert found.price.low <= found.price.best <= found.price.high
        assert found.price.best == pytest.approx(0.1 * CALLS * LAYER_US * 1000, rel=0.2)
