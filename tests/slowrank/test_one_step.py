"""One recorded step proves neither a slow rank nor its absence."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.slowrank.jobs import cut_at, grid, job, prepared, recorded_until
from tests.slowrank.known import known
from tests.tables.rows import events
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.answers.open_answers import leave_unseen_open
from tracekit.analysis.slowrank.decision import no_culprit
from tracekit.analysis.slowrank.decision.no_culprit import price_may_reach_the_threshold
from tracekit.analysis.slowrank.gaps.evidence_gaps import Undecided, compared_little
from tracekit.analysis.slowrank.gaps.recurrence import costs_in_others, in_one_step, others_prove_health
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen
from tracekit.case.cures import saved_ns, typical_without
from tracekit.findings import Coverage
from tracekit.rank_events.step_marks import NO_STEP


def test_an_excess_of_one_step_is_left_open(tmp_path):
    found = analyse(job(tmp_path, grid(dp=8), accident=(3, 0, 400.0), steps=1, layers=4))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert [c.rank for c in found.candidates] == [3]
    assert "record three whole steps" in found.to_decide


def test_one_even_step_is_healthy(tmp_path):
    assert analyse(job(tmp_path, grid(dp=8), steps=1, layers=4)).verdict == "healthy"


def test_a_dearer_rank_hides_behind_no_stage(tmp_path):
    slow = dict.fromkeys(
        (0, 4), 1.15
    )  # stage 0 is long on both replicas, rank 5 of another stage much longer
    run = job(tmp_path, grid(pp=4, dp=8), slow={**slow, 5: 1.8}, steps=1, layers=6)
    found = analyse(run)
    assert found.verdict in {"inconclusive", "slow_rank"}
    assert {s.rank for s in (*found.suspects, *found.candidates)} >= {5}


@pytest.mark.parametrize(("outside", "little"), [(0.3, False), (0.6, True)])
def test_one_step_of_much_compares_little(tmp_path, outside, little):
    """Windows cut the steps around the one that all ranks have whole: a fault may lie in those."""
    mesh = grid(dp=8)
    case = prepared(job(tmp_path, mesh, steps=1, layers=4), mesh)
    each = len(case.ops.per_rank[0].start)
    cut = np.arange(len(case.ops.step)) % each < outside * each  # the same operations of every rank
    for other, expected in ((NO_STEP, little), (1, False)):  # 1: the user chose step 0
        ops = replace(case.ops, step=np.where(cut, other, case.ops.step))
        assert compared_little(replace(case, ops=ops)) == expected


def test_little_compared_proves_no_health(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.analysis.slowrank.decision.gaps.compared_little", lambda _case: True)
    found = analyse(job(tmp_path, grid(dp=8), steps=1, layers=4))
    assert (found.verdict, found.candidates) == ("inconclusive", ())
    assert "record three whole steps" in found.to_decide


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_what_a_cut_step_may_cost_is_a_bound(tmp_path, part):
    """A rank works 5 % longer in one of three steps, of which windows hold a part: the rest may be as slow."""
    mesh = grid(dp=8)
    case = prepared(job(tmp_path, mesh, slow={3: 1.05}, slow_steps={2}, layers=6, steps=3, jitter=0), mesh)
    steps = replace(case.steps, cut=cut_at(case.steps, part))
    once = in_one_step(replace(case, steps=steps, found=replace(case.found, throughout=frozenset())))
    if part == 1.0:
        assert once is None
        return
    assert once is not None
    assert (case.steps.ranks[once.row], once.column) == (3, 2)
    assert once.gain == pytest.approx(float(case.found.mean[once.row]) / part, rel=0.1)
    assert not others_prove_health(case, once)


@pytest.mark.parametrize(("slow_steps", "recurs"), [({0, 1}, True), ({0}, False)])
def test_work_of_a_cut_step_tells_recurrence(tmp_path, monkeypatch, slow_steps, recurs):
    """Behind the cut nobody is seen to wait, so that the second step has no price: its work tells."""
    mesh = grid(dp=8)
    run = job(tmp_path, mesh, slow={3: 1.3}, slow_steps=slow_steps, layers=6, steps=2, jitter=0)
    case = prepared(run, mesh)
    monkeypatch.setattr("tracekit.analysis.slowrank.gaps.recurrence.saved_ns", lambda *_: 0.0)
    row = np.array([case.steps.row(3)])
    assert (
        costs_in_others(replace(case, steps=replace(case.steps, cut=cut_at(case.steps, 1.0))), row, 1e6)
        == recurs
    )
    assert not costs_in_others(case, row, 1e6)


@pytest.mark.parametrize("share", [0.6, 0.8])
@pytest.mark.parametrize("fault", ["pause", "compute", "once"])
def test_a_cut_step_changes_no_price(tmp_path, fault, share):
    """A rank pauses at each begin, computes longer, or pauses in the cut step only: as if windows had cut none."""
    mesh, found = grid(dp=8), []
    paused = {"once": [2], "pause": range(3), "compute": []}[fault]
    slow = {"slow": {3: 1.3 if fault == "compute" else 1.0}}
    slow |= {"idle": lambda rank, step: 900.0 * (rank == 3 and step in paused)}
    for name in ("whole", "cut"):
        (folder := tmp_path / name).mkdir()
        run = job(folder, mesh, layers=6, steps=3, jitter=0, **slow)
        found.append(prepared(run if name == "whole" else recorded_until(run, share), mesh))
    whole, cut = found
    assert 0.4 < cut.steps.cut.share < 0.9
    assert cut.step_ns == pytest.approx(whole.step_ns, rel=0.01)
    row = np.array([whole.steps.row(3)])
    saved, of_cut = (saved_ns(c, row, typical_without(c, row)) for c in (whole, cut))
    assert of_cut == pytest.approx(saved, rel=0.03)
    assert cut.found.mean[row] == pytest.approx(whole.found.mean[row], rel=0.03)


@pytest.mark.parametrize(("loads", "verdict"), [(False, "healthy"), (True, "inconclusive")])
def test_a_loader_that_stalls_once_stalls_again(tmp_path, loads, verdict):
    """A rank is late in one of five steps: by a kernel of its own, or because its next batch was not there."""
    run = job(tmp_path, grid(dp=8), accident=(3, 1, 4000.0))
    path = tmp_path / run.record(3).table
    rows = pq.read_table(path).to_pylist()
    (late,) = (row for row in rows if row["dur"] == 4_000_000)
    if loads:
        late |= {
            "cat": "user_annotation",
            "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        }
    pq.write_table(events(rows), path)
    found = analyse(run)
    assert found.verdict == verdict, found.reason
    assert [(c.rank, c.cause) for c in found.candidates] == ([(3, "dataloader")] if loads else [])


@pytest.mark.parametrize(("layer", "verdict"), [(0, "healthy"), (1, "inconclusive")])
def test_a_profiler_starts_at_the_begin(tmp_path, layer, verdict):
    """A device stands still in the first of three steps; in the middle of it no profiler starts."""
    run = job(
        tmp_path,
        grid(dp=8),
        steps=3,
        idle=lambda rank, step: 4_000.0 * (rank == 3 and step == 0),
        idle_before=layer,
    )
    found = analyse(run)
    assert (found.verdict, [c.rank for c in found.candidates]) == (verdict, [3] * layer)


def test_a_pause_whose_waits_are_unmatched_is_open(tmp_path, monkeypatch):
    """Curing a rank saves nothing in the model where those who wait for it wait in what was not matched."""
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, accident=(5, 1, 4000.0), steps=2, layers=6), mesh)
    case = replace(case, found=replace(case.found, throughout=frozenset()))
    monkeypatch.setattr("tracekit.analysis.slowrank.gaps.recurrence.saved_ns", lambda *_: 0.0)
    assert in_one_step(case) is None
    monkeypatch.setitem(vars(case), "coverage", Coverage(0.8, {}))
    once = in_one_step(case)
    assert once is not None
    assert (case.steps.ranks[once.row], once.column) == (5, 1)
    assert once.gain > 0.5e6


def test_one_step_comes_before_ranks_without_a_trace(tmp_path):
    """A recorded rank loses 40 ms in one step of five, 8 ms a step; half of the replicas left no trace."""
    mesh = grid(cp=2, dp=8)
    lost = tuple(rank for rank in range(16) if mesh.coords(rank)["dp"] % 2)
    case = prepared(job(tmp_path, mesh, accident=(4, 2, 40_000.0), lost=lost), mesh)
    found = leave_unseen_open(case, Unseen(31e6, 30e6, lost))
    assert found.candidates[0].rank == 4
    assert {4, *lost} == {c.rank for c in found.candidates}
    assert found.reason.endswith("in step 2 only")


@pytest.mark.parametrize("faint", [False, True])
def test_an_accident_is_not_open_for_its_rank(tmp_path, monkeypatch, faint):
    """Its excess is significant in the other steps as well, or faint, but costs nothing there."""
    mesh = grid(dp=8)
    case = prepared(job(tmp_path, mesh, accident=(3, 1, 4000.0)), mesh)
    once = in_one_step(case)
    row = case.steps.row(3)
    open_ = Undecided((row,), (Price(1e6, 1e6, 1e6),))
    others = {"stage": None, "link": None, "undecided": None if faint else open_}
    monkeypatch.setattr(no_culprit, "faint_ranks", lambda _case: open_ if faint else None)
    assert once is not None
    assert once.row == row
    assert price_may_reach_the_threshold(known(case, once=once, **others)) is None
    assert price_may_reach_the_threshold(known(case, once=None, **others)) is not None
