"""Kernels beside communication that waits are longer on all ranks but the late one, whose lateness counts whole."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.candidates import those_that_cost
from tracekit.case.case import Case
from tracekit.case.cures import not_awaited, saved_ns, typical_without
from tracekit.expected import contention as spun_longer
from tracekit.expected.contention import Spun, relieved
from tracekit.steps.step_kernels import StepKernels

RANKS, STEPS, LAYERS, TRANSFER = 6, 4, 8, 50.0
WORLD, SIDE, BUSY = 0, 1, 2
SPEED = 1.3
"""How much longer a kernel takes while it shares the device."""


def stretched(us, shared):
    """How long a kernel of `us` takes whose first `shared` µs are beside communication."""
    return us + min(shared * (1 - 1 / SPEED), us * (SPEED - 1))


def spinning(folder, pause, late=2, work=1.0, busy=(), steps=range(STEPS), lost=()):
    """The host of one rank is `pause` µs late for each of the all-reduces that run beside work; ranks end together.

    `work` scales the kernels of that rank, and its host pauses in `steps`. The ranks `busy` transfer beside their other
    kernel, and wait for none. The ranks `lost` leave no trace.
    """
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for layer in range(LAYERS):
            for line in lines:
                if line.rank in busy:
                    line.beside(BUSY, 575.0, step * LAYERS + layer, op="all_reduce")
                line.compute(stretched(500 * (work if line.rank == late else 1), 575.0 * (line.rank in busy)))
                line.at += pause if line.rank == late and step in steps else 0
            last = max(line.at for line in lines)
            for line in lines:
                shared = last + TRANSFER - line.at
                line.beside(SIDE, shared, step * LAYERS + layer, op="all_reduce")
                line.compute(stretched(1500 * (work if line.rank == late else 1), shared))
            handles = {line.rank: line.post(WORLD) for line in lines} if layer % 4 == 3 else {}
            for line in lines if handles else ():
                line.finish(handles[line.rank], max(at for at, *_ in handles.values()) + TRANSFER)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    groups = {WORLD: tuple(range(RANKS)), SIDE: tuple(range(RANKS)), BUSY: busy or (0, 1)}
    kept = [line for line in lines if line.rank not in lost]
    return write_run(folder, kept, groups, {WORLD: "mesh_dp", SIDE: "side", BUSY: "busy"}, RANKS)


def broadcasting(folder, work):
    """Ranks 0 and 2 broadcast beside compute, pairs (0, 1) and (2, 3) wait for each other; `work` is that of rank 3."""
    lines = [Timeline(rank) for rank in range(4)]
    groups = {WORLD: (0, 1, 2, 3), SIDE: (0, 2), 2: (0, 1), 3: (2, 3)}

    def together(number):
        handles = {rank: lines[rank].post(number) for rank in groups[number]}
        for rank, handle in handles.items():
            lines[rank].finish(handle, max(at for at, *_ in handles.values()) + TRANSFER)

    for step in range(STEPS):
        begins = [line.at for line in lines]
        for layer in range(LAYERS):
            for line in lines:
                line.compute(1500 * (work if line.rank == 3 else 1))
            together(2)
            together(3)
            end = max(lines[rank].at for rank in groups[SIDE]) + TRANSFER
            for line in lines:
                shared = end - line.at if line.rank in groups[SIDE] else 0.0
                if shared:
                    line.beside(SIDE, shared, step * LAYERS + layer)
                line.compute(stretched(1500 * (work if line.rank == 3 else 1), shared))
        together(WORLD)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    names = {WORLD: "mesh_dp", SIDE: "side", 2: "mesh_cp", 3: "mesh_cp"}
    return write_run(folder, lines, groups, names, 4)


def lasts(folder, pause, **more):
    """Mean length of a step, ns."""
    return prepared(spinning(folder, pause, **more), grid(dp=RANKS)).step_ns


@pytest.mark.parametrize(("pause", "work"), [(150, 1.0), (300, 1.0), (20, 1.15)])
@pytest.mark.quick(1)
def test_the_price_counts_what_waiting_adds(tmp_path, pause, work):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    usual = lasts(folders[0], 0)
    run = spinning(folders[1], pause, work=work)
    found = analyse(run)
    assert [s.rank for s in found.suspects] == [2]
    truth = prepared(run, grid(dp=RANKS)).step_ns / usual
    assert found.what_if.slowdown == pytest.approx(truth, abs=0.005)


@pytest.mark.quick(1)
def test_a_cure_leaves_what_transfers_add(tmp_path):
    """Ranks 4 and 5 have longer kernels by their own transfers: they are the longest once rank 2 is cured."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    usual = lasts(folders[0], 0, busy=(4, 5))
    run = spinning(folders[1], 300, busy=(4, 5))
    found = analyse(run)
    truth = prepared(run, grid(dp=RANKS)).step_ns - usual
    assert [s.rank for s in found.suspects] == [2]
    assert found.suspects[0].lost_ms_per_step == pytest.approx(truth / 1e6, rel=0.1)


