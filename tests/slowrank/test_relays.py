"""A pipeline stage without a trace passes work on: its results follow its inputs, so that a recorded rank is priced."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.gaps.evidence_gaps import least_ns
from tracekit.analysis.slowrank.unrecorded.unrecorded import waited_for_unseen, with_typical_unseen
from tracekit.step_graph.unseen_ranks import with_unseen

TENSOR, STAGES, MICRO, STEPS = 4, 3, 4, 3
FORWARD_US, BACKWARD_US, MESSAGE_US, REDUCE_US = 1000.0, 2000.0, 40.0, 50.0
MESH = grid(tp=TENSOR, pp=STAGES)
GROUPS = {n: tuple(range(TENSOR * n, TENSOR * (n + 1))) for n in range(STAGES)}
MIDDLE, LAST = GROUPS[1], GROUPS[2]
SUBSETS = {
    "middle": MIDDLE,
    "last": LAST,
    "first of one, last": (0, *LAST),
    "middle of one, last": (4, *LAST),
    "middle, last of one": (*MIDDLE, 8),
}


def pipeline(folder, slow, lost=()):
    """The run of a pipeline: all activations of a step, then all gradients; `slow` ranks work longer by a factor."""
    folder.mkdir()
    lines = [Timeline(rank) for rank in range(TENSOR * STAGES)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for us, way in ((FORWARD_US, 1), (BACKWARD_US, -1)):
            for micro in range(MICRO):
                for stage in range(STAGES)[::way]:
                    pass_on(lines, stage, way, us * (1.0 + 0.002 * ((micro + stage + step) % 3)), slow)
        world = [line.post(STAGES) for line in lines]
        end = max(handle[0] for handle in world) + REDUCE_US
        for line, handle, begin in zip(lines, world, begins, strict=True):
            line.finish(handle, end)
            line.step(step, begin)
    kept = [line for line in lines if line.rank not in lost]
    groups = {**GROUPS, STAGES: tuple(range(len(lines)))}
    descs = {**dict.fromkeys(GROUPS, "mesh_tp"), STAGES: "default_pg"}
    return write_run(folder, kept, groups, descs, len(lines))


def pass_on(lines, stage, way, us, slow):
    """One micro-batch on one stage: received, worked on, reduced and sent on in the direction `way`."""
    handles = []
    for line in (lines[rank] for rank in GROUPS[stage]):
        before, behind = line.rank - way * TENSOR, line.rank + way * TENSOR
        if 0 <= before < len(lines):
            end = max(line.at, lines[before].sent.pop(0)) + MESSAGE_US
            message(line, "recv", end - line.at, before, line.rank)
        line.compute(us * slow.get(line.rank, 1.0))
        handles.append((line, line.post(stage), behind))
    end = max(handle[0] for _, handle, _ in handles) + REDUCE_US
    for line, handle, behind in handles:
        line.finish(handle, end)
        if 0 <= behind < len(lines):
            line.sent = [*getattr(line, "sent", []), line.at]
            message(line, "send", MESSAGE_US, line.rank, behind)


def message(line, op, us, source, to):
    args = {"collective": op, "src_rank": source, "dst_rank": to, "in_nelems": 1 << 20, "out_nelems": 1 << 20}
    line._row(line.at, us, "kernel", "ncclDevKernel_SendRecv", dtype="Float", **args)
    line.at += us


@pytest.mark.parametrize("lost", SUBSETS.values(), ids=SUBSETS.keys())
def test_a_rank_before_unrecorded_stages_has_its_price(tmp_path, lost):
    """The messages show what the unrecorded stage does with earlier inputs: the price is that of the whole job."""
    slow = {1: 1.5}
    part, whole = (analyse(pipeline(tmp_path / n, slow, gone)) for n, gone in (("part", lost), ("whole", ())))
    assert [s.rank for s in part.suspects] == [s.rank for s in whole.suspects] == [1]
    assert part.what_if.slowdown == pytest.approx(whole.what_if.slowdown, abs=0.02)
    low, high = part.suspects[0].lost_ms_low, part.suspects[0].lost_ms_high
    assert low <= whole.suspects[0].lost_ms_per_step <= high


@pytest.mark.parametrize("lost", SUBSETS.values(), ids=SUBSETS.keys())
def test_relays_give_the_recorded_steps(tmp_path, lost):
    case = prepared(pipeline(tmp_path / "run", {1: 1.5}, lost), MESH)
    model = with_unseen(case, case.timeline, case.found, {}).model
    assert model.missed_ns(case) < 0.001 * case.step_ns
    assert model.recorded_ns == pytest.approx(case.step_ns, rel=0.001)


def test_all_are_relays_where_copies_leave_waits(tmp_path, monkeypatch):
    """Rank 7 as a copy of 6 needs messages of stage 2, which no trace of its pipeline shows."""
    monkeypatch.setattr("tests.slowrank.test_relays.TENSOR", 2)
    monkeypatch.setattr("tests.slowrank.test_relays.STAGES", 4)
    monkeypatch.setattr("tests.slowrank.test_relays.GROUPS", {n: (2 * n, 2 * n + 1) for n in range(4)})
    part, whole = (
        analyse(pipeline(tmp_path / n, {1: 1.5}, gone)) for n, gone in (("part", (4, 5, 7)), ("whole", ()))
    )
    assert [s.rank for s in part.suspects] == [s.rank for s in whole.suspects] == [1]
    low, high = part.suspects[0].lost_ms_low, part.suspects[0].lost_ms_high
    assert whole.suspects[0].lost_ms_per_step / 2 < low <= whole.suspects[0].lost_ms_per_step <= high


@pytest.mark.parametrize("lost", [MIDDLE, LAST], ids=["middle", "last"])
def test_a_slow_rank_of_an_unrecorded_stage_is_awaited(tmp_path, lost):
    """Its results come later than those of a stage that works like recorded ones."""
    run = pipeline(tmp_path / "run", {lost[1]: 1.5}, lost)
    case = with_typical_unseen(prepared(run, MESH))
    assert waited_for_unseen(case, case.steps.own).awaited > case.threshold_ns
    found = analyse(run)
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert set(lost) & {c.rank for c in found.candidates}


def test_a_typical_stage_without_traces_is_not_awaited(tmp_path):
    case = with_typical_unseen(prepared(pipeline(tmp_path / "run", {1: 1.5}, MIDDLE), MESH))
    assert waited_for_unseen(case, case.steps.own).awaited < case.threshold_ns


def test_relays_as_slow_as_recorded_give_the_least_price(tmp_path):
    case = with_typical_unseen(prepared(pipeline(tmp_path / "run", {1: 1.5}, MIDDLE), MESH))
    rows = np.array([1])
    assert least_ns(case, rows) <= least_ns(replace(case, slowest=None), rows) * 1.001


def test_no_results_without_inputs(tmp_path):
    """The first stages of a pipeline get no inputs that show when they could begin."""
    case = prepared(pipeline(tmp_path / "run", {9: 1.5}, GROUPS[0]), MESH)
    assert with_unseen(case, case.timeline, case.found, {}) is None
