"""The memory model against torch's trackers and the system's own count, on real runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reftrain.config.file import load
from reftrain.config.run import MeshConfig
from reftrain.cost.activations import layer_kept
from reftrain.cost.job import job_of_run
from reftrain.cost.memory import MemoryModel
from reftrain.papers.llama3 import CALIBRATION, job_of_row
from reftrain.rank.mesh import coordinates
from tests.marks import quick_but
from tests.plan import workers

SMALL = {"preset": "small", "layers": 4}
CASES = {
    "fp32": ({}, {"batch_size": 2}, {"policy": "fp32"}, {}),
    "bf16 one micro-batch": ({}, {"batch_size": 1}, {}, {}),
    "bf16 long": ({}, {"batch_size": 2, "seq_len": 1024}, {}, {}),
    "bf16 pure": ({}, {"batch_size": 2}, {"policy": "bf16_pure"}, {}),
    "two sequences a micro-batch": ({}, {"batch_size": 4, "micro_batch_size": 2}, {}, {}),
    "zero 0": ({"dp": 2, "zero": 0}, {"batch_size": 4}, {}, {}),
    "zero 1": ({"dp": 2, "zero": 1}, {"batch_size": 4}, {}, {}),
    "zero 2": ({"dp": 2, "zero": 2}, {"batch_size": 4}, {}, {}),
    "zero 3": ({"dp": 2, "zero": 3}, {"batch_size": 4}, {}, {}),
    "tp": ({"tp": 2}, {"batch_size": 2, "seq_len": 512}, {}, {}),
    "tp without sp": ({"tp": 2, "sequence_parallel": False}, {"batch_size": 2, "seq_len": 512}, {}, {}),
    "cp": ({"cp": 2}, {"batch_size": 2, "seq_len": 512}, {}, {}),
    "ring": ({"cp": 2}, {"batch_size": 2, "seq_len": 512}, {"cp_method": "ring"}, {}),
    "selective": ({}, {"batch_size": 2, "seq_len": 1024}, {"recompute": "selective"}, {}),
    "full": ({}, {"batch_size": 2, "seq_len": 1024}, {"recompute": "full"}, {}),
    "pp 1f1b": ({"pp": 2}, {"batch_size": 4, "seq_len": 512}, {}, {"schedule": "1f1b"}),
    "pp afab": ({"pp": 2}, {"batch_size": 6, "seq_len": 512}, {}, {"schedule": "afab"}),
    "pp virtual": ({"pp": 2}, {"batch_size": 4, "seq_len": 512}, {}, {"virtual_stages": 2}),
    "tp pp dp": ({"tp": 2, "pp": 2, "dp": 2}, {"batch_size": 8, "seq_len": 512}, {}, {}),
}


def configure(mesh, data, numerics, pipeline):
    tables = {"model": SMALL, "mesh": mesh, "data": data, "numerics": numerics, "pipeline": pipeline}
    return load(None, tables)


SLOW = (
    *("fp32", "bf16 long", "bf16 pure", "two sequences a micro-batch", "zero 0", "zero 1", "zero 2"),
    *(
        "tp",
        "tp without sp",
        "cp",
        "ring",
        "full",
        "selective",
        "pp 1f1b",
        "pp afab",
        "pp virtual",
        "tp pp dp",
    ),
)
"""What another case has as well: a format, a length, a stage of ZeRO between two others."""


@pytest.mark.parametrize("name", quick_but(SLOW, CASES))
@pytest.mark.quick(1)
def test_the_peak_is_the_trackers_within_ten_percent(ranks, name):
    config = configure(*CASES[name])
    model = MemoryModel(job_of_run(config)).ranks()
    sizes = {axis: getattr(config.mesh, axis) for axis in ("tp", "cp", "pp", "dp")}
    measured = ranks.run(workers.tracked_peak, config.mesh.world_size, config)
    for rank, real in enumerate(measured):
        predicted = model[coordinates(rank, sizes, config.mesh.order)["pp"]].peak
        assert predicted == pytest.approx(real, rel=0.10), f"rank {rank}"


@pytest.mark.slow
def test_fsdps_own_tracker_agrees(ranks):
    config = configure({"dp": 2}, {"batch_size": 2, "seq_len": 1024}, {}, {})
    (rank,) = MemoryModel(job_of_run(config)).ranks()
    for snapshot in ranks.run(workers.fsdp_tracked, 2, config):
        assert rank.peak == pytest.approx(snapshot["Total"], rel=0.10)
        assert rank.at_peak.optimizer == pytest.approx(snapshot["OptState"], rel=0.02)


def resident(folder, shape, mesh, policy):
    """Largest resident sizes of a run's ranks, and its configuration.

    The allocator is told to give freed tensors back to the system at once: its own hoard is no tensor's.
    """
    tables = {
        "model": {"preset": "small", **shape},
        "mesh": mesh,
        "data": {"batch_size": 4, "seq_len": 512},
        "numerics": {"policy": policy},
        "run": {"steps": 2, "out": str(folder / "run")},
    }
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "tests.plan.resident", json.dumps(tables)]
    got = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=200)
    return json.loads(got.stdout.splitlines()[-1]), load(None, tables)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.slow
def test_resident_memory_is_predicted_within_ten_percent(tmp_path):
    """A run of a tiny model tells what a process needs without one."""
    sizes, mesh = [], {"pp": 2}
    for name, shape in (
        ("tiny", {"layers": 2, "dim": 64, "ffn_dim": 64, "vocab_size": 260}),
        ("large", LARGE),
    ):
        folder = tmp_path / name
        folder.mkdir()
        measured, config = resident(folder, shape, mesh, "fp32")
        model = MemoryModel(job_of_run(config)).ranks()
        peaks = [rank.peak for rank in model]
        sizes.append((measured, peaks))
    (bare, little), (full, much) = sizes
    for rank in range(2):
        assert bare[rank] - little[rank] + much[rank] == pytest.approx(full[rank], rel=0.10), f"rank {rank}"


LARGE = {"layers": 6, "dim": 768, "ffn_dim": 2048}


def test_kinds_add_up_to_the_peak():
    job = job_of_run(configure({"pp": 2, "dp": 2}, {"batch_size": 8}, {}, {}))
    for rank in MemoryModel(job).ranks():
        row = rank.as_json()
        kinds = sum(row[kind] for kind in ("weights", "gradients", "optimizer", "activations", "buffers"))
        assert kinds == row["peak"] == pytest.approx(rank.peak, abs=5)
        assert sum(row["activations_by_kind"].values()) == pytest.approx(row["activations"], abs=4)
        assert all(row["largest"][kind] >= row[kind] for kind in row["largest"])


def test_fused_kernels_keep_what_matrix_products_and_attention_give():
    """405 B at tp 8, 8 K: 21.25 bytes a token and column, as derived in docs/planning.md."""
    job = job_of_row(CALIBRATION)
    per = job.local_tokens * job.model.dim
    kept = layer_kept(job)
    assert kept.norms / per == pytest.approx(4, abs=0.01)  # input and middle of the residual stream
    assert kept.attention / per == pytest.approx(4.28, abs=0.01)  # queries, output; keys, values; log-sums
    assert kept.feed_forward / per == pytest.approx(2 * 2 * 3.25, abs=1e-9)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_stages_shard_what_they_promise(zero):
    """ZeRO, section 5: optimiser states at 1, gradients at 2, weights at 3."""
    job = replace(
        job_of_row(CALIBRATION), mesh=MeshConfig(tp=8, pp=1, dp=16, zero=zero), layers=(126,), virtual=1
    )
    job = replace(job, schedule="flexible", micro_batches=4, consecutive=1)
    (rank,) = MemoryModel(job).ranks()
    parameters = job.stage_parameters(0)
    shard = parameters / (16 if zero else 1)
    assert rank.at_peak.optimizer == pytest.approx(8 * shard)
    gathered = rank.largest.weights - 4 * shard
    assert gathered == pytest.approx(2 * parameters) if zero < 3 else gathered < 0.1 * parameters
    assert (rank.largest.gradients > 4 * parameters) is (zero < 2)
