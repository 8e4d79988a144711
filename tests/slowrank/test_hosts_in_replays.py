"""Hosts hold up devices in a replay as they would in a step without the fault."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.hosts import KERNEL_US, PACE_US, ROUNDS, host_bound, running_ahead
from tests.slowrank.jobs import grid, prepared, recorded_until
from tests.slowrank.test_launch_bound import LAST, made
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.case import cures
from tracekit.case.cures import saved_beside_hosts, typical_without, usual_of, with_hosts
from tracekit.step_graph.unseen_ranks import with_unseen


def long_behind(turn):
    """Kernels are shorter than their launches in the first half of a step, and longer in the second."""
    return KERNEL_US if turn < ROUNDS / 2 else 2 * PACE_US


def one_slow(rank):
    return 3.0 if rank == LAST else 1.0


@pytest.mark.quick(1)
def test_a_step_sums_the_slower_side_of_its_parts(tmp_path):
    """The others' hosts run ahead of a slow one, and would not without it."""
    run, slow = host_bound(made(tmp_path, "slow"), pace=one_slow, kernel=long_behind)
    _, quick = host_bound(made(tmp_path, "quick"), kernel=long_behind)
    found = analyse(run)
    assert [(s.rank, s.cause) for s in found.suspects] == [(LAST, "cpu_launch")]
    assert found.what_if.slowdown == pytest.approx(slow / quick, abs=0.03)
    assert found.suspects[0].lost_ms_per_step == pytest.approx(slow - quick, abs=0.02)


@pytest.mark.quick(1)
def test_hosts_change_no_recorded_step(tmp_path):
    case = prepared(host_bound(tmp_path, pace=one_slow, kernel=long_behind)[0], grid(dp=8))
    hosted = with_hosts(case, case.timeline, ())
    assert all(len(hosts) == 8 for hosts in hosted.hosts)
    assert hosted.recorded_ns == pytest.approx(case.timeline.recorded_ns, rel=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("missed", [0.0, 0.5])
def test_hosts_that_miss_the_recording_bound_nothing(tmp_path, monkeypatch, missed):
    """The model saves two fifths of a step, and a tenth with hosts, whose step without a cure is longer by `missed`."""
    case = prepared(host_bound(tmp_path, pace=one_slow, kernel=long_behind)[0], grid(dp=8))
    model = SimpleNamespace(recorded_ns=10e6, cured=6e6)
    hosted = SimpleNamespace(recorded_ns=10e6 * (1 + missed), cured=9e6 + 10e6 * missed)
    monkeypatch.setattr(cures, "with_hosts", lambda *_: hosted)
    saved = saved_beside_hosts(case, model, [0], lambda m: m.cured)
    assert saved == pytest.approx(4e6 if missed else 1e6)


@pytest.mark.quick(1)
def test_copies_of_ranks_have_no_host(tmp_path):
    """Ranks 1 and 5 left no trace, and typical peers take their places in the model."""
    run, _ = host_bound(tmp_path, pace=one_slow, kernel=long_behind)
    run = replace(run, ranks=tuple(r for r in run.ranks if r.rank not in {1, 5}))
    case = prepared(run, grid(dp=8))
    model = with_unseen(case, case.timeline, case.found, {}).model
    hosted = with_hosts(case, model, ())
    assert {len(lines) for _, lines in model.runs} == {8}
    assert {len(hosts) for hosts in hosted.hosts} == {6}
    assert hosted.recorded_ns == pytest.approx(model.recorded_ns, rel=1e-3)
    assert with_hosts(case, model, [0]).step_ns(case.steps.own) == pytest.approx(model.recorded_ns, rel=1e-3)


@pytest.mark.quick(1)
def test_hosts_delay_both_replays_alike(tmp_path):
    """That by levels, and that in turn."""
    case = prepared(host_bound(tmp_path, pace=one_slow, kernel=long_behind)[0], grid(dp=8))
    rows = np.array([LAST])
    cure = typical_without(case, rows), None, usual_of(case, rows)
    by_levels = with_hosts(case, case.timeline, [LAST])
    in_turn = replace(by_levels)
    in_turn.__dict__["levels"] = (None,) * len(in_turn.runs)
    assert in_turn.step_ns(*cure) == pytest.approx(by_levels.step_ns(*cure))
    assert by_levels.step_ns(*cure) > 1.2 * case.timeline.step_ns(*cure)


@pytest.mark.quick(1)
def test_a_pause_behind_a_delay_costs_with_it(tmp_path):
    """Rank 4 pauses nearly as long as rank 2 loads, so that neither cure alone saves anything."""
    found = analyse(running_ahead(tmp_path, late=2, pausing=4), steps=[(2, 6)])
    assert [(s.rank, s.cause) for s in found.suspects] == [(2, "dataloader"), (4, "host_stall")]
    assert "host of rank 4 works or pauses 8.6 ms a step, others 1.4 ms" in found.reason
    assert found.what_if.without_suspects_ms == pytest.approx(2.5, abs=0.05)


@pytest.mark.quick(1)
def test_a_pause_without_a_delay_is_named_alone(tmp_path):
    (suspect,) = analyse(running_ahead(tmp_path, late=2), steps=[(2, 6)]).suspects
    assert suspect.rank == 2
    assert suspect.lost_ms_per_step == pytest.approx(6.2, abs=0.1)


@pytest.mark.quick(1)
def test_hosts_ahead_of_their_devices_change_no_step(tmp_path):
    """They launched the kernels of the compared steps before these began, and stopped in between."""
    longer = {2: 1.8, 3: 1.8, 4: 1.8}
    run = running_ahead(tmp_path, late=2, pausing=4, share=lambda step: longer.get(step, 0.1), steps=8)
    case = prepared(run, grid(dp=6), steps=[(2, 8)])
    hosted = with_hosts(case, case.timeline, ())
    assert hosted.recorded_ns == pytest.approx(case.timeline.recorded_ns, rel=1e-3)


@pytest.mark.quick(1)
def test_hosts_repeat_whole_steps_alone(tmp_path):
    """They wait for their devices in the step that the windows cut as well."""
    wait = "cuda_runtime", "cudaStreamSynchronize", 400.0
    run, _ = host_bound(tmp_path, steps=2, pace=one_slow, kernel=long_behind, also=wait)
    case = prepared(recorded_until(run, 0.6), grid(dp=8))
    assert case.steps.cut is not None
    hosted = with_hosts(case, case.timeline, ())
    assert hosted.recorded_ns == pytest.approx(case.timeline.recorded_ns, rel=1e-3)