def test_the_least_price_keeps_what_waits_add(tmp_path):
    """What waits add to kernels of the others may stay where it delays the step, although its total is known."""
    run = spinning(tmp_path, 300)
    case, (found,) = prepared(run, grid(dp=RANKS)), analyse(run).suspects
    rows, own = np.array([case.steps.row(found.rank)]), case.steps.own.copy()
    own[rows] = typical_without(case, rows)[rows]
    assert found.lost_ms_low <= saved_ns(case, rows, own) / 1e6 < 0.9 * found.lost_ms_per_step


def test_the_least_price_allows_for_drift(tmp_path, monkeypatch):
    run = spinning(tmp_path, 300)
    (found,) = analyse(run).suspects
    monkeypatch.setattr(Case, "base_ns", property(lambda case: case.step_ns + 1e6))
    assert analyse(run).suspects[0].lost_ms_low < found.lost_ms_low - 0.3


def test_unmatched_transfers_do_not_wait_for_the_cured(tmp_path):
    """Rank 4 transfers to rank 5 and waits for rank 2; without the trace of rank 5 it waits for rank 2 no longer."""
    waiting = []
    for lost in ((), (5,)):
        (folder := tmp_path / str(lost)).mkdir()
        case = prepared(spinning(folder, 300, busy=(4, 5), lost=lost), grid(dp=RANKS))
        waiting.append(case.met.spun.waiting[4].mean())
    assert waiting[1] == pytest.approx(waiting[0], rel=0.1)


@pytest.mark.parametrize("kernels", [16, 15])
@pytest.mark.parametrize("slow", [(1.4, 1.0, 1.0, 1.4), (1.0, 1.4, 1.4, 1.0)])
def test_a_rank_slow_at_times_shows_what_sharing_adds(slow, kernels):
    """Kernels lose a fifth of the time that they share; only rank 5 does not share, and it is slow in two steps.

    Windows may cut the last step, so that it lacks a kernel.
    """
    read = {}
    for rank in range(6):
        shared = np.tile([0.0, 60.0, 60.0, 60.0] if rank < 5 else [0.0] * 4, 4)
        pace = np.repeat(slow if rank == 5 else [1.0] * 4, 4)
        column, name = np.repeat(np.arange(4), 4), np.array(["gemm"] * 16)
        every = StepKernels(column, name, (100 + shared / 5) * pace, shared, np.ones(16, bool), np.arange(16))
        read[rank] = every.taken(slice(kernels))
    shares = np.array([1.0, 1.0, 1.0, (kernels - 12) / 4])
    run = SimpleNamespace(kernels=read.get, steps=SimpleNamespace(numbers=range(4), shares=shares))
    found = spun_longer.stretched(run, list(read))
    each = [36.0, 36.0, 36.0, 12.0 * (kernels - 13)]
    assert found == pytest.approx(np.outer([1, 1, 1, 1, 1, 0], each), abs=0.1)


def test_ranks_not_read_follow_each_step(monkeypatch):
    within, own = np.array([[10.0, 60.0]] * 24), np.full((24, 2), 99.0)
    within[:3] = 0.0
    monkeypatch.setattr(spun_longer, "stretched", lambda _run, rows: within[rows] / 5)
    run = SimpleNamespace(steps=SimpleNamespace(own=own))
    found = spun_longer._of_stage(run, np.arange(3), np.arange(3, 24), within)
    assert found == pytest.approx(within / 5)


def test_evidence_tells_what_waiting_adds(tmp_path):
    found = analyse(spinning(tmp_path, 300))
    told = {e.what: (e.value, e.peers_median) for e in found.suspects[0].evidence}
    mine, peers = told["compute added by overlapping communication"]
    assert mine <= LAYERS * TRANSFER * (1 - 1 / SPEED) / 1000
    assert peers > 0.5


