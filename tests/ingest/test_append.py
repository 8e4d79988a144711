"""A run that grows window by window is the run of all files; a file is read once."""

import shutil
import sys
from dataclasses import replace

import pytest

from tests.ingest.sample import document, event, put
from tests.marks import quick_first
from tracekit.errors import InputError
from tracekit.ingest import load, reading

RANKS = range(2)


def window(number, rank, events=6):
    """A window of a rank, whose collectives are in a group that no other window has."""
    args = {"Collective name": "allreduce", "Process Group Ranks": f"[0, {number}]"}
    listed = [event(100 * number + i, name=f"op{number}{i}", args=args) for i in range(events)]
    return document(listed, rank=rank)


@pytest.fixture
def traces(tmp_path):
    """Writes a window of all ranks into the folder, which it returns."""

    def write(number):
        for rank in RANKS:
            put(tmp_path / "traces" / f"w{number}-rank{rank}.json.gz", window(number, rank))
        return str(tmp_path / "traces")

    return write


@pytest.fixture
def read(monkeypatch):
    """Names of the files that were read, in the order of reading."""
    names = []
    plain = reading.read_file

    def noted(source, *rest):
        names.append(source.name)
        return plain(source, *rest)

    monkeypatch.setattr(reading, "on_this_machine", lambda _jobs, _method: here)
    monkeypatch.setattr(reading, "read_file", noted)
    return names


def here(tasks, make_handler, folder, _limits, _idle):
    """The engine that does all in this process."""
    handler = make_handler(folder)
    yield from ((i, handler(task)) for i, task in enumerate(tasks))


def said(run):
    """All that a run tells of itself and of its events."""
    ranks = [replace(r, table_sha256="") for r in run.ranks]
    tables = [run.events(r.rank).to_pylist() for r in run.ranks]
    return ranks, run.groups, run.rejected, run.quality, run.world_size, run.mesh_hint, tables


def test_windows_appended_are_the_run_of_all(traces, read, tmp_path):
    for number in (1, 2, 3):
        folder = traces(number)
        grown = load(folder, out=tmp_path / "grown", append=True)
        assert sorted(read) == sorted(f"w{number}-rank{r}.json.gz" for r in RANKS)
        read.clear()
        assert said(grown) == said(load(folder, out=tmp_path / "whole"))
        read.clear()
    assert len(grown.ranks[0].windows) == 3


@pytest.mark.slow
def test_a_new_rank_leaves_other_tables_alone(traces, read, tmp_path):
    folder = traces(1)
    load(folder, out=tmp_path / "run", append=True)
    table = tmp_path / "run" / "events" / "rank-000000.parquet"
    before = table.stat().st_ino
    put(tmp_path / "traces" / "late.json.gz", window(1, 3))
    assert said(load(folder, out=tmp_path / "run", append=True)) == said(load(folder))
    assert table.stat().st_ino == before


def test_nothing_new_reads_and_writes_nothing(traces, read, tmp_path):
    folder = traces(1)
    run = load(folder, out=tmp_path / "run", append=True)
    read.clear()
    before = (tmp_path / "run" / "manifest.json").stat().st_ino
    assert said(load(folder, out=tmp_path / "run", append=True)) == said(run)
    assert (read, (tmp_path / "run" / "manifest.json").stat().st_ino) == ([], before)


@pytest.mark.slow
def test_bad_foreign_and_doubled_files_are_remembered(traces, read, tmp_path):
    folder = traces(1)
    put(tmp_path / "traces" / "bad.json", b"<html>")
    put(tmp_path / "traces" / "notes.txt", b"x")
    load(folder, out=tmp_path / "run", append=True)
    traces(2)
    shutil.copy(tmp_path / "traces" / "w2-rank0.json.gz", tmp_path / "traces" / "a-copy.json.gz")
    assert said(load(folder, out=tmp_path / "run", append=True)) == said(load(folder))
    traces(3)
    assert said(load(folder, out=tmp_path / "run", append=True)) == said(load(folder))


@pytest.mark.slow
def test_a_file_that_grew_is_read_again(traces, read, tmp_path):
    folder = traces(1)
    put(tmp_path / "traces" / "w1-rank0.json.gz", window(1, 0, events=3))
    load(folder, out=tmp_path / "run", append=True)
    read.clear()
    traces(1)
    assert said(load(folder, out=tmp_path / "run", append=True)) == said(load(folder))
    assert read[0] == "w1-rank0.json.gz"


def test_windows_of_a_recorded_run_are_appended(traces, read, tmp_path):
    """A recorded run tells the host of each rank; its manifest is kept with the run that grows."""
    manifest = {"schema": "reftrain.run/1", "mesh": None, "hosts": ["n0", "n1"]}
    put(tmp_path / "traces" / "run.json", manifest)
    load(traces(1), out=tmp_path / "run", append=True)
    grown = load(traces(2), out=tmp_path / "run", append=True)
    assert [r.host for r in grown.ranks] == ["n0", "n1"]
    assert said(grown) == said(load(str(tmp_path / "traces")))


def test_a_file_that_grew_among_others_is_refused(traces, read, tmp_path):
    folder = traces(1)
    traces(2)
    load(folder, out=tmp_path / "run", append=True)
    put(tmp_path / "traces" / "w1-rank0.json.gz", window(1, 0, events=9))
    with pytest.raises(InputError, match="ingest all traces again"):
        load(folder, out=tmp_path / "run", append=True)
    assert len(load(tmp_path / "run").ranks) == len(RANKS)


@pytest.mark.parametrize("place", quick_first(1, ["save_manifest", "_place", "save_files"]))
def test_an_append_cut_short_leaves_the_old_run(place, traces, read, tmp_path, monkeypatch):
    folder = traces(1)
    old = said(load(folder, out=tmp_path / "run", append=True))
    traces(2)

    def cut(*_given, **_named):
        raise KeyboardInterrupt

    from tracekit.ingest import merge

    module = merge if place == "_place" else sys.modules["tracekit.ingest.load"]
    with monkeypatch.context() as patch:
        patch.setattr(module, place, cut)
        with pytest.raises(KeyboardInterrupt):
            load(folder, out=tmp_path / "run", append=True)
    assert said(load(tmp_path / "run")) == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "traces"]
    assert said(load(folder, out=tmp_path / "run", append=True)) == said(load(folder))


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "damage",
    quick_first(
        1,
        [
            lambda run: (run / "files.json").unlink(),
            lambda run: (run / "files.json").write_text("[]"),
            lambda run: changed(run / "files.json", '"rank":0', '"rank":1'),
            lambda run: (run / "events" / "rank-000001.parquet").write_bytes(b"PAR1"),
        ],
    ),
    ids=["no record", "not an object", "another rank", "another table"],
)
def test_a_changed_run_is_not_appended_to(damage, traces, read, tmp_path):
    folder = traces(1)
    load(folder, out=tmp_path / "run", append=True)
    damage(tmp_path / "run")
    traces(2)
    with pytest.raises(InputError, match=r"ingest (all|the) traces again"):
        load(folder, out=tmp_path / "run", append=True)
