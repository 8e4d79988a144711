"""What a program did not write stays where it is: own files are told from a stranger's, and links are not followed."""

from pathlib import Path

import pytest
from tracekit_cli.reftrain_commands.demo import clear

from numerics.order.replayer import _check_target
from reftrain.errors import ConfigError
from reftrain.job.launcher import prepare_folder
from reftrain.record.capture import clear as clear_capture
from reftrain.record.manifest import write_manifest
from tracekit.errors import InputError
from tracekit.own_files import of_a_run, remove_own, strangers

OWN = [
    "run.json", ".run.json.tmp", "timeline.json", "order_plan.json", "trace/rank12.json.gz",
    "trace/.raw-a_b1.json", "fr/rank_3", ".fr-tails/rank_3", "metrics/rank0.jsonl", "shadow/rank00000.json",
    "memory/rank0.pickle", "capture/stamp.json", "capture/rank00001.parquet.partial",
    "capture/.values_rank00000.safetensors.data.tmp", "checkpoint/step-00000001/.metadata",
    "checkpoint/.step-00000002/__0_0.distcp", "replay/capture/rank00000.parquet", "replay/exact/capture/stamp.json",
    ".without-faults-x1/metrics/rank0.jsonl", ".replay-k2/run/run.json",
]  # fmt: skip
FOREIGN = [
    "notes.txt",
    "trace/mine.json",
    "checkpoint/best/model.pt",
    "replay/notes.txt",
    "rank0.jsonl",
    "x/run.json",
]


@pytest.mark.parametrize("path", OWN)
def test_what_runs_write_is_known(path):
    assert all(of_a_run(str(p)) for p in (Path(path), *Path(path).parents[:-1]))


@pytest.mark.parametrize("path", FOREIGN)
def test_anything_else_is_a_strangers(path):
    assert not of_a_run(path)


def filled(folder, *paths):
    """A folder with an earlier run and further files."""
    for path in (*OWN, *paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("mine")
    write_manifest(folder, {"faults": []})
    return folder


def test_removal_leaves_strangers_and_links(tmp_path):
    run, other = filled(tmp_path / "run", *FOREIGN), filled(tmp_path / "other")
    (run / "trace" / "rank99.json.gz").symlink_to(other / "run.json")
    (run / "fr" / "rank_98").symlink_to(other)
    left = sorted([*FOREIGN, "trace/rank99.json.gz", "fr/rank_98"])
    assert [s for s in strangers(run, of_a_run) if (run / s).is_file() or (run / s).is_symlink()] == left
    remove_own(run, of_a_run)
    assert sorted(str(p.relative_to(run)) for p in run.rglob("*") if not p.is_dir() or p.is_symlink()) == left
    assert strangers(other, of_a_run) == []
    remove_own(other, of_a_run)
    assert not other.exists()


@pytest.mark.parametrize("path", ["notes.txt", "trace/mine.json", "checkpoint/best/model.pt"])
def test_demo_leaves_an_earlier_run_with_strangers(tmp_path, path):
    run = filled(tmp_path / "run", path)
    with pytest.raises(ConfigError, match=f"holds {path.split('/')[0]}.*which reftrain did not write"):
        clear(run)
    assert (run / "run.json").exists()
    (run / path).rename(tmp_path / "saved")
    for folder in ("checkpoint/best",):
        if (run / folder).exists():
            (run / folder).rmdir()
    clear(run)
    assert not run.exists()


def test_runs_spare_folders_of_others(tmp_path):
    (tmp_path / "job" / "trace").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "job")
    with pytest.raises(ConfigError, match="holds trace, which reftrain did not write; move it away"):
        prepare_folder(tmp_path / "job")
    with pytest.raises(ConfigError, match="is a symbolic link; name the folder itself"):
        prepare_folder(tmp_path / "link")
    prepare_folder(tmp_path / "job", first=False)  # the first rank has looked
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text("")
    prepare_folder(tmp_path / "mine")


def test_an_earlier_run_goes_on_but_through_no_link(tmp_path):
    run = filled(tmp_path / "run", "notes.txt")
    prepare_folder(run)
    (run / "metrics").rename(tmp_path / "metrics")
    (run / "metrics").symlink_to(tmp_path / "metrics")
    with pytest.raises(ConfigError, match="holds metrics, which"):
        prepare_folder(run)


def test_a_new_capture_removes_only_its_replay(tmp_path):
    run = filled(tmp_path / "run", "replay/notes.txt")
    clear_capture(run, 0, 1)
    assert [p.name for p in (run / "replay").rglob("*")] == ["notes.txt"]


def test_a_replay_replaces_only_a_replay(tmp_path):
    (tmp_path / "run").mkdir()
    replay = filled(tmp_path / "replay", "notes.txt")
    with pytest.raises(InputError, match=r"holds notes\.txt, which no replay wrote"):
        _check_target(tmp_path / "run", replay)
    (replay / "notes.txt").unlink()
    _check_target(tmp_path / "run", replay)
