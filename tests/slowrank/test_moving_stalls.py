"""Stalls that strike now this host and now that one: no rank is slow, and the job is not healthy."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.paired.jobs import localised
from tests.slowrank.hosts import host_bound
from tests.slowrank.jobs import grid, job, prepared
from tracekit import load
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.evidence import evidence_of
from tracekit.analysis.slowrank.hypotheses.moving_stalls import MovingStalls

STALL_US = 1500.0
MESH = grid(tp=2, dp=4)


def stalls(struck):
    """Idle µs by rank and step where `struck` (step → ranks) says so."""
    return lambda rank, step: STALL_US if rank in struck.get(step, ()) else 0.0


def answers(folder, struck, steps=6):
    for name in ("stalls", "calm"):
        (folder / name).mkdir()
    with_stalls = analyse(job(folder / "stalls", MESH, steps=steps, idle=stalls(struck)))
    without = analyse(job(folder / "calm", MESH, steps=steps))
    return with_stalls, with_stalls.what_if.step_ms / without.what_if.step_ms


@pytest.mark.quick(1)
@pytest.mark.parametrize("shift", [0, 3])
def test_a_stall_of_another_rank_each_step(tmp_path, shift):
    found, slowdown = answers(tmp_path, {step: ((5 * step + shift) % 8,) for step in range(6)})
    assert (found.verdict, found.cause, found.suspects) == (
        "imbalance",
        "unknown",
        (),
    )  # no host was recorded
    assert found.what_if.slowdown == pytest.approx(slowdown, rel=0.01)


def test_all_ranks_stall_in_turn(tmp_path):
    found, slowdown = answers(tmp_path, {step: (step, (step + 4) % 8) for step in range(6)})
    assert (found.verdict, found.suspects) == ("imbalance", ())
    assert found.what_if.slowdown == pytest.approx(slowdown, rel=0.01)


def test_a_rank_that_always_stalls_is_named(tmp_path):
    found, _ = answers(tmp_path, dict.fromkeys(range(6), (3,)) | {2: (3, 5), 4: (3, 1)})
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [3])


def test_stalls_in_each_of_few_steps_are_no_turns(tmp_path):
    """Over four steps of four ranks, four of five stalls may be of one rank by chance; one in each step hardly."""
    struck = {0: (2,), 1: (0, 2), 2: (2,), 3: (2,)}
    found = analyse(job(tmp_path, grid(dp=4), steps=4, idle=stalls(struck)))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [2])


def test_short_stalls_of_others_hide_no_rank(tmp_path):
    """A busy machine makes the others stall a little, as often by chance as the one that stalls long in every step."""

    def idle(rank, step):
        return STALL_US if rank == 3 else STALL_US / 4 if rank in {2 * step % 8, (2 * step + 5) % 8} else 0.0

    found = analyse(job(tmp_path, MESH, steps=6, idle=idle))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [3])


@pytest.mark.quick(1)
@pytest.mark.parametrize(("factor", "named"), [(1.03, []), (1.1, [0])])
def test_stalls_blame_no_rank_beside_a_slow_one(tmp_path, factor, named):
    """Rank 3 stalls twice and others once, as by chance; rank 0 has a slow device as well, which may cost little."""
    struck = {0: (3,), 1: (0,), 2: (3,), 3: (6,), 4: (1,), 5: (2,)}
    found = analyse(job(tmp_path, MESH, steps=6, idle=stalls(struck), slow={0: factor}, layers=6))
    assert [s.rank for s in found.suspects] == named
    assert found.verdict == ("slow_rank" if named else "imbalance")


@pytest.mark.parametrize("of_work", [False, True])
def test_device_longer_in_every_step_takes_no_turns(of_work):
    """In two steps of four ranks one of three stalls may strike the same host again, but a slow device stays slow."""
    over = np.array([[0.0, 0.0], [1e6, 1e6], [0.0, 0.0], [1e6, 0.0]])
    case = SimpleNamespace(
        found=SimpleNamespace(mean=over.mean(axis=1)),
        steps=SimpleNamespace(mean=np.mean),
        met=SimpleNamespace(by_idle=()),
    )
    found = MovingStalls(over, 1e6, of_work=of_work)
    assert found.explains(case, [1]) is not of_work
    assert found.explains(case, [3])
    case.met.by_idle = (3,)  # it works no longer than its peers, but is idle in every step
    assert found.explains(case, [3]) is not of_work


def trifle(rank, step):
    """A stall of another rank in every step, which costs less than the threshold."""
    return 150.0 if rank == (5 * step + 1) % 8 else 0.0


def test_two_ranks_that_always_stall_take_no_turns(tmp_path):
    """Two of four load for long in every step, and another one once for a little."""

    def idle(rank, step):
        return 1500.0 if rank in {2, 3} else 200.0 * ((rank, step) == (1, 2))

    found = analyse(job(tmp_path, grid(tp=2, dp=2), steps=4, idle=idle))
    assert {s.rank for s in (*found.suspects, *found.candidates)} == {2, 3}


def test_one_long_stall_among_trifles_is_an_accident(tmp_path):
    once = {(3, 0): 30_000.0}
    found = analyse(job(tmp_path, MESH, steps=4, idle=lambda r, step: once.get((r, step), trifle(r, step))))
    assert (found.verdict, found.suspects) == ("healthy", ())


def test_slow_rank_among_trifles_takes_no_turns(tmp_path):
    found = analyse(job(tmp_path, MESH, steps=3, slow={4: 1.4}, idle=trifle))
    assert [s.rank for s in found.suspects] == [4]


def test_a_stall_in_few_steps_is_no_imbalance(tmp_path):
    found, _ = answers(tmp_path, {2: (1,), 7: (6,)}, steps=10)
    assert found.verdict in {"healthy", "inconclusive"}
    assert not found.suspects


@pytest.mark.parametrize("steps", [2, 3])
def test_ranks_that_load_in_every_step_take_no_turns(tmp_path, steps):
    """Four of seven recorded ranks load data in each step: by chance they would not be the same ones every time."""

    def idle(rank, step):
        return 300.0 * (rank % 2 == 0) * (1 + 0.03 * ((rank * 7 + step * 5) % 11 - 5) / 5)

    found = analyse(job(tmp_path, MESH, steps=steps, lost={3}, idle=idle))
    assert "tensor index 0" in found.reason
    assert not found.suspects


def test_recorded_hosts_tell_the_cause(tmp_path):
    """Hosts that set the pace, of which another one pauses in each step."""
    paused = {step: (5 * step) % 8 for step in range(6)}
    run, _ = host_bound(tmp_path, steps=6, loading=lambda rank, step: 5.0, also=("", "", 0.0))
    calm = analyse(run).what_if.step_ms
    (tmp_path / "stalls").mkdir()
    run, _ = host_bound(
        tmp_path / "stalls", steps=6, loading=lambda rank, step: 5.0 + STALL_US * (paused[step] == rank)
    )
    found = analyse(run)
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "dataloader", ())
    assert found.what_if.slowdown == pytest.approx(found.what_if.step_ms / calm, rel=0.02)


@pytest.mark.slow
def test_loaders_late_on_all_ranks_at_once(tmp_path):
    """Every third batch is late everywhere, by a time that differs: the jitter of a common stall is no rank's fault."""

    def loading(rank, step):
        return 5.0 + (STALL_US * (1 + 0.1 * ((rank * 5 + step) % 7 / 3 - 1)) if step % 3 == 0 else 0.0)

    calm = analyse(host_bound(tmp_path, steps=9, loading=lambda rank, step: 5.0)[0]).what_if.step_ms
    (tmp_path / "late").mkdir()
    found = analyse(host_bound(tmp_path / "late", steps=9, loading=loading)[0])
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "dataloader", ())
    # hosts set the pace here, so that a rank which waits gets ahead meanwhile: the price is a lower bound
    assert 1.05 < found.what_if.slowdown <= 1.01 * found.what_if.step_ms / calm


