"""A resumed run continues in the same bits; any mesh loads it; nothing half-written is found."""

import errno

import numpy as np
import pytest

from reftrain.config.file import load
from reftrain.errors import CheckpointError
from reftrain.train import checkpoint
from reftrain.train.checkpoint import find, finished
from tests.reftrain import workers
from tests.reftrain.layouts import FOUR_D

MODEL = {"layers": 2, "tied_embeddings": True, "vocab_size": 259, "pad_vocab": True}
TABLES = {"model": MODEL, "checkpoint": {"every": 2}, "data": {"batch_size": 4, "seq_len": 32}}


def configuration(mesh, **tables):
    return load(None, {**TABLES, "mesh": mesh, **tables})


def equal(first, second):
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name


@pytest.fixture(scope="module")
def written(ranks, tmp_path_factory):
    """Four steps on 16 ranks, saved in the background after the second and fourth; the last state."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = configuration({**FOUR_D, "zero": 3})
    results = ranks.run(workers.continued, 16, config, str(folder), "", 4)
    return folder, workers.assemble(results)


def test_resume_continues_in_the_same_bits(ranks, written, tmp_path):
    folder, uninterrupted = written
    config = configuration({**FOUR_D, "zero": 3})
    results = ranks.run(workers.continued, 16, config, str(tmp_path), str(folder / "step-00000002"), 2)
    assert {result.valid_tokens for result in results} == {2}, "steps done when it was saved"
    equal(workers.assemble(results), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [{}, {"tp": 2, "dp": 2, "zero": 2}, {"dp": 3, "zero": 1}, {"pp": 2, "tp": 2}]
)
def test_any_mesh_loads_it(ranks, written, tmp_path, mesh):
    folder, state = written
    config = configuration(mesh, data={"batch_size": 12, "seq_len": 32})
    results = ranks.run(
        workers.continued, config.mesh.world_size, config, str(tmp_path), str(folder / "step-00000004"), 0
    )
    equal(workers.assemble(results), state)


@pytest.mark.slow
def test_pure_bf16_keeps_its_masters(ranks, tmp_path):
    config = configuration({"dp": 2}, numerics={"policy": "bf16_pure"})
    whole = workers.assemble(ranks.run(workers.continued, 2, config, str(tmp_path), "", 4))
    assert any(name.startswith("master.") for name in whole)
    source = str(tmp_path / "step-00000002")
    again = workers.assemble(ranks.run(workers.continued, 2, config, str(tmp_path / "b"), source, 2))
    equal(again, whole)


def test_another_model_is_refused(ranks, written, tmp_path):
    folder, _ = written
    source = str(folder / "step-00000004")
    wider = configuration({}, model={**MODEL, "ffn_dim": 256})
    with pytest.raises(AssertionError, match=r"CheckpointError: .*feed_forward.* is \(.*\), here \("):
        ranks.run(workers.continued, 1, wider, str(tmp_path), source, 0)
    deeper = configuration({}, model={**MODEL, "layers": 3})
    with pytest.raises(AssertionError, match=r"CheckpointError: .*holds no model.layers.2"):
        ranks.run(workers.continued, 1, deeper, str(tmp_path), source, 0)


def test_full_disk_is_said(ranks, tmp_path):
    with pytest.raises(
        AssertionError, match=r"MachineError: checkpoint in .*No space left on device; free space"
    ):
        ranks.run(full_disk, 1, configuration({}), str(tmp_path))
    assert finished(tmp_path) == []


def full_disk(rank, world, store, config, folder):
    class Full(checkpoint.FileSystemWriter):
        def write_data(self, plan, planner):
            raise OSError(errno.ENOSPC, "No space left on device")

    kept, checkpoint.FileSystemWriter = checkpoint.FileSystemWriter, Full
    try:
        workers.continued(rank, world, store, config, folder, "", 2)
    finally:
        checkpoint.FileSystemWriter = kept


def test_only_finished_checkpoints_are_found(tmp_path):
    assert find("auto", tmp_path) is None
    assert find("", tmp_path) is None
    with pytest.raises(CheckpointError, match=r"holds no finished checkpoint; name a folder step-"):
        find(str(tmp_path), tmp_path)
    (tmp_path / ".step-00000009").mkdir()
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000010").mkdir()
    assert find("auto", tmp_path) == tmp_path / "step-00000010"
    (tmp_path / "step-00000002" / ".metadata").touch()
    assert find(str(tmp_path / "step-00000002"), tmp_path) == tmp_path / "step-00000002"


def test_old_checkpoints_are_dropped(ranks, tmp_path):
    config = configuration({}, checkpoint={"every": 1, "keep": 2})
    ranks.run(workers.continued, 1, config, str(tmp_path), "", 4)
    assert [step for step, _ in finished(tmp_path)] == [3, 4]
