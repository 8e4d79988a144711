"""Inputs to a Run: what is found, what is refused and how it is said, what is left on disk."""

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import fsspec
import pytest

from tests.ingest.sample import document, event, put
from tracekit.errors import InputError, UsageError
from tracekit.files.source import Source
from tracekit.ingest import load
from tracekit.ingest.readers import read_file
from tracekit.manifest import open_run


def good(folder: Path, ranks=range(4), **more) -> Path:
    for rank in ranks:
        put(folder / f"t{rank}.json.gz", document(rank=rank, **more))
    return folder


def kinds(run):
    return sorted(q.kind for q in run.quality)


BAD = {
    "empty": (b"", "it is empty"),
    "blank": (b" \n", "nothing but white space"),
    "text": (b"step 1 loss 3.2\n", "it is not JSON"),
    "html": (b"<!DOCTYPE html><h1>404</h1>", "an HTML or XML page"),
    "cut short": (b'{"schemaVersion": 1, "dev', "ends before its `traceEvents`"),
    "cut early": (json.dumps(document())[:160].encode(), "cut off before its first whole event"),
    "no events": (b'{"traceEvents": []}', "it is empty: the profiler recorded nothing"),
    "times in another unit": (
        json.dumps({"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 5.1e21, "dur": 2e12}]}).encode(),
        "it has 1 events without a start",
    ),
    "begin alone": (
        json.dumps({"traceEvents": [{"ph": "B", "name": "aten::mm", "ts": 5, "pid": 1, "tid": 1}]}).encode(),
        "it has 1 events that begin without an end",
    ),
    "no rank": (json.dumps(document(rank=None)).encode(), "its rank is unknown"),
    "zip": (b"PK\x03\x04...", "zip archive"),
    "corrupt gzip": (b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff\xff\xff\xff\xff\xff", "gzip"),
    "half a gzip header": (gzip.compress(b"{}")[:9], "before any event"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.quick(3)
def test_a_bad_file_alone_and_among_good_ones(case, tmp_path):
    data, reason = BAD[case]
    path = put(tmp_path / "bad.json", data)
    with pytest.raises(InputError) as caught:
        load([path])
    assert path in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    run = load([str(good(tmp_path))])
    assert [r.rank for r in run.ranks] == [0, 1, 2, 3]
    assert [(r.path, reason in r.reason) for r in run.rejected] == [(path, True)]


def test_a_rejected_files_name_tells_its_rank(tmp_path):
    put(tmp_path / "rank_9.json", b"")
    assert load([str(good(tmp_path))]).rejected[0].rank == 9


def test_no_permission(tmp_path, monkeypatch):
    """Simulated, because whoever runs the tests may be root, to whom every file is open."""
    path = str(good(tmp_path) / "t2.json.gz")
    opened = Source.open

    def refuse(source):
        if source.uri == path:
            raise PermissionError(13, "Permission denied")
        return opened(source)

    monkeypatch.setattr(Source, "open", refuse)
    run = load([str(tmp_path)])
    assert [r.rank for r in run.ranks] == [0, 1, 3]
    assert [(r.path, r.reason) for r in run.rejected] == [
        (path, "no permission to read it; check its owner and mode")
    ]


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    good(tmp_path / "a")
    listed = Path.iterdir
    (tmp_path / "b").mkdir()

    def refuse(folder):
        if folder.name == "b":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    run = load([str(tmp_path)])
    assert [r.path for r in run.rejected] == [str(tmp_path / "b")]
    with pytest.raises(InputError, match="Permission denied"):
        load([str(tmp_path / "b")])


@pytest.mark.parametrize(
    "text", ["nowhere", "nowhere/*.json", "memory://nowhere/x.json", "nosuchprotocol://x"]
)
def test_an_input_that_names_nothing(text):
    with pytest.raises(InputError, match=r"check the|cannot be reached"):
        load([text])


def test_folders_without_traces(tmp_path):
    with pytest.raises(InputError, match="holds no traces; give the folder"):
        load([str(tmp_path)])
    put(tmp_path / "notes.txt", b"x")
    put(tmp_path / "config.json", b'{"a": 1}')
    with pytest.raises(InputError, match="a JSON document without `traceEvents`"):
        load([str(tmp_path)])
    put(tmp_path / "fr" / "_dump_0", pickle.dumps({"version": "2.9", "pg_config": {}, "entries": []}))
    with pytest.raises(InputError, match="flight-recorder dump"):
        load([str(tmp_path / "fr")])
    with pytest.raises(InputError, match="flight-recorder dump"):
        load([str(tmp_path / "fr" / "_dump_0")])


def test_a_dump_in_json_form_is_named_too(tmp_path):
    path = put(tmp_path / "d.json", json.dumps({"version": "2.9", "pg_config": {}, "entries": []}))
    with pytest.raises(InputError, match="flight-recorder dump"):
        load([path])


def test_foreign_files_make_one_row(tmp_path):
    for i in range(300):
        put(tmp_path / f"step{i}.jsonl", b"{}")
    put(tmp_path / "config.json", b'{"a": [1, 2]}')
    run = load([str(good(tmp_path))])
    assert run.rejected == ()
    assert [(q.kind, q.count, q.path) for q in run.quality] == [("foreign_files", 301, None)]
    assert "config.json, step0.jsonl" in run.quality[0].detail


def test_globs_urls_and_doubles(tmp_path):
    good(tmp_path / "a", ranks=[0, 1])
    good(tmp_path / "b", ranks=[2, 3])
    for inputs in (
        [f"{tmp_path}/*/t*.json.gz"],
        [f"{tmp_path}/**"],
        [f"file://{tmp_path}"],
        [f"file://{tmp_path}/*/t*.gz"],
        [str(tmp_path / "a"), str(tmp_path / "b" / "t2.json.gz"), str(tmp_path / "b"), str(tmp_path)],
    ):
        run = load(inputs)
        assert [r.rank for r in run.ranks] == [0, 1, 2, 3]
        assert run.rejected == ()
        assert run.quality == ()
    fs = fsspec.filesystem("memory")
    fs.pipe("/traces/rank3.json", json.dumps(document(rank=None)).encode())
    assert [r.rank for r in load(["memory://traces"]).ranks] == [3]
    assert [r.path for r in load(["memory://traces/rank3.json"]).ranks] == ["memory:///traces/rank3.json"]


def test_a_run_folder_gives_mesh_hosts_and_traces_only(tmp_path):
    good(tmp_path / "trace")
    put(tmp_path / "fr" / "_dump_0", b"\x80\x04N.")
    put(tmp_path / "metrics" / "0.jsonl", b"{}")
    put(tmp_path / "capture" / "x.parquet", b"PAR1")
    mesh = {"order": ["tp", "dp"], "sizes": {"tp": 2, "dp": 2}}
    manifest = {
        "schema": "reftrain.run/1",
        "mesh": mesh,
        "hosts": ["a", "a", "b", "b"],
        "faults": [{"rank": 3}],
    }
    put(tmp_path / "run.json", manifest)
    for folder in (tmp_path, tmp_path / "trace"):
        run = load([str(folder)])
        assert run.mesh_hint == mesh
        assert [r.host for r in run.ranks] == ["a", "a", "b", "b"]
        assert run.rejected == ()
        assert run.quality == ()
    put(tmp_path / "run.json", manifest | {"hosts": {"h0": [0, 1], "h1": [2, 3]}})
    assert [r.host for r in load([str(tmp_path)]).ranks] == ["h0", "h0", "h1", "h1"]


def test_copies_windows_and_rivals_of_one_rank(tmp_path):
    good(tmp_path, ranks=[0])
    later = document([event(i) for i in range(100, 103)])
    put(tmp_path / "copy.json.gz", document())
    put(tmp_path / "later.json.gz", later)
    run = load([str(tmp_path)])
    assert kinds(run) == ["duplicate_file", "joined_windows"]
    assert run.ranks[0].events == 9
    assert run.ranks[0].windows == tuple(run.events(0).column("ts").to_pylist()[i] for i in (0, 6))
    assert run.events(0).column("external_id").to_pylist() == [*range(6), 100, 101, 102]
    put(tmp_path / "rival.json.gz", document([event(i) for i in range(20)]))
    run = load([str(tmp_path)])
    assert run.ranks[0].path.endswith("rival.json.gz")
    assert len(run.rejected) == 2
    assert all("also claimed by" in r.reason and r.rank == 0 for r in run.rejected)
    other = document([event(0), event(1)])
    other["distributedInfo"]["world_size"] = 8
    put(tmp_path / "other.json.gz", other)
    assert any(
        "another world size" in r.reason or "also claimed" in r.reason for r in load([str(tmp_path)]).rejected
    )


def test_split_files_give_what_one_file_gives(tmp_path):
    def comm(i, ranks):
        args = {"External id": i, "Collective name": "allreduce", "Process Group Ranks": ranks}
        return event(i, args=args)

    events = [comm(i, "[0, 1]" if i % 3 else "[0, 2]") for i in range(40)]
    one = load([put(tmp_path / "one" / "a.json", document(events))])
    for part in range(4):
        put(tmp_path / "split" / f"step{part}.json", document(events[part * 10 : part * 10 + 10]))
    split = load([str(tmp_path / "split")])
    assert split.events(0).to_pylist() == one.events(0).to_pylist()
    assert split.groups == one.groups


def test_world_sizes_that_disagree(tmp_path):
    good(tmp_path, ranks=[0, 1, 2])
    odd = document(rank=3)
    odd["distributedInfo"]["world_size"] = 16
    put(tmp_path / "t3.json.gz", odd)
    run = load([str(tmp_path)])
    assert run.world_size == 4
    assert [(r.rank, r.reason) for r in run.rejected] == [
        (
            None,
            (
                "it belongs to another job (world size 16); only the files of job 1 are read (world size 4); "
                "--job 2 reads it"
            ),
        )
    ]


def test_files_of_two_jobs_are_refused(tmp_path):
    good(tmp_path, ranks=[0, 1])
    for rank in (2, 3):
        odd = document(rank=rank)
        odd["distributedInfo"]["world_size"] = 16
        put(tmp_path / f"t{rank}.json.gz", odd)
    with pytest.raises(
        InputError, match=r"2 jobs, .*1: world size 4, 2 ranks, .*; 2: world size 16, 2 ranks"
    ):
        load([str(tmp_path)])


def test_two_recordings_of_the_same_ranks_are_refused(tmp_path):
    for name, shift in (("monday", 0), ("tuesday", 86_400_000_000)):
        for rank in range(2):
            step = event(0, name="ProfilerStep#5", cat="user_annotation") | {"ts": 10 + shift}
            put(tmp_path / name / f"{rank}.json", document([step, event(1)], rank=rank))
    with pytest.raises(
        InputError, match=r"2 jobs, .*1: folder .*monday, 2 ranks; 2: folder .*tuesday, 2 ranks"
    ):
        load([str(tmp_path)])
    assert [r.rank for r in load([str(tmp_path / "monday")]).ranks] == [0, 1]
    assert [r.path for r in load([str(tmp_path)], job=2).ranks] == [
        str(tmp_path / "tuesday" / f"{rank}.json") for rank in range(2)
    ]
    with pytest.raises(UsageError, match="--job 3: the input holds 2 jobs"):
        load([str(tmp_path)], job=3)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_out_is_whole_repeatable_and_opens_again(tmp_path):
    inputs = [str(good(tmp_path / "in"))]
    put(tmp_path / "in" / "rank_9.json", b"")
    run = load(inputs, out=tmp_path / "a")
    load(inputs, out=tmp_path / "b", jobs=2)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")
    assert set(folder_bytes(tmp_path / "a")) == {"manifest.json", "files.json", "groups.parquet"} | {
        f"events/rank-{r:06d}.parquet" for r in range(4)
    }
    again = load([str(tmp_path / "a")])
    assert again == run
    assert again.events(2).equals(run.events(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "in"]
    load(inputs[:1], out=tmp_path / "a")
    assert open_run(tmp_path / "a") == run


def test_out_that_is_something_else_is_left_alone(tmp_path):
    inputs = [str(good(tmp_path / "in"))]
    put(tmp_path / "mine" / "thesis.txt", b"x")
    for out, words in (
        (tmp_path / "mine", "not an ingested run"),
        (tmp_path / "no" / "run", "does not exist"),
    ):
        with pytest.raises(InputError, match=words):
            load(inputs, out=out)
    load(inputs, out=tmp_path / "run")
    with pytest.raises(InputError, match="is an ingested run already"):
        load([str(tmp_path / "run")], out=tmp_path / "run2")
    with pytest.raises(InputError, match="give it alone"):
        load([str(tmp_path / "run"), inputs[0]])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "mine", "run"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_end_half_way_leaves_nothing(error, tmp_path):
    inputs = [str(good(tmp_path / "in"))]

    def stop(event):
        if event.done_files == 3:
            raise error

    with pytest.raises(error):
        load(inputs, out=tmp_path / "run", progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_damaged_runs_are_refused(tmp_path):
    run = load([str(good(tmp_path / "in"))], out=tmp_path / "run")
    (tmp_path / "run" / run.ranks[1].table).unlink()
    with pytest.raises(InputError, match="table of rank 1 is missing"):
        load([str(tmp_path / "run")])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text()) | {"sha256": ""}
    manifest["ranks"][1]["table"] = "../../in/t0.json.gz"
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest, indent=1))
    with pytest.raises(InputError, match="table of rank 1 is missing"):
        load([str(tmp_path / "run")])
    manifest["ranks"][1]["table"] = "events/rank-000001.parquet"
    for key, value in (
        ("rank", "a"),
        ("rank", 2**40),
        ("events", -1),
        ("groups", [9]),
        ("table", 5),
        ("host", []),
    ):
        wrong = manifest | {"ranks": [manifest["ranks"][0] | {key: value}]}
        (tmp_path / "run" / "manifest.json").write_text(json.dumps(wrong, indent=1))
        with pytest.raises(InputError, match="manifest is damaged"):
            load([str(tmp_path / "run")])
    (tmp_path / "run" / "manifest.json").write_text('{\n "schema": "tracekit.run/9"}')
    with pytest.raises(InputError, match=r"tracekit\.run/9"):
        load([str(tmp_path / "run")])


def test_a_changed_table_is_refused(tmp_path):
    load([str(good(tmp_path / "in"))], out=tmp_path / "run")
    run = load([str(tmp_path / "run")])
    table = tmp_path / "run" / run.ranks[0].table
    table.write_bytes(table.read_bytes() + b" ")
    with pytest.raises(InputError, match=r"rank-000000.parquet: was changed"):
        load([str(tmp_path / "run")]).events(0)
    assert load([str(tmp_path / "run")]).events(1).num_rows
    (tmp_path / "run" / "groups.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"groups.parquet: was changed"):
        load([str(tmp_path / "run")])


def test_files_of_others_are_never_replaced(tmp_path):
    inputs = [str(good(tmp_path / "in"))]
    load(inputs, out=tmp_path / "run")
    (tmp_path / "run" / "events" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds events/notes.txt, which tracekit did not write"):
        load(inputs, out=tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(InputError, match="is a symbolic link"):
        load(inputs, out=tmp_path / "link")


def test_a_killed_process_leaves_nothing_behind(tmp_path):
    inputs = [str(good(tmp_path / "in"))]
    load(inputs, out=tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    for doomed in ("merge", "save_manifest"):
        kill = f"""
import os, signal
from tracekit.ingest import load
load_module = __import__("sys").modules["tracekit.ingest.load"]
load_module.{doomed} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
load({inputs!r}, out=__import__("pathlib").Path({str(tmp_path / "run")!r}))
"""
        done = subprocess.run([sys.executable, "-c", kill], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert (
        len([p for p in tmp_path.iterdir() if p.name.endswith(".partial")]) == 1
    )  # the next call removed the first
    (tmp_path / "run").rename(tmp_path / ".run.x.old-run")
    (tmp_path / ".run.x.old").mkdir()
    (tmp_path / ".run.x.old-run").rename(tmp_path / ".run.x.old" / "run")
    put(tmp_path / "in" / "bad.json", b"no")
    with pytest.raises(InputError, match="cannot be used"):
        load([str(tmp_path / "in" / "bad.json")], out=tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "run"]


def test_progress_reaches_the_end(tmp_path):
    inputs = [str(good(tmp_path))]
    for jobs in (1, 2):
        told = []
        load(inputs, jobs=jobs, progress=told.append)
        last = told[-1]
        assert (last.done_files, last.total_files) == (4, 4)
        assert last.done_bytes == last.total_bytes > 0
        assert all(a.done_bytes <= b.done_bytes for a, b in pairwise(told))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_that_kills_its_reader_is_rejected(tmp_path, monkeypatch, jobs):
    good(tmp_path)
    monkeypatch.setattr(sys.modules["tracekit.ingest.reading"], "read_file", die_at_rank_2)
    run = load([str(tmp_path)], jobs=jobs)
    assert [r.rank for r in run.ranks] == [0, 1, 3]
    assert [(Path(r.path).name, "killed the process" in r.reason) for r in run.rejected] == [
        ("t2.json.gz", True)
    ]


def die_at_rank_2(source, part, tell):
    if "t2" in source.name:
        os.kill(os.getpid(), signal.SIGSEGV)
    return read_file(source, part, tell)


def test_a_fault_of_ours_costs_one_file_only(tmp_path, monkeypatch):
    good(tmp_path)
    monkeypatch.setattr(sys.modules["tracekit.ingest.reading"], "read_file", fail_at_rank_2)
    run = load([str(tmp_path)])
    assert [r.rank for r in run.ranks] == [0, 1, 3]
    assert [r.reason for r in run.rejected] == ["a fault of ours, please report it: KeyError: 'oh'"]


def fail_at_rank_2(source, part, tell):
    if "t2" in source.name:
        raise KeyError("oh")
    return read_file(source, part, tell)
