"""A rank that costs more than the imbalance or the stage that is named is a candidate; ranks in turn are none."""

import pytest

from tests.generator import generate
from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job
from tests.slowrank.test_steady_work import documents
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load


@pytest.mark.quick(1)
@pytest.mark.parametrize("step", [0, 2])
def test_one_long_step_does_not_hide_behind_documents(tmp_path, step):
    finding = analyse(documents(tmp_path, factor=3.0, steps=(step,)))
    assert (finding.verdict, finding.suspects) == ("inconclusive", ())
    assert [c.rank for c in finding.candidates] == [2]
    assert "for rank 2 alone, which works" in finding.reason
    assert f"in step {step};" in finding.reason
    assert 0 < finding.candidates[0].lost_ms_high <= finding.what_if.step_ms


@pytest.mark.quick(1)
def test_documents_of_its_replica_hide_no_rank(tmp_path, monkeypatch):
    """The same job, where the other stages of the replica of rank 2 are as long: its documents are."""
    follow = "tracekit.analysis.slowrank.answers.hidden_rank.dealt_to_its_replica"
    monkeypatch.setattr(follow, lambda case, row: case.steps.ranks[row] == 2)
    finding = analyse(documents(tmp_path, factor=3.0, steps=(2,)))
    assert (finding.verdict, finding.cause, finding.candidates) == ("imbalance", "data_imbalance", ())


@pytest.mark.parametrize("seed", [4, 10, 18])
@pytest.mark.quick(1)
def test_ranks_in_turn_are_an_imbalance(tmp_path, seed):
    """The jobs of drawn ones in which one rank causes most: up to a third."""
    generate(seed, kind="doc_imbalance").write(tmp_path)
    finding = analyse(load([str(tmp_path)]))
    assert (finding.verdict, finding.cause, finding.candidates) == ("imbalance", "data_imbalance", ())


def halting(folder, gaps, steps=5, *, kernel=False):
    """Rank 5 of eight halts 4 ms in the second of `steps` steps, in `gaps` parts, or one `kernel` takes so long."""
    lines = [Timeline(rank) for rank in range(8)]
    for step in range(steps):
        begins = [line.at for line in lines]
        for layer in range(4):
            handles = []
            for line in lines:
                struck = (line.rank, step) == (5, 1) and layer < gaps
                line.compute(LAYER_US + (4000.0 / gaps if struck and kernel else 0.0))
                if struck and not kernel:
                    line.at += 4000.0 / gaps
                handles.append(line.post(0))
            end = max(h[0] for h in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(8))}, {0: "dp"}, 8)


@pytest.mark.parametrize("gaps", [2, 1, 4])
@pytest.mark.parametrize(("steps", "verdict"), [(10, "healthy"), (5, "inconclusive"), (9, "inconclusive")])
@pytest.mark.quick(2)
def test_a_process_that_pauses_had_no_accident(tmp_path, gaps, steps, verdict):
    """It costs 6 % of a step or more as far as five steps tell; of ten it may be a whim."""
    finding = analyse(halting(tmp_path, gaps, steps))
    assert (finding.verdict, finding.suspects) == (verdict, ())
    told = [(c.rank, c.cause) for c in finding.candidates]
    assert told == ([(5, "host_stall")] if verdict == "inconclusive" else [])


@pytest.mark.quick(1)
@pytest.mark.parametrize(("gaps", "verdict"), [(1, "healthy"), (2, "inconclusive")])
def test_one_lengthened_kernel_is_an_accident(tmp_path, gaps, verdict):
    assert analyse(halting(tmp_path, gaps, kernel=True)).verdict == verdict


@pytest.mark.quick(1)
@pytest.mark.parametrize(("accident", "verdict"), [(20_000.0, "inconclusive"), (500.0, "imbalance")])
def test_a_dearer_step_hides_behind_no_stage(tmp_path, accident, verdict):
    """The second stage is long in each of three steps, and one of its ranks late in one."""
    mesh = grid(tp=4, pp=2)
    slow = {rank: 1.3 for rank in range(8) if mesh.coords(rank)["pp"] == 1}
    finding = analyse(job(tmp_path, mesh, slow=slow, steps=3, accident=(min(slow), 1, accident)))
    assert finding.verdict == verdict
    if verdict == "inconclusive":
        assert [c.rank for c in finding.candidates] == [min(slow)]
        assert "in addition, pipeline stage 1 takes 1.30 times as long" in finding.reason


def test_an_accident_beside_uneven_documents_is_left_out(tmp_path):
    """Rank 2 is three times as slow in one step of twelve: the other steps are uneven, and no rank is slow in them."""
    finding = analyse(documents(tmp_path, factor=3.0, steps=(4,), count=12))
    assert (finding.verdict, finding.cause, finding.candidates) == ("imbalance", "data_imbalance", ())
    assert [q.kind for q in finding.quality if q.kind == "accident"] == ["accident"]
