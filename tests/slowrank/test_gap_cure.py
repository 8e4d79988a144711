"""A cure of gaps takes time from the longest ones, and leaves all else as it was."""

from itertools import pairwise

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank.answers.imbalance_answers import blame_stage
from tracekit.analysis.slowrank.hypotheses.long_stage import long_stage
from tracekit.case.cures import _longest, without_gaps
from tracekit.step_graph.replay import StepModel

STAGES, STEPS, BATCHES, WORK, SENT = 4, 3, 4, 1000.0, 20.0
LOADS = 3000.0


def test_the_longest_gaps_are_cut_first():
    begin, end = np.array([0, 100, 300]), np.array([10, 200, 340])
    gaps, left = _longest(begin, end, 0.0, 1000.0, 120.0)
    assert gaps.tolist() == [[100, 200], [300, 340]]
    assert left.tolist() == [0, 0.5]


def pipeline(folder, loads, late=0.0, head=1.0):
    """The first stage loads data for `loads` µs at the begin of each step; each stage passes on every batch.

    Hosts of all stages but the last are `late` for each batch, whose kernels are `head` times as long as others'.
    """
    lines = [Timeline(rank) for rank in range(STAGES)]
    for step in range(STEPS):
        start = max(line.at for line in lines)
        for line in lines:
            line.at = start
        lines[0].at += loads
        for _ in range(BATCHES):
            lines[0].at += late
            lines[0].compute(WORK)
            for one, two in pairwise(lines):
                group = one.rank + 1
                handles = one.post(group), two.post(group)
                end = max(at for at, *_ in handles) + SENT
                one.finish(handles[0], end)
                two.finish(handles[1], end)
                last = two.rank == STAGES - 1
                two.at += 0 if last else late
                two.compute(WORK * (head if last else 1))
        handles = {line.rank: line.post(0) for line in lines}
        for line in lines:
            line.finish(handles[line.rank], max(at for at, *_ in handles.values()) + SENT)
            line.step(step, start)
    groups = {0: tuple(range(STAGES))} | {n + 1: (n, n + 1) for n in range(STAGES - 1)}
    return write_run(folder, lines, groups, dict.fromkeys(groups, "mesh_pp") | {0: "mesh_world"}, STAGES)


@pytest.mark.parametrize("taken", [1.0, 0.5])
def test_time_to_load_is_saved_whole(tmp_path, taken):
    case = prepared(pipeline(tmp_path, LOADS), grid(pp=STAGES))
    assert isinstance(case.model, StepModel)
    over = np.full(STEPS, taken * LOADS * 1000)
    saved = case.model.recorded_ns - case.model.rescaled_ns(without_gaps(case, case.model, {0: over}))
    assert saved == pytest.approx(taken * LOADS * 1000, rel=0.01)


def test_longer_compute_counts_beside_late_hosts(tmp_path):
    """Its own time is that of stages that stand still for their hosts as long; its work costs all the same."""
    case = prepared(pipeline(tmp_path, 0, late=300, head=1.3), grid(pp=STAGES))
    own = np.nanmean(case.steps.own, axis=1)
    assert own.max() < 1.01 * own.min()
    stage = long_stage(case)
    assert stage is not None
    assert (stage.rows, stage.by_compute) == ((STAGES - 1,), True)
    assert "of compute against" in blame_stage(case, stage, "").reason
