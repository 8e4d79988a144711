"""The same work on several stages separates a slow stage from one that has more, or less, to do by design."""

from dataclasses import replace

import numpy as np
import pytest

from tests.causes.cell import step_ms
from tests.marks import quick_first
from tests.simulate.case import setup_of, written
from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import TRANSFER_US, grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected.same_kernels import at_places, pace_at
from tracekit.ingest import load

LAYER = {"norm": 100.0, "gemm": 600.0, "flash": 300.0}


def case_of(folder, factor, layers=(3, 6, 3)):
    """A job of three stages with so many layers each; the kernels of stage 1 take `factor` times as long."""
    mesh = grid(pp=3, dp=2)
    lines = [Timeline(rank) for rank in range(mesh.world_size)]
    groups = sorted({mesh.line(rank, ("dp",)) for rank in range(mesh.world_size)})
    for step in range(3):
        begins = [line.at for line in lines]
        for stage, group in enumerate(groups):
            for rank in group:
                for _ in range(layers[stage]):
                    for name, us in LAYER.items():
                        lines[rank].compute(us * (factor(name) if stage == 1 else 1), name)
                lines[rank].compute(50 if stage == 1 else 900, f"only_{stage}")
            handles = [lines[rank].post(stage) for rank in group]
            end = max(h[0] for h in handles) + TRANSFER_US
            for rank, handle in zip(group, handles, strict=True):
                lines[rank].finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    run = write_run(folder, lines, dict(enumerate(groups)), dict.fromkeys(range(3), "dp"), mesh.world_size)
    return prepared(run, mesh)


@pytest.mark.parametrize(
    ("factor", "pace"),
    [
        (lambda name: 1.4, 1.4),
        (lambda name: 1.0, 1.0),
        (lambda name: {"gemm": 1.4}.get(name, 1.0), None),
        (lambda name: {"gemm": 2.0, "flash": 0.5}.get(name, 1.0), None),
    ],
    ids=["slow", "more layers", "other products", "another model"],
)
def test_a_stage_is_slow_if_all_its_kernels_are(tmp_path, factor, pace):
    case = case_of(tmp_path, factor)
    first, second, third = case.stages
    found = pace_at(at_places(case, second), [at_places(case, first), at_places(case, third)])
    assert found == (pace if pace is None else pytest.approx(pace, rel=0.01))


def test_a_rank_without_steps_shows_no_pace(tmp_path):
    """The other rank of its stage does; where none is left, nothing is known."""
    case = case_of(tmp_path, lambda name: 1.4)
    first, second, third = case.stages
    own = case.steps.own.copy()
    own[second[0]] = np.nan
    case = replace(case, steps=replace(case.steps, own=own))
    assert pace_at(
        at_places(case, second), [at_places(case, first), at_places(case, third)]
    ) == pytest.approx(1.4, rel=0.01)
    assert at_places(case, second[:1]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 1.6])
def test_a_slow_stage_short_by_design_is_priced(tmp_path, factor):
    """The last stage has a large vocabulary, so that a sound stage 0 is shorter: its whole excess is not lost."""
    fault = (f"long_stage:rank=0,factor={factor}",) if factor > 1 else ()
    tables = {"model": {"vocab_size": 128256, "layers": 8}}
    setup, config = setup_of({"pp": 2, "dp": 4}, *fault, steps=4, merge=False, tables=tables)
    written(tmp_path, setup, config, detail="kernels")
    finding = analyse(load([str(tmp_path / "trace")]))
    assert (finding.verdict, finding.cause) == ("imbalance", "stage_imbalance")
    assert {s.rank % 2 for s in finding.suspects} == {0 if fault else 1}
    assert ("times as long" in finding.reason) == bool(fault)
    assert [s.mechanism is not None for s in finding.suspects] == [bool(fault)] * 4
    if fault:
        gain = step_ms(setup, setup.faults) - step_ms(setup)
        promised = finding.what_if.step_ms - finding.what_if.without_suspects_ms
        assert promised == pytest.approx(gain, rel=0.05)


@pytest.mark.parametrize("lost", quick_first(1, [{3, 5, 6, 7}, {9, 11, 12, 13, 14, 15}]))
def test_a_stage_with_unseen_ranks_is_priced(tmp_path, lost):
    """Unmatched messages wait for unseen ranks of the stage: the model that reproduces them proves a price."""
    mesh = grid(pp=2, dp=8)
    slow = {rank: 1.2 for rank in mesh.coordinates if mesh.stage(rank) == 1}
    found = analyse(job(tmp_path, mesh, slow=slow, lost=lost, steps=3))
    assert found.cause == "stage_imbalance"
    assert {s.rank for s in found.suspects} <= set(slow)
    saved = found.what_if.step_ms * (1 - 1 / 1.2)
    assert all(s.lost_ms_low < saved < s.lost_ms_high for s in found.suspects)


def test_a_later_unseen_rank_leaves_a_stage_open(tmp_path):
    """The waits of its pipeline are longer than the stage explains: a cure of the stage may save nothing."""
    mesh = grid(pp=4, dp=4)
    slow = {rank: 1.08 for rank in mesh.coordinates if mesh.stage(rank) == 3} | {2: 1.1}
    found = analyse(job(tmp_path, mesh, slow=slow, lost={2, 6, 9, 11}, steps=3))
    assert found.verdict == "inconclusive"
