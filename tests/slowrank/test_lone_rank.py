"""A rank that is alone on its stage is told from a stage with more work by what all stages run."""

import pytest

from tests.breakdown.runs import made
from tests.slowrank.jobs import grid, job, prepared
from tests.tables import gloo
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses import lone_rank
from tracekit.analysis.slowrank.hypotheses.long_stage import long_stage

LINE = grid(pp=5)


def test_a_device_slow_in_every_kernel_is_named(tmp_path):
    found = analyse(job(tmp_path, LINE, slow={2: 1.3}))
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", "gpu_compute", [2])
    assert "1.30 times as long" in found.reason
    assert found.what_if.slowdown > 1.2


@pytest.mark.parametrize("lost", [(0, 5), (5,)])
def test_reproduced_waits_prove_what_a_lone_device_costs(tmp_path, lost):
    """The model explains waits that were not matched; with their recorded lengths a cure would save nothing."""
    found = analyse(job(tmp_path, grid(tp=2, pp=4), slow={4: 1.3}, lost=lost, steps=5))
    assert [s.rank for s in found.suspects] == [4]
    (suspect,) = found.suspects
    assert suspect.lost_ms_low > 0.9 * suspect.lost_ms_per_step
    assert suspect.lost_ms_low < 1.775 < suspect.lost_ms_high  # what all traces show


def test_more_kernels_are_more_work(tmp_path):
    """One more kernel a step, of a name that no other stage runs."""
    found = analyse(job(tmp_path, LINE, accident=(2, None, 1500)))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("imbalance", [2])
    assert "or its rank 2 is slow" in found.reason


def test_stages_of_several_ranks_tell_by_their_peers(tmp_path):
    mesh = grid(tp=2, pp=4)
    case = prepared(job(tmp_path, mesh, slow=dict.fromkeys((2, 3), 1.3)), mesh)
    assert long_stage(case) is not None
    assert lone_rank.lone_faults(case) == []


@pytest.mark.parametrize(
    ("pace", "cause"), [((30.0, 10.0), "cpu_launch"), ((10.0, 10.0), None), (None, None)]
)
def test_a_host_must_launch_more_slowly(tmp_path, monkeypatch, pace, cause):
    case = prepared(job(tmp_path, LINE, idle=lambda rank, step: 900.0 * (rank == 2)), LINE)
    monkeypatch.setattr(lone_rank, "pace_among", lambda *_: pace)
    monkeypatch.setattr(lone_rank, "_cause_of_gaps", lambda *_: None)
    faults = lone_rank.lone_faults(case)
    assert [found.cause for found in faults] == [cause] * (cause is not None)
    for found in faults:
        assert found.gain == pytest.approx(900_000, rel=0.05)


@pytest.mark.parametrize("longest", [1, 3])
def test_pauses_are_no_hosts_ahead(tmp_path, monkeypatch, longest):
    """A stage with more work, at 1 or 3, hides no host that pauses in every step; its pace is that of the others."""
    monkeypatch.setattr(lone_rank, "pace_among", lambda *_: (10.0, 10.0))

    def idle(rank, step):
        return 4000.0 if rank == 2 else 0.0

    run = job(tmp_path, LINE, idle=idle, accident=(longest, None, 1500))
    found = analyse(run)
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", "host_stall", [2])


def test_longer_pause_of_another_hides_no_pauses(tmp_path, monkeypatch):
    """Rank 2 pauses in every step, and rank 1 once for longer."""
    monkeypatch.setattr(lone_rank, "pace_among", lambda *_: (10.0, 10.0))
    once = {(1, 2): 5000.0}
    found = analyse(job(tmp_path, LINE, idle=lambda r, step: 4000.0 if r == 2 else once.get((r, step), 0.0)))
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", "host_stall", [2])


def test_an_accident_changes_no_long_stage(tmp_path):
    """Rank 3 stands still for several steps in one of five; the stage of rank 1 is the longest in each of them."""
    (tmp_path / "once").mkdir()
    (tmp_path / "never").mkdir()
    idle = {"once": lambda r, step: 30_000.0 * ((r, step) == (3, 2)), "never": lambda r, step: 0.0}
    found = [analyse(job(tmp_path / n, LINE, accident=(1, None, 1500), idle=idle[n])) for n in idle]
    assert [(f.verdict, f.cause, [s.rank for s in f.suspects]) for f in found] == [
        ("imbalance", "stage_imbalance", [1])
    ] * 2


@pytest.mark.parametrize(("stages", "rank", "named"), [(2, 1, [1]), (5, 0, [])])
def test_hosts_of_the_first_stage_run_ahead_nowhere(tmp_path, monkeypatch, stages, rank, named):
    """At the begin of a step every host does what delays the first stage; on a later stage it is a pause."""
    monkeypatch.setattr(lone_rank, "pace_among", lambda *_: (10.0, 10.0))
    found = analyse(job(tmp_path, grid(pp=stages), idle=lambda r, step: 4000.0 * (r == rank)))
    assert ([s.rank for s in found.suspects], found.verdict == "slow_rank") == (named, bool(named))


def test_slow_steps_of_a_device_are_priced(tmp_path):
    calm = analyse(job(tmp_path, LINE))
    found = analyse(job(tmp_path, LINE, slow={2: 1.8}, slow_steps={1, 3}))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [2])
    assert found.suspects[0].steps == (1, 3)
    assert found.what_if.without_suspects_ms == pytest.approx(calm.what_if.step_ms, rel=0.01)


def cpu_pipeline(folder, slept=0.0):
    """A pipeline of four stages on Gloo: rank 2 sleeps µs before its forward and its backward work of each step."""
    ranks = {r: [] for r in range(4)}
    free, begun = dict.fromkeys(ranks, 10.0), {r: [] for r in ranks}
    for step in range(5):
        for rank, at in free.items():
            begun[rank].append(at)
        for order, toward in (((0, 1, 2, 3), 1), ((3, 2, 1, 0), -1)):
            arrived = None
            for rank in order:
                if arrived is not None:
                    until = max(arrived, free[rank] + 20)
                    ranks[rank] += gloo.message("recv", free[rank], until, rank - toward)
                    free[rank] = until
                takes = 1000.0 * (1 + 0.004 * ((rank * 7 + step * 5) % 11))
                at = free[rank] + (slept if rank == 2 else 0.0)
                ranks[rank].append(gloo.operator("aten::mm", at, takes))
                free[rank] = arrived = at + takes + 60
                if rank != order[-1]:
                    ranks[rank] += gloo.message("send", at + takes, arrived, rank + toward)
    for rank, begins in begun.items():
        ends = [*begins[1:], free[rank]]
        ranks[rank] += gloo.steps(*((b, e - b) for b, e in zip(begins, ends, strict=True)))
    return made(folder, ranks, groups={0: tuple(range(4))}, axis="pp", world=4)


def test_a_sleeping_host_is_no_long_stage(tmp_path):
    """Its operators take as long as those of the other stages, so that it has no more work than they."""
    found = analyse(cpu_pipeline(tmp_path, slept=2000.0))
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", "host_stall", [2])
    assert found.what_if.slowdown > 1.2
