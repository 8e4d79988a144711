"""Recordings made by others give the known answers; where the data is absent, tests are skipped with the reason."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load

DATA = Path(os.environ.get("TRACEKIT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not DATA.is_dir(), reason="recordings of others are not here (TRACEKIT_SHARED_DATA)"),
]


def test_dlrm_rank_7_comes_first():
    """One step, in which the peers differ by more than a cure of rank 7 is sure to save: the price begins at 0."""
    finding = analyse(load([str(DATA / "kineto_dlrm8")]))
    assert finding.verdict == "inconclusive"
    (candidate,) = finding.candidates
    assert candidate.rank == 7
    assert candidate.lost_ms_low < 0.02 * finding.what_if.step_ms < candidate.lost_ms_high
    assert finding.mesh.source == "flat_world"
    assert candidate.confidence < 0.999  # one step only


@pytest.mark.slow
def test_dlrm_without_rank_7_blames_no_innocent():
    files = [str(p) for p in sorted((DATA / "kineto_dlrm8").glob("*.gz")) if "worker7" not in p.name]
    for mesh in (None, {"tp": 1, "cp": 1, "pp": 1, "dp": 8}):
        finding = analyse(load(files), mesh=mesh)
        assert finding.verdict == "inconclusive"
        assert [c.rank for c in finding.candidates] == [7]


def test_the_published_job_has_a_long_last_stage():
    finding = analyse(load([str(DATA / "ops" / "trace-ST.parquet")]))
    assert (finding.verdict, finding.cause) == ("imbalance", "stage_imbalance")
    assert sorted(s.rank for s in finding.suspects) == [6, 7]
    assert {s.coords["pp"] for s in finding.suspects} == {3}
    assert finding.mesh.sizes == {"tp": 1, "cp": 1, "pp": 4, "dp": 2}
    # its authors' M_S compares with all operations ideal on the last stage: 2.17 s against 1.77 s
    assert finding.what_if.slowdown == pytest.approx(1.22, abs=0.06)


def test_one_rank_of_two_is_not_called_healthy():
    finding = analyse(load([str(DATA / "kineto_misc" / "nccl_data.json.gz")]))
    assert finding.verdict == "inconclusive"
    assert finding.ranks.missing == (1,)


OTHERS = ((408, 810), (34, 1216, 1222), (16, 422, 831, 1218))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(831, 1218), *(pytest.param(s, marks=pytest.mark.slow) for s in OTHERS)])
def test_few_steps_of_the_published_job_blame_no_stage(published, steps):
    finding = analyse(published, steps=[(n, n + 1) for n in steps])
    assert [s.rank for s in finding.suspects] == [0]
    assert finding.cause == "gpu_compute"


@pytest.fixture(scope="module")
def published():
    return load([str(DATA / "ops" / "trace-AR.parquet")])


@pytest.mark.parametrize("kept", [(16, 36), (0, 52), (4, 8, 56)])
@pytest.mark.quick(1)
def test_few_ranks_of_the_published_job_blame_nobody(tmp_path, kept):
    table = pq.read_table(DATA / "ops" / "trace-AR.parquet")
    chosen = pc.is_in(table.column("rank"), pa.array(kept))
    pq.write_table(table.filter(chosen), tmp_path / "ops.parquet")
    finding = analyse(load([str(tmp_path)]))
    assert (finding.verdict, finding.suspects) == ("inconclusive", ())