HALF = (4, 5, 6, 7)


@pytest.mark.quick(1)
@pytest.mark.parametrize("steps", [(1, 3, 5), (0, 1, 3, 4), (2, 4)])
def test_half_of_the_ranks_stall_together(tmp_path, steps):
    """Noise cannot be told from them by their peers, which are early by as much; healthy they are not."""
    found, slowdown = answers(tmp_path, dict.fromkeys(steps, HALF))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert sorted(c.rank for c in found.candidates) == list(HALF)
    saved = found.what_if.step_ms * (1 - 1 / slowdown)
    assert max(c.lost_ms_high for c in found.candidates) == pytest.approx(saved, rel=0.02)


@pytest.mark.slow
def test_several_ranks_are_late_in_one_step(tmp_path):
    found, _ = answers(tmp_path, {2: HALF})
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert found.reason.startswith("ranks 4, 5, 6, 7 work")
    assert sorted(c.rank for c in found.candidates) == list(HALF)


@pytest.mark.slow
def test_one_slow_step_beside_harmless_ones_is_named(tmp_path):
    """Rank 23 of 32 is slow in one step of three; others are longer in other steps, and no rank waits for them."""
    truth = localised(9_900_455, tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert truth.culprits == tuple(s.rank for s in found.suspects)


@pytest.mark.parametrize(("longest", "turns"), [(1.15, True), (1.75, False)])
def test_one_delay_far_longer_than_all_is_no_turn(tmp_path, longest, turns):
    """Six ranks work longer in one step each; one of them for so long that it is not one of such delays."""
    struck = {(3, 0): longest, (0, 1): 1.13, (2, 1): 1.07, (5, 2): 1.15, (6, 2): 1.06, (7, 1): 1.06}
    run = job(tmp_path, MESH, steps=3, slower=lambda rank, step: struck.get((rank, step), 1.0))
    assert (evidence_of(prepared(run, MESH)).moving is not None) is turns


@pytest.mark.parametrize(("twice", "verdict"), [(1.05, "imbalance"), (1.25, "inconclusive")])
def test_rank_that_costs_more_than_all_others_is_open(tmp_path, twice, verdict):
    """Rank 3 works longer in two steps, six others in one step each."""
    others = {(0, 1): 1.08, (1, 2): 1.09, (2, 4): 1.08, (5, 2): 1.07, (6, 4): 1.06, (7, 1): 1.07}
    struck = others | {(3, 0): twice, (3, 3): twice * 1.02}
    found = analyse(job(tmp_path, MESH, steps=5, slower=lambda rank, step: struck.get((rank, step), 1.0)))
    assert found.verdict == verdict
    assert verdict == "imbalance" or found.candidates[0].rank == 3
