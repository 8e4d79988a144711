"""Runs and answers behind URLs: put there whole, read from there, and never over a stranger's files."""

import re
import sys
from pathlib import Path

import fsspec
import pytest
from tracekit_cli.tracekit import main

from tests.house.source import ROOT
from tracekit.errors import InputError, OutputError
from tracekit.files.far import put_bytes
from tracekit.ingest import load

SAMPLE = ROOT / "sample_traces" / "slow_compute" / "trace"


@pytest.fixture
def store():
    """The memory of fsspec; what lies under /far is removed afterwards."""
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/far"):
        system.rm("/far", recursive=True)


def far_files(system, root):
    return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in system.find(root)}


def local_files(folder: Path):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def given(count):
    return [str(SAMPLE / f"rank{rank}.json.gz") for rank in range(count)]


def ask(monkeypatch, *words):
    """Exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["tracekit", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


@pytest.mark.slow
def test_a_run_behind_a_url_grows_in_place(store, tmp_path):
    load(given(2), out="memory://far/run")
    load(given(2), out=tmp_path / "run")
    assert far_files(store, "/far/run") == local_files(tmp_path / "run")
    grown = load(given(3), out="memory://far/run", append=True)
    load(given(3), out=tmp_path / "run", append=True)
    assert [r.rank for r in grown.ranks] == [0, 1, 2]
    assert far_files(store, "/far/run") == local_files(tmp_path / "run")
    load(given(1), out="memory://far/run")
    assert {n for n in far_files(store, "/far/run") if n.startswith("events/")} == {
        "events/rank-000000.parquet"
    }
    opened = load("memory://far/run")
    assert (opened.ranks[0].rank, opened.events(0).num_rows) == (0, opened.ranks[0].events)


def test_commands_read_and_answer_by_url(store, tmp_path, monkeypatch, capsys):
    assert ask(monkeypatch, "ingest", *given(4), "--out", "memory://far/run", "--quiet") == 0
    load(given(4), out=tmp_path / "run")
    for source, target in (
        ("memory://far/run", "memory://far/a/b.json"),
        (tmp_path / "run", tmp_path / "b.json"),
    ):
        assert ask(monkeypatch, "slowrank", str(source), "--quiet", "--json", str(target)) == 0
    assert store.cat_file("/far/a/b.json") == (tmp_path / "b.json").read_bytes()
    assert capsys.readouterr().err == ""


def test_strangers_files_are_never_written_over(store):
    store.pipe_file("/far/run/notes.txt", b"mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, which tracekit did not write"):
        load(given(1), out="memory://far/run")
    store.pipe_file("/far/file", b"mine")
    with pytest.raises(InputError, match="is a file"):
        load(given(1), out="memory://far/file")
    assert store.cat_file("/far/run/notes.txt") == b"mine"


def test_only_files_of_a_run_are_fetched(store, tmp_path):
    load(given(1), out="memory://far/run")
    store.pipe_file("/far/run/events/../../../rank-000000.parquet", b"x")
    store.pipe_file("/far/run/events/rank-000000.parquet.exe", b"x")
    run = load("memory://far/run")
    assert set(local_files(run.folder)) == {
        "manifest.json", "files.json", "groups.parquet", "events/rank-000000.parquet"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kept"),
    [("manifest.json", 100), ("events/rank-000001.parquet", 100), ("events/rank-000001.parquet", None)],
)
@pytest.mark.quick(1)
def test_damage_to_a_run_is_told_with_its_url(store, tmp_path, name, kept):
    load([str(SAMPLE)], out=tmp_path / "run")
    store.put(str(tmp_path / "run"), "/far/cut", recursive=True)
    whole = store.cat_file(f"/far/cut/{name}")
    store.rm_file(f"/far/cut/{name}")
    if kept is not None:
        store.pipe_file(f"/far/cut/{name}", whole[:kept])
    with pytest.raises(InputError, match=r"^memory://far/cut") as told:
        load(["memory://far/cut/"])
    assert "tracekit-run-" not in str(told.value)


def test_what_cannot_be_written_is_told_before_the_work(monkeypatch, capsys):
    with pytest.raises(OutputError, match="nosuch://bucket/run: cannot be written"):
        load(given(1), out="nosuch://bucket/run")
    with pytest.raises(InputError, match=r"is an ingested run already|no such file|cannot be reached"):
        load("nosuch://bucket/run", out="memory://far/run")
    assert ask(monkeypatch, "slowrank", "nowhere", "--json", "nosuch://bucket/x.json") == 3
    assert "nosuch://bucket/x.json: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mem://out/a.json", r"cannot be written \(.*\); check the URL"),
        (
            "dropbox://out/a.json",
            r"cannot be written \(dropbox needs .* not installed\); pip install dropbox",
        ),
    ],
)
def test_a_store_that_cannot_be_written_is_told(url, told):
    with pytest.raises(OutputError, match=re.escape(url) + ": " + told):
        put_bytes(url, b"{}")
