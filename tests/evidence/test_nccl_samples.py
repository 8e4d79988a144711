"""The samples that were recorded on a GPU, where torch, NCCL and its Inspector wrote every line themselves.

Whatever is left of the hang names its rank or stays open, and no innocent is named.
"""

import gzip
import shutil
from itertools import combinations
from pathlib import Path

import pytest
import zstandard

import tracekit

SAMPLES = Path(__file__).parents[2] / "sample_traces"
HANG = SAMPLES / "nccl_hang"
PARTS = ("fr", "job.log.gz", "ras.0.json", "ras.1.json")
STALLED = 5


def judged(path):
    first = tracekit.triage(path).first
    return None if first is None else first.answer


def culprits(answer):
    return [] if answer is None else [(culprit.rank, culprit.kind) for culprit in answer.culprits]


@pytest.mark.parametrize("part", ["fr", "job.log.gz"])
def test_dumps_and_logs_alone_name_the_rank(part):
    answer = judged(HANG / part)
    assert culprits(answer) == [(STALLED, "host_stalled")]
    assert len(answer.victims) == 15


def test_a_log_claims_no_axis_it_does_not_show():
    """It names groups of tp and cp alone, and leaves a factor 4 to axes that it does not name."""
    assert judged(HANG / "fr").mesh.sizes == {"tp": 2, "cp": 2, "pp": 2, "dp": 2}
    assert judged(HANG / "job.log.gz").mesh is None


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_any_part_of_it_names_no_innocent(tmp_path, count):
    for kept in combinations(PARTS, count):
        folder = tmp_path / "+".join(kept)
        folder.mkdir()
        for part in kept:
            copy = shutil.copytree if (HANG / part).is_dir() else shutil.copy
            copy(HANG / part, folder / part)
        named = culprits(judged(folder))
        assert named in ([], [(STALLED, "host_stalled")]), kept
        assert named or "fr" not in kept, kept


def test_counts_of_ras_keep_the_rank_in_sight():
    answer = judged(HANG / "ras.1.json")
    assert answer.verdict == "inconclusive"
    assert STALLED in answer.candidates


def test_records_of_the_inspector_name_the_slow_host():
    answer = tracekit.slowrank(tracekit.load(SAMPLES / "nccl_inspector"))
    assert [suspect.rank for suspect in answer.suspects] == [3]
    assert answer.cause == "unknown"


def test_a_step_on_a_gpu_is_nearly_all_compute():
    run = tracekit.load(SAMPLES / "h100_step")
    assert run.quality == ()
    total = run.breakdown().total
    assert total.compute_ns > 0.95 * total.step_ns
    assert total.compute_ns + total.host_ns + total.idle_ns == total.step_ns


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_dumps_are_read(tmp_path, pack):
    for path in (HANG / "fr").iterdir():
        (tmp_path / f"{path.stem}.packed.{'gz' if pack is gzip.compress else 'zst'}").write_bytes(
            pack(gzip.decompress(path.read_bytes()))
        )
    assert culprits(judged(tmp_path)) == [(STALLED, "host_stalled")]
