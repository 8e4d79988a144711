"""A rank without a trace may be the culprit; the others are never blamed for waiting for it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.paired.other_evidence import simulated
from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.known import known
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.answers import open_answers
from tracekit.analysis.slowrank.decision.decide import first_of
from tracekit.analysis.slowrank.gaps.evidence_gaps import undecided
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.unrecorded import unrecorded
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen, waited_for_unseen
from tracekit.expected import sound_transfers
from tracekit.ingest import load
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.step_graph.relays import least_transfers

MESH = grid(tp=2, dp=4)


def test_a_culprit_without_trace_leaves_the_answer_open(tmp_path):
    finding = analyse(job(tmp_path, MESH, slow={5: 1.5}, lost={5}))
    assert finding.verdict == "inconclusive"
    assert finding.suspects == ()
    assert "rank 5, which left no trace; add its trace" in finding.reason
    assert finding.ranks.missing == (5,)


def test_every_rank_that_may_be_slow_is_listed(tmp_path):
    """Each of ten ranks without a trace may be the one; the text shows the first few, and says which follow."""
    lost = set(range(1, 11))
    finding = analyse(job(tmp_path, grid(dp=12), slow={10: 4.0}, lost=lost))
    assert {c.rank for c in finding.candidates} == lost
    assert "wait" in finding.reason
    assert f"to {finding.candidates[0].lost_ms_high:.1f} ms of" in finding.reason
    shown = dict(slowrank_lines(finding))["candidate"]
    assert shown == "… and 2 more, ranks 9-10 (--verbose lists them)"
    assert dict(slowrank_lines(finding, verbose=True))["candidate"].startswith("rank 10 ")


def test_a_missing_innocent_rank_does_not_stop_the_answer(tmp_path):
    finding = analyse(job(tmp_path, MESH, slow={5: 1.5}, lost={2}))
    assert finding.verdict == "slow_rank"
    assert [s.rank for s in finding.suspects] == [5]
    assert finding.ranks.missing == (2,)


def test_a_healthy_job_without_one_rank_is_healthy(tmp_path):
    assert analyse(job(tmp_path, MESH, lost={2})).verdict == "healthy"


def test_what_the_unseen_rank_costs_is_measured(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    case = prepared(job(tmp_path / "a", MESH, slow={5: 1.5}, lost={5}, jitter=0), MESH)
    absent = waited_for_unseen(case, case.steps.own)
    assert (
        absent.awaited >= 0.9 * 3 * 500_000
    )  # three layers in which its tp partner waits half a millisecond
    present = prepared(job(tmp_path / "b", MESH, slow={5: 1.5}, jitter=0), MESH)
    assert absent.ranks[0] == 5
    assert waited_for_unseen(present, present.steps.own) == Unseen(0.0, 0.0, ())


@pytest.mark.parametrize(("slow", "waited"), [(1.0, False), (1.5, True)])
def test_a_stage_that_waits_by_design_waits_for_nobody(tmp_path, slow, waited):
    """The first stage comes last to every sum of both stages: its missing rank delays others only by its slowness."""
    mesh = grid(pp=2, dp=4)
    work = {r: 1.5 for r in mesh.coordinates if mesh.stage(r) == 0}
    lost = next(iter(work))
    run = job(tmp_path, mesh, work=work, slow={lost: slow}, lost={lost}, jitter=0, layers=2)
    case = prepared(run, mesh)
    found = waited_for_unseen(case, case.steps.own)
    assert (found.awaited > 1e6) == (found.most > 4 * 0.75e6) == waited


def test_one_rank_alone_is_compared_with_nobody(tmp_path):
    finding = analyse(job(tmp_path, grid(dp=3), lost={0, 2}))
    assert finding.verdict == "inconclusive"
    assert finding.reason == "only rank 1 was read, so it cannot be compared; add the other ranks' traces"


@pytest.mark.parametrize("lost", range(8))
@pytest.mark.quick(1)
def test_whoever_is_lost_nobody_else_is_named(tmp_path, lost):
    finding = analyse(job(tmp_path, MESH, slow={3: 1.4}, lost={lost}))
    assert [s.rank for s in finding.suspects] == ([] if lost == 3 else [3])


ODD = {1, 3, 5, 7}


def test_one_rank_a_tensor_group_leaves_the_culprit_open(tmp_path):
    finding = analyse(job(tmp_path, MESH, slow={5: 1.5}, lost=ODD))
    assert finding.verdict == "inconclusive"
    assert finding.candidates[0].rank == 5


def test_one_rank_a_tensor_group_finds_a_recorded_culprit(tmp_path):
    finding = analyse(job(tmp_path, MESH, slow={4: 1.5}, lost=ODD))
    assert [s.rank for s in finding.suspects] == [4]


def test_one_rank_a_tensor_group_can_be_healthy(tmp_path):
    assert analyse(job(tmp_path, MESH, lost=ODD)).verdict == "healthy"


@pytest.mark.parametrize("slow", [{}, {5: 1.5}])
def test_one_replica_alone_is_never_called_healthy(tmp_path, slow):
    mesh = grid(tp=2, dp=2)
    finding = analyse(job(tmp_path, mesh, slow={r - 4 + 2: v for r, v in slow.items()}, lost={2, 3}))
    assert finding.verdict == "inconclusive"
    assert "which left no trace" in finding.reason
    assert finding.ranks.missing == (2, 3)


def test_recorded_waits_outweigh_an_innocent(tmp_path):
    """A recorded rank is a little slow, an unrecorded one much more: the dearer one leaves the answer open."""
    finding = analyse(job(tmp_path, MESH, slow={5: 1.6, 2: 1.1}, lost={5}))
    assert finding.verdict == "inconclusive"
    assert "rank 5, which left no trace" in finding.reason


def test_a_slow_recorded_rank_is_a_candidate_too(tmp_path):
    """Rank 1 is slow and recorded, its tensor partner 0 is not: most waits for rank 1 cannot be matched."""
    lost = {0, 3, 7}
    finding = analyse(job(tmp_path, MESH, slow={1: 1.5}, lost=lost))
    named = finding.suspects or finding.candidates
    assert named[0].rank == 1


def test_a_decoy_is_not_named_beside_an_unseen_culprit(tmp_path):
    """All wait for rank 1, which left no trace; of the others rank 2 is the slowest, and nothing tells it apart."""
    found = analyse(job(tmp_path, grid(dp=4), slow={1: 4.0, 2: 1.3}, lost={1}))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert {c.rank for c in found.candidates} == {1, 2}


def test_a_network_bounds_transfers_of_known_size(tmp_path):
    """50 µs is a transfer on any network: whoever came last of those recorded came last of all."""
    found = analyse(job(tmp_path, grid(dp=4), slow={2: 1.3}, lost={1}))
    assert [s.rank for s in found.suspects] == [2]


@pytest.mark.parametrize(("slow", "named"), [({1: 1.9, 2: 1.2}, []), ({2: 1.2}, [2])])
def test_one_message_takes_one_network_equally_long(tmp_path, monkeypatch, slow, named):
    """Transfers of 50 µs last 0.7 ms in some steps, as on no network: there ranks may wait for rank 1, unseen."""
    monkeypatch.setattr(sound_transfers, "bytes_of", lambda _: 1000)
    found = analyse(job(tmp_path, grid(dp=4), slow=slow, slow_steps={0, 2, 4}, lost={1}))
    assert [s.rank for s in found.suspects] == named


@pytest.mark.parametrize(("late", "verdict"), [(2000, "inconclusive"), (1000, "slow_rank"), (0, "slow_rank")])
def test_operations_of_one_group_move_bytes_alike(tmp_path, late, verdict):
    """Of two collectives of one size only the first waits for rank 1, unseen: it lasts longer than the other.

    Rank 2 delays the other one by 0.3 ms, which counts, whatever the lateness of rank 1 costs.
    """
    lines = [Timeline(rank) for rank in range(4)]
    sized = {"dtype": "BFloat16", "in_nelems": 1 << 24, "out_nelems": 1 << 24}
    for step in range(4):
        begins = [line.at for line in lines]
        for op in ("reduce_scatter", "all_gather"):
            handles = []
            for line in lines:
                line.compute(1000 + (300 if line.rank == 2 else 0) + line.rank + step)
                line.compute(late if line.rank == 1 and op == "reduce_scatter" else 1)
                handles.append(line.post(0, op))
            end = max(h[0] for h in handles) + 200
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end, **sized)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    kept = [line for line in lines if line.rank != 1]
    found = analyse(write_run(tmp_path, kept, {0: (0, 1, 2, 3)}, {0: "dp"}, 4))
    assert (found.verdict, [s.rank for s in found.suspects or found.candidates][:1]) == (verdict, [2])
    assert found.verdict == "inconclusive" or not late or found.suspects[0].lost_ms_low <= 0.3


@pytest.mark.parametrize("sized", [{}, {"dtype": "Float", "in_nelems": 1 << 20}])
def test_other_stages_show_no_transfer_of_unknown_size(tmp_path, sized):
    """Rank 1 left no trace; the groups of the other two stages are complete, and may move other sizes."""
    mesh = grid(dp=3, pp=3)
    case = prepared(job(tmp_path, mesh, lost={1}, silent={"pp"}, sized=sized, jitter=0), mesh)
    _, shown = least_transfers(case)
    assert (shown[case.ops.of(4)] == bool(sized)).all()


def test_time_beside_unseen_ranks_is_bounded_by_the_step(tmp_path):
    """Operations of unknown members that overlap add up to four steps on each rank."""
    mesh = grid(dp=4)
    case = prepared(job(tmp_path, mesh, lost={1}), mesh)
    alone = np.full_like(case.ops.channel, -1)
    count = np.bincount(case.ops.rank[case.analysed], minlength=4)[case.ops.rank]
    exposed = (4 * case.step_ns * len(case.steps.numbers) / count).astype(np.int64)
    found = waited_for_unseen(
        replace(case, ops=replace(case.ops, channel=alone, exposed=exposed)), case.steps.own
    )
    assert found.most <= case.step_ns


@pytest.mark.parametrize(("awaited", "said"), [(0.005, "imbalance"), (0.017, "inconclusive")])
def test_a_stage_needs_more_than_unseen_ranks_hold_up(tmp_path, awaited, said):
    """A stage costs 2.6 % of the step; unseen ranks may cost 30 %, and hold others up for `awaited` of it at least."""
    mesh = grid(pp=3, dp=2)
    case = prepared(job(tmp_path, mesh, jitter=0), mesh)
    price = 0.026 * case.step_ns
    stage = LongStage((0, 1), 9.0, price, Price(price, price, price))
    unseen = Unseen(0.3 * case.step_ns, awaited * case.step_ns, (4,))
    assert first_of(known(case, stage=stage, unseen=unseen)).verdict == said


def test_all_unseen_ranks_of_a_group_are_named(tmp_path):
    """Two members of a tensor group are lost, and one of them made its data group wait less than usual."""
    mesh = grid(tp=4, dp=3)
    case = prepared(job(tmp_path, mesh, lost={4, 6}), mesh)
    rows = {c.members: int(np.flatnonzero(case.ops.channel == c.number)[0]) for c in case.ops.channels}
    over = {rows[4, 5, 6, 7]: 10.0, rows[2, 6, 10]: -20.0, rows[0, 4, 8]: 1.0}
    assert unrecorded._behind(case, np.array([*over]), np.array([*over.values()])) == (4, 6)
    assert unrecorded._behind(case, np.array([rows[0, 4, 8]]), np.array([1.0])) == (4,)


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", ["healthy", "long_stage"])
def test_messages_to_unrecorded_ranks_prove_no_health(tmp_path, fault):
    """Two ranks of twelve, whose traces name no group: those to whom they send may be slow."""
    simulated(fault, "two", tmp_path / "traces")
    found = analyse(load([str(tmp_path / "traces")], jobs=1))
    assert found.verdict == "inconclusive"
    assert len(found.ranks.missing) > found.ranks.read


@pytest.mark.parametrize(("awaited", "high"), [(0.2e6, 0.3), (9e6, 1.8)])
def test_a_rank_behind_unrecorded_ones_may_cost_more(tmp_path, monkeypatch, awaited, high):
    """Rank 4 works 1.8 ms longer, and alone costs up to 0.1; all may wait for its mate, which left no trace."""
    case = prepared(job(tmp_path, MESH, slow={4: 1.3, 5: 1.6}, lost={5}), MESH)
    alone = replace(undecided(case), prices=(Price.up_to(0.1e6),))
    monkeypatch.setattr(open_answers, "undecided", lambda _: alone)
    first, mate = open_answers.leave_unseen_open(case, Unseen(awaited, 0.0, (5,))).candidates
    assert (first.rank, mate.rank) == (4, 5)
    assert first.lost_ms_high == pytest.approx(high, abs=0.01)
