"""A run that went on from a checkpoint is replayed from that checkpoint, and from no other."""

import pickle
import shutil

import pytest

from numerics.comparison.compare import Options, compare
from numerics.order.order_plan import read_plan
from numerics.order.plan_differences import differences
from reftrain.replay.command import replay
from reftrain.replay.manifest import ReplayError
from tests.marks import quick_but
from tests.numerics.replay_runs import captured, replayed, unequal

RUNS = {
    "4D": {"mesh": {"tp": 2, "pp": 2, "dp": 2}},
    "pure BF16, padded": {
        "mesh": {"tp": 3, "zero": 1},
        "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
        "numerics": {"policy": "bf16_pure"},
        "data": {"seq_len": 48},
    },
    "chimera": {"mesh": {"pp": 2, "dp": 2}, "pipeline": {"schedule": "chimera"}},
    "dualpipe_v": {
        "mesh": {"pp": 2},
        "model": {"layers": 4},
        "pipeline": {"schedule": "dualpipe_v", "virtual_stages": 2},
    },
    "fused, FP32": {
        "mesh": {"dp": 2},
        "optimizer": {"implementation": "fused"},
        "numerics": {"policy": "fp32"},
    },
}


def resumed(ranks, folder, tables, level="digest"):
    """A run of one step that saves, and one that goes on for a second."""
    optimizer = {"decay_steps": 9, **tables.get("optimizer", {})}
    first = {**tables, "optimizer": optimizer, "run": {"steps": 1}, "checkpoint": {"every": 1}}
    captured(ranks, folder / "first", first)
    second = {**tables, "optimizer": optimizer, "run": {"steps": 2}, "evidence": {"capture": level}}
    captured(ranks, folder / "run", {**second, "checkpoint": {"resume": str(folder / "first")}})
    return folder / "run"


@pytest.mark.parametrize("name", quick_but([name for name in RUNS if name != "fused, FP32"], RUNS))
@pytest.mark.slow
def test_every_row_of_a_resumed_run_is_replayed(ranks, tmp_path, name):
    run = resumed(ranks, tmp_path, RUNS[name])
    other = replayed(run)
    assert not unequal(run, other)
    assert differences(read_plan(run), read_plan(other)) == []


@pytest.fixture(scope="module")
def small(ranks, tmp_path_factory):
    return resumed(ranks, tmp_path_factory.mktemp("resumed"), {}, "tensors")


def test_a_resumed_run_is_proved_identical(small):
    found = compare(small, None, Options(replay=replayed(small)))
    assert (found.verdict, found.proof) == ("identical", "matched_order")


def beside_whole(ranks, folder, tables):
    """What `compare` says about a resumed run beside one that never stopped, and the other way round."""
    run = resumed(ranks, folder, tables)
    captured(ranks, folder / "whole", {**tables, "optimizer": {"decay_steps": 9}, "run": {"steps": 2}})
    return compare(run, folder / "whole"), compare(folder / "whole", run)


@pytest.mark.parametrize("dp", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_resumed_run_equals_one_that_never_stopped(ranks, tmp_path, dp):
    data = {"batch_size": 6}
    there, back = beside_whole(ranks, tmp_path, {"mesh": {"dp": dp}, "data": data})
    for found in (there, back):
        assert (found.verdict, found.tensors.compared) == ("identical", found.tensors.identical)
        assert found.tensors.compared > 50
    assert "goes on from the baseline's weights after step 0, and its steps count from 1" in there.notes[-1]


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_no_drift(ranks, tmp_path):
    tables = {"optimizer": {"decay_steps": 9}, "run": {"steps": 2}}
    other = {"optimizer": {"decay_steps": 9, "learning_rate": 0.01}, "run": {"steps": 1}}
    captured(ranks, tmp_path / "other", {**other, "checkpoint": {"every": 1}})
    captured(ranks, tmp_path / "run", {**tables, "checkpoint": {"resume": str(tmp_path / "other")}})
    captured(ranks, tmp_path / "whole", tables)
    found = compare(tmp_path / "run", tmp_path / "whole", Options(replay=replayed(tmp_path / "run")))
    assert found.verdict == "undecided", found.reason
    assert "goes on in step 1 from weights that are not the baseline's after step 0" in found.reason


@pytest.mark.slow
def test_the_forced_replay_goes_on_too(small, tmp_path):
    replay(small, tmp_path / "forced", "digest", (), (), None, forced=True)
    assert not unequal(small, tmp_path / "forced")


@pytest.fixture
def kept(small, tmp_path):
    """The run and its checkpoint, free to be damaged: the run says nothing of where the copy is."""
    run = tmp_path / "run"
    shutil.copytree(small, run)
    folder = tmp_path / "run" / "checkpoint" / "step-00000001"
    shutil.copytree(small.parent / "first" / "checkpoint" / "step-00000001", folder)
    text = (run / "run.json").read_text().replace(str(small.parent / "first"), "elsewhere")
    (run / "run.json").write_text(text)
    return run, folder


def test_a_checkpoint_beside_the_run_is_found(kept):
    replayed(kept[0])


def test_a_checkpoint_that_is_gone_is_named(kept):
    shutil.rmtree(kept[1])
    with pytest.raises(ReplayError, match="step 1 that the run went on from is not in elsewhere any more"):
        replayed(kept[0])


def test_an_index_that_asks_for_code_is_refused(kept):
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    (kept[1] / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ReplayError, match=r"asks for builtins.print"):
        replayed(kept[0])


def test_a_checkpoint_cut_short_is_refused(kept):
    for path in kept[1].glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ReplayError, match="unreadable"):
        replayed(kept[0])
