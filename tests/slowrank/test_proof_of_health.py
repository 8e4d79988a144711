"""A job is healthy only where the evidence proves it: else the answer is open, and names who may be slow."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job, prepared
from tests.slowrank.known import known
from tests.tables.rows import events, row
from tests.what_if.tables import unnamed
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.decision.no_culprit import stage_stands_still
from tracekit.analysis.slowrank.hypotheses import long_stage as long_stages
from tracekit.analysis.slowrank.hypotheses.data_imbalance import segments
from tracekit.analysis.slowrank.hypotheses.long_stage import long_stage
from tracekit.analysis.slowrank.price import Price

STAGES = grid(tp=2, pp=4)
LONG = {r: 1.3 for r in range(8) if STAGES.coords(r)["pp"] == 2}


def rewritten(run, rank, change):
    """`run` with every row of `rank` changed."""
    path = run.folder / next(r.table for r in run.ranks if r.rank == rank)
    pq.write_table(events([change(row) for row in pq.read_table(path).to_pylist()]), path)


def test_time_between_captures_is_nobodys_work(tmp_path):
    lines = [Timeline(0), Timeline(1)]
    for step in (10, 11, 50, 51):
        for line in lines:
            begin = line.at
            if step == 50:
                begin = line.at = line.at + 1e6 + 5000 * line.rank
            line.compute(LAYER_US)
            handle = line.post(0)
            line.finish(handle, handle[0] + TRANSFER_US)
            line.step(step, begin)
    case = prepared(write_run(tmp_path, lines, {0: (0, 1)}, {0: "dp"}, 2), grid(dp=2))
    assert segments(case)[0] == pytest.approx(segments(case)[1])


def unmarked(run, early=()):
    """`run` without step marks; the windows of the ranks `early` begin 10 ms before their first step."""
    for record in run.ranks:
        path = run.folder / record.table
        rows = [r for r in pq.read_table(path).to_pylist() if not r["name"].startswith("ProfilerStep")]
        begin = row("cpu_op", "aten::empty", -10_000, 1)
        pq.write_table(events([begin, *rows] if record.rank in early else rows), path)
    return run


@pytest.mark.parametrize(("early", "verdict"), [((), "healthy"), ((0, 1, 3), "inconclusive")])
def test_repetitions_that_ranks_time_differently_prove_nothing(tmp_path, early, verdict):
    """Rank 2's first step begins later than its peers': it would look quicker than it is."""
    finding = analyse(unmarked(job(tmp_path, grid(dp=4)), early))
    assert finding.verdict == verdict
    assert "no_step_marks" in {q.kind for q in finding.quality}
    assert ("both ranks end them together" in finding.reason) == bool(early)


def test_misses_of_ranks_do_not_cancel(tmp_path):
    mesh = grid(dp=4)
    case = prepared(job(tmp_path, mesh, slow={3: 1.3}), mesh)
    assert case.residual_ns < 0.001 * case.step_ns
    off = 0.1 * case.step_ns * np.array([[1], [-1], [1], [-1]])
    moved = replace(case, steps=replace(case.steps, wall=case.steps.wall + off))
    assert moved.step_ns == pytest.approx(case.step_ns)
    assert moved.residual_ns == pytest.approx(0.1 * case.step_ns, rel=0.02)


def test_waits_that_no_replay_gives_prove_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.case.case.Case.pinned_residual_ns", 1e9)
    finding = analyse(job(tmp_path, grid(dp=4)))
    assert (finding.verdict, finding.candidates) == ("inconclusive", ())
    assert "replay" in finding.reason


def test_a_model_that_misses_more_rules_nobody_out(tmp_path, monkeypatch):
    run = job(tmp_path, grid(dp=4))
    assert analyse(run).verdict == "healthy"
    missed = property(lambda case: 0.1 * case.step_ns)
    monkeypatch.setattr("tracekit.case.case.Case.residual_ns", missed)
    finding = analyse(run)
    assert (finding.verdict, finding.candidates) == ("inconclusive", ())
    assert "model is off by" in finding.reason


def test_a_stage_is_long_by_its_compute(tmp_path):
    case = prepared(job(tmp_path, STAGES, slow=LONG, jitter=0.002), STAGES)
    found = long_stage(case)
    assert found is not None
    assert {case.steps.ranks[r] for r in found.rows} == set(LONG)
    assert not found.idle


def test_idle_devices_make_no_long_stage(tmp_path):
    run = job(tmp_path, STAGES, slow=LONG, jitter=0.002)

    def shorter(row):
        return row | ({"dur": int(row["dur"] / 1.3)} if row["name"] == "gemm" else {})

    for rank in LONG:
        rewritten(run, rank, shorter)
    finding = analyse(run)
    assert finding.verdict == "inconclusive"  # the hosts were not recorded
    assert finding.candidates[0].cause == "cpu_launch"


def test_unmatched_waits_of_one_rank_are_left_open(tmp_path):
    mesh = grid(tp=4, dp=2)
    finding = analyse(unnamed(job(tmp_path, mesh, link={(1, 5): 12}), "dp"), dict(mesh.sizes))
    assert finding.verdict == "inconclusive"
    assert finding.candidates[0].rank in {1, 5}


def test_even_unmatched_waits_leave_a_job_healthy(tmp_path):
    mesh = grid(tp=4, dp=2)
    assert analyse(unnamed(job(tmp_path, mesh), "dp"), dict(mesh.sizes)).verdict == "healthy"


def test_unnamed_groups_may_hold_the_missing_rank(tmp_path):
    mesh = grid(tp=4, dp=2)
    run = unnamed(job(tmp_path, mesh, slow={6: 1.5}, lost=range(4, 8)), "dp")
    assert analyse(run, dict(mesh.sizes)).verdict == "inconclusive"


def test_a_profiler_makes_no_kernels_longer(tmp_path):
    finding = analyse(job(tmp_path, grid(tp=2, dp=4), slow={3: 1.5}, slow_steps={0}, steps=3))
    assert finding.verdict == "inconclusive"
    assert [c.rank for c in finding.candidates] == [3]


def test_a_stage_whose_process_pauses_is_not_healthy(tmp_path):
    """Garbage collection on the one recorded rank of a stage shows as devices that stand still."""
    case = prepared(job(tmp_path, STAGES, slow=LONG, jitter=0.002), STAGES)
    found = long_stage(case)
    paused = replace(
        found,
        idle=True,
        hosts_alike=True,
        paused={found.rows[0]: "host_stall"},
        over=2e6,
        price=Price(0.0, 1e6, 1e6),
    )
    answer = stage_stands_still(known(case, stage=paused))
    assert answer.verdict == "inconclusive"
    assert answer.candidates[0].lost_ms_high == 2.0  # a pause that is gone may save all that it took
    assert [c.rank for c in answer.candidates] == [case.steps.ranks[found.rows[0]]]
    assert answer.reason.endswith(f"because of rank {answer.candidates[0].rank}: its process pauses")
    memory = stage_stands_still(
        known(case, stage=replace(paused, paused=dict.fromkeys(found.rows[:2], "memory")))
    )
    ranks = ", ".join(str(c.rank) for c in memory.candidates)
    assert memory.reason.endswith(f"because of ranks {ranks}: it spends its time allocating memory")
    assert {c.cause for c in memory.candidates} == {"memory"}
    assert stage_stands_still(known(case, stage=replace(paused, paused={}))).verdict == "healthy"


@pytest.mark.parametrize(
    ("still", "devices", "verdict"),
    [
        (4, 4, "healthy"),  # all ranks of the stage, on two nodes
        (4, 16, "inconclusive"),  # on one node, whose host may be slow
        (3, 4, "healthy"),  # the gaps of one are of another shape, and as long
        (4, 0, "inconclusive"),  # nothing tells the nodes
    ],
)
@pytest.mark.quick(2)
def test_a_pause_on_all_nodes_is_design(tmp_path, monkeypatch, still, devices, verdict):
    monkeypatch.setattr(long_stages, "launch_pace", lambda *_: 1.0)

    def pauses(_case, rows):
        return dict.fromkeys(sorted(rows)[:still], "host_stall")

    monkeypatch.setattr(long_stages, "paused_hosts", pauses)
    mesh = grid(tp=2, pp=4, dp=2)
    long = {r: 1.3 for r in range(16) if mesh.coords(r)["pp"] == 2}
    run = job(tmp_path, mesh, slow=long, jitter=0.002)
    for rank in range(16):

        def still_longer(row, rank=rank):
            took = int(row["dur"] / 1.3) if row["name"] == "gemm" and rank in long else row["dur"]
            return row | {"dur": took, "device": rank % devices if devices else None}

        rewritten(run, rank, still_longer)
    finding = analyse(run)
    assert finding.verdict == verdict
    assert ("on every node" in finding.reason) == (verdict == "healthy")