def test_a_rank_beside_broadcasts_that_wait_is_not_slow(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    usual, slow = (
        prepared(broadcasting(f, w), grid(cp=2, dp=2)) for f, w in zip(folders, (1.0, 1.2), strict=True)
    )
    found = analyse(slow.run)
    assert [s.rank for s in found.suspects] == [3]
    assert found.what_if.slowdown == pytest.approx(slow.step_ns / usual.step_ns, abs=0.015)


def test_nobody_is_late_where_all_wait_alike(tmp_path):
    assert analyse(spinning(tmp_path, 0)).verdict == "healthy"


def test_only_the_stage_of_the_cured_is_relieved():
    spun = np.array([[1.0], [5.0], [5.0], [7.0], [7.0]])
    own = np.full((5, 1), 100.0)
    stages = [np.array([0, 1, 2]), np.array([3, 4])]
    added = Spun(spun, spun)
    assert relieved(added, own, stages, np.array([0])).ravel().tolist() == [100, 96, 96, 100, 100]
    assert relieved(Spun(spun * np.nan, spun), own, stages, np.array([0])).ravel().tolist() == [100] * 5
    unknown = np.full_like(spun, np.nan)  # of a step without any rank that shows it
    wide = np.hstack([spun, unknown])
    wider = relieved(Spun(wide, wide), np.hstack([own, own]), stages, np.array([0]))
    assert wider.tolist() == [[v, 100.0] for v in (100, 96, 96, 100, 100)]


def test_waits_in_one_step_lengthen_kernels_of_that_step(tmp_path):
    case = prepared(spinning(tmp_path, 600, steps=[1]), grid(dp=RANKS))
    longer, computed = case.met.spun.longer, case.computed
    added = computed[0, 1] - computed[2, 1]
    assert longer[0, 1] - longer[2, 1] == pytest.approx(added, rel=0.05)
    assert np.abs(longer[:, [0, 2, 3]]).max() < 0.1 * added  # what transfers add


def test_kernels_of_all_stages_count_together(tmp_path):
    """What waiting adds may be too little to cost anything in one stage, but a cure relieves all of a pipeline."""
    run = spinning(tmp_path, 20)
    flat, piped = (prepared(run, mesh).met.spun.longer for mesh in (grid(dp=RANKS), grid(pp=2, dp=3)))
    assert np.isnan(flat).all()
    assert np.isfinite(piped[[0, 2, 4]]).all()


def test_kernels_keep_what_transfers_add():
    spun, own = np.array([[1.0], [5.0], [5.0]]), np.full((3, 1), 100.0)
    waiting = np.array([[0.0], [2.0], [4.5]])
    left = relieved(Spun(spun, waiting), own, [np.arange(3)], np.array([0]))
    assert left.ravel().tolist() == [100, 98, 96]


def test_waits_for_one_rank_do_not_make_another_costly(tmp_path):
    case = prepared(broadcasting(tmp_path, 1.2), grid(cp=2, dp=2))
    assert those_that_cost(case, np.array([3, 1])).rows == (3,)


def test_a_cure_relieves_other_pipelines_in_all_stages(tmp_path):
    """What waits for one rank also waits for the ranks behind it in its pipeline."""
    case = prepared(spinning(tmp_path, 0), grid(pp=2, dp=3))
    first, other = (stage.tolist() for stage in case.stages)
    (late, *_), (mate, *peers) = first, sorted(other, key=lambda row: row not in case.line_of(first[0]))
    longer = np.full(case.steps.own.shape, 3_000.0)
    longer[late] = longer[mate] = 1_000.0
    case = replace(case, met=replace(case.met, spun=Spun(longer, longer)))
    saved = case.steps.own - not_awaited(case, case.steps.own, np.array([late]))
    assert (saved[peers] == 2_000).all()
    assert (saved[[late, mate]] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_which_ranks_are_read_follows_no_numbering(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    shared, own = rng.uniform(5, 9, 24), rng.uniform(90, 99, (24, 1))
    shared[:3] = rng.uniform(0, 1, 3)
    asked = []

    def stretched(_run, rows):
        asked.append(rows)
        return np.ones((len(rows), 1))

    monkeypatch.setattr(spun_longer, "stretched", stretched)
    for order in (np.arange(24), rng.permutation(24)):
        new = np.argsort(order)  # where each rank stands
        run = SimpleNamespace(steps=SimpleNamespace(own=own[order]))
        spun_longer._of_stage(run, np.sort(new[:3]), np.sort(new[3:]), shared[order][:, None])
        asked[-1] = sorted(order[asked[-1]].tolist())
    assert asked[0] == asked[1]


def test_ranks_not_read_follow_what_they_share(monkeypatch):
    """Kernels lose a fifth of the time that communication shares with them, on ranks that are read and on others."""
    shared, own = np.full(24, 10.0), np.full((24, 1), 99.0)
    shared[5:17] = 60.0  # these communicate beside their compute, and wait no longer than the others do
    monkeypatch.setattr(spun_longer, "stretched", lambda _run, rows: shared[rows][:, None] / 5)
    run = SimpleNamespace(steps=SimpleNamespace(own=own))
    found = spun_longer._of_stage(run, np.arange(3), np.arange(3, 24), shared[:, None])
    assert found.ravel() == pytest.approx(shared / 5)
