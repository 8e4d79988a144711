"""The memory model against torch's trackers and the system's own count, on real runs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from reftrain.config import MeshConfig
from reftrain.config_file import load
from reftrain.hooks import Hooks
from reftrain.launcher import launch
from reftrain.mesh import coordinates
from reftrain.simulate.activations import layer_kept
from reftrain.simulate.job import job_of_run
from reftrain.simulate.memory import MemoryModel
from reftrain.simulate.published import CALIBRATION, job_of_row
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
    "pp virtual": ({"pp": 2, "zero": 2}, {"batch_size": 4, "seq_len": 512}, {}, {"virtual_stages": 2}),
    "tp pp dp": ({"tp": 2, "pp": 2, "dp": 2}, {"batch_size": 8, "seq_len": 512}, {}, {}),
}


def configure(mesh, data, numerics, pipeline):
    tables = {"model": SMALL, "mesh": mesh, "data": data, "numerics": numerics, "pipeline": pipeline}
    return load(None, tables)


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_the_trackers_within_ten_percent(pool, name):
    config = configure(*CASES[name])
    model = MemoryModel(job_of_run(config)).ranks()
    sizes = {axis: getattr(config.mesh, axis) for axis in ("tp", "cp", "pp", "dp")}
    measured = pool.run(workers.tracked_peak, config.mesh.world_size, config)
    for rank, real in enumerate(measured):
        predicted = model[coordinates(rank, sizes, config.mesh.order)["pp"]].peak
        assert predicted == pytest.approx(real, rel=0.10), f"rank {rank}"


def test_fsdps_own_tracker_agrees(pool):
    config = configure({"dp": 2}, {"batch_size": 2, "seq_len": 1024}, {}, {})
    (rank,) = MemoryModel(job_of_run(config)).ranks()
    for snapshot in pool.run(workers.fsdp_tracked, 2, config):
        assert rank.peak == pytest.approx(snapshot["Total"], rel=0.10)
        assert rank.at_peak.optimizer == pytest.approx(snapshot["OptState"], rel=0.02)


class ResidentSize(Hooks):
    """Writes this process' resident size before the model is built, and its largest at the end."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rss{rank}"

    def setup(self, context):
        self.path.write_text(f"{status('VmRSS')} ")

    def close(self):
        with self.path.open("a") as file:
            file.write(str(status("VmHWM")))


def status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("mesh", [{"pp": 2}, {"dp": 2, "zero": 3}])
def test_resident_memory_of_a_run_is_predicted_within_ten_percent(tmp_path, mesh):
    tables = {
        "model": SMALL | {"dim": 768, "layers": 6, "ffn_dim": 2048},
        "mesh": mesh,
        "data": {"batch_size": 4, "seq_len": 512},
        "run": {"steps": 2, "out": str(tmp_path / "run")},
    }
    config = load(None, tables)
    launch(config, lambda rank: [ResidentSize(tmp_path, rank)])
    model = MemoryModel(job_of_run(config)).ranks()
    for rank in range(2):
        before, most = map(int, (tmp_path / f"rss{rank}").read_text().split())
        pipeline_rank = rank if mesh.get("pp") else 0
        assert before + model[pipeline_rank].peak == pytest.approx(most, rel=0.10)


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
