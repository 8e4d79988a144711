"""A library of C that dies on a stranger's bytes costs that file its place, and no command its life."""

import gzip
import io
import json
import os
import signal
import threading
from dataclasses import replace

import msgspec
import pyarrow.json
import pyarrow.parquet
import pytest
import zstandard
from rich.console import Console
from tracekit_cli import progress
from tracekit_cli.numerics_commands.compare import compare
from tracekit_cli.numerics_commands.replay import plan
from tracekit_cli.tracekit_commands.hang import hang
from tracekit_cli.tracekit_commands.ingest import ingest
from tracekit_cli.tracekit_commands.slowrank import slowrank
from tracekit_cli.tracekit_commands.whatif import whatif

from numerics.order.order_plan import OrderPlan, write_plan
from tests.hang.simulate import make
from tests.hostile.job import DAMAGED, documents, texts, write
from tests.ingest.test_ops import rows
from tests.ingest.test_ops import write as write_operations
from tests.marks import quick_first
from tests.numerics.synthetic import Plan
from tests.numerics.synthetic import write as write_capture
from tracekit.dumps import unpickle
from tracekit.errors import InputError, TracekitError
from tracekit.files import source
from tracekit.ingest import load
from tracekit.ingest.kineto import trace

MARK = b"deadly"
SIZES = {"tp": 2, "cp": 1, "pp": 1, "dp": 2}
DIED = "killed the process"


def die_in(monkeypatch, module, name, *, where):
    """Let a function end its process, as a fault in C does, where its first argument is that of a deadly file."""
    whole = getattr(module, name)

    def deadly(given, *others, **options):
        if where(given):
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(given, *others, **options)

    monkeypatch.setattr(module, name, deadly)


def marked(buffer):
    data = buffer.read()
    buffer.seek(0)
    return MARK in data


def run(capsys, command, *arguments):
    """(exit code or error, stdout) of a command in this process, which must survive it."""
    try:
        code = command.main([str(a) for a in arguments], prog_name="x", standalone_mode=False)
    except TracekitError as error:
        return str(error), ""
    return code or 0, capsys.readouterr().out


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A slow job in whose trace of an innocent an event has the mark for a name, for the general reader."""
    monkeypatch.setattr(trace, "scanner", lambda: None)  # a test before may have kept compiled code
    traces = documents()
    traces[DAMAGED]["traceEvents"][5]["name"] = MARK.decode()
    return write(tmp_path / "traces", traces)


@pytest.mark.parametrize("command", quick_first(1, [slowrank, whatif, ingest]))
def test_a_trace_that_kills_its_parser_is_rejected(job, tmp_path, capsys, monkeypatch, command):
    die_in(monkeypatch, pyarrow.json, "read_json", where=marked)
    options = ["--out", tmp_path / "run"] if command is ingest else ["--json", "-"]
    code, out = run(capsys, command, job, "--quiet", *options)
    assert code == 0
    kept = tmp_path / "run" / "manifest.json"
    told = json.loads(kept.read_text())["rejected"] if kept.exists() else json.loads(out).get("ranks")
    if command is not whatif:  # its answer lists no files
        rejected = told["rejected"] if isinstance(told, dict) else told
        assert [DIED in r["reason"] for r in rejected] == [True]


@pytest.mark.parametrize("end", [".gz", ".zst"])
@pytest.mark.quick(1)
def test_an_archive_that_kills_its_reader_is_rejected(tmp_path, capsys, monkeypatch, end):
    pack = gzip.compress if end == ".gz" else zstandard.ZstdCompressor().compress
    (tmp_path / "in").mkdir()
    for rank, (name, text) in enumerate(texts()):
        data = pack(text.encode()) if rank == DAMAGED else text.encode()
        (tmp_path / "in" / (name + end * (rank == DAMAGED))).write_bytes(data)
    dead = source.isal_zlib if end == ".gz" else source.zstandard
    name = "decompressobj" if end == ".gz" else "ZstdDecompressor"
    monkeypatch.setattr(dead, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGSEGV))
    code, out = run(capsys, slowrank, tmp_path / "in", "--quiet", "--json", "-")
    assert code == 0
    assert [DIED in r["reason"] for r in json.loads(out)["ranks"]["rejected"]] == [True]


def test_an_operation_table_that_kills_is_named(tmp_path, capsys, monkeypatch):
    path = write_operations(tmp_path / "ops.parquet", list(rows()))
    die_in(monkeypatch, pyarrow.parquet, "read_table", where=lambda _: True)
    said, _ = run(capsys, slowrank, path, "--quiet")
    assert "ops.parquet" in said
    assert DIED in said


def test_a_stored_table_that_kills_is_rejected(tmp_path, capsys, monkeypatch):
    load([str(write(tmp_path / "traces", documents()))], out=tmp_path / "run")
    die_in(monkeypatch, pyarrow.parquet, "ParquetFile", where=lambda path: f"{DAMAGED:06d}" in str(path))
    code, out = run(capsys, slowrank, tmp_path / "run", "--quiet", "--json", "-")
    assert code == 0
    found = json.loads(out)
    assert found["ranks"]["missing"] == [DAMAGED]
    assert [DIED in r["reason"] for r in found["ranks"]["rejected"]] == [True]
    assert {s["rank"] for s in found["suspects"]} <= {6}


def test_the_groups_of_a_run_that_kill_are_named(tmp_path, capsys, monkeypatch):
    load([str(write(tmp_path / "traces", documents()[:2] + [None] * 6))], out=tmp_path / "run")
    die_in(monkeypatch, pyarrow.parquet, "ParquetFile", where=lambda path: "groups" in str(path))
    said, _ = run(capsys, slowrank, tmp_path / "run", "--quiet")
    assert DIED in said


@pytest.mark.parametrize("command", [hang, slowrank])
def test_a_dump_that_kills_its_reader_is_rejected(tmp_path, capsys, monkeypatch, command):
    found = make(6, fault="host_stall", sizes=SIZES, ring=25, timed=True)
    for entry in (e for d in found.dumps.values() for e in d["entries"]):
        entry["duration_ms"] = 1.0
    innocent = next(r for r in found.dumps if r != found.culprit)
    found.dumps[innocent]["mark"] = MARK
    found.write(tmp_path / "in")
    die_in(monkeypatch, unpickle, "loads", where=lambda data: MARK in data)
    code, out = run(capsys, command, tmp_path / "in", "--quiet", "--json", "-")
    assert code == 0
    assert len(json.loads(out)["ranks"]["rejected"]) == 1


def test_a_capture_that_kills_is_named(tmp_path, capsys, monkeypatch):
    for name in ("a", "b"):
        write_capture(tmp_path / name, Plan(tp=2, micro_batches=1, steps=1))
    die_in(monkeypatch, pyarrow.parquet, "ParquetFile", where=lambda path: "a/capture/rank00001" in str(path))
    runs = ["--parallel", tmp_path / "a", "--baseline", tmp_path / "b", "--no-replay", "--quiet"]
    said, _ = run(capsys, compare, *runs)
    assert "rank00001.parquet" in said
    assert DIED in said


def test_an_order_plan_that_kills_is_named(tmp_path, capsys, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_plan(
            tmp_path / name,
            OrderPlan(source=MARK.decode() * (name == "b"), world_size=1, mesh={}, reductions=()),
        )
    die_in(monkeypatch, msgspec.json, "decode", where=lambda data: MARK in data)
    said, _ = run(capsys, plan, tmp_path / "a", tmp_path / "b")
    assert "order_plan.json" in said
    assert DIED in said


def test_progress_on_a_terminal_leaves_workers_their_fork(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=shown, force_terminal=True))
    with progress.reading(quiet=False) as tell:
        assert threading.active_count() == 1
        tell(progress.ProgressEvent(1, 2, 3, 4, "x"))
    assert "1/2 files" in shown.getvalue()


@pytest.mark.parametrize("terminal", quick_first(1, [True, False]))
def test_progress_covers_the_analysis(tmp_path, capsys, monkeypatch, terminal):
    shown, given = io.StringIO(), write(tmp_path / "traces", documents())
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=shown, force_terminal=terminal))
    for wait in ("_SILENT_S", "_LOG_EVERY_S"):
        monkeypatch.setattr(progress, wait, 0.01)
    run(capsys, slowrank, given)
    assert "comparing" in shown.getvalue()
    assert "8 ranks" in shown.getvalue()


@pytest.mark.parametrize("name", quick_first(1, ["ts", "dur", "cat", "name"]))
def test_a_stored_table_without_times_is_refused(tmp_path, name):
    run = load([str(write(tmp_path / "traces", documents()[:2] + [None] * 6))], out=tmp_path / "run")
    path = run.folder / run.ranks[0].table
    table = pyarrow.parquet.ParquetFile(path).read().drop_columns([name])
    pyarrow.parquet.write_table(table, path)
    unsigned = replace(run, ranks=tuple(replace(r, table_sha256="") for r in run.ranks))
    with pytest.raises(InputError, match=f"lacks the column {name}"):
        unsigned.events(0)


def test_a_stored_table_with_a_column_twice_is_refused(tmp_path):
    run = load([str(write(tmp_path / "traces", documents()[:2] + [None] * 6))], out=tmp_path / "run")
    path = run.folder / run.ranks[0].table
    table = pyarrow.parquet.ParquetFile(path).read()
    pyarrow.parquet.write_table(table.append_column("pid", table.column("pid")), path)
    unsigned = replace(run, ranks=tuple(replace(r, table_sha256="") for r in run.ranks))
    with pytest.raises(InputError, match="a column is there twice"):
        unsigned.events(0, ["ts", "dur", "cat", "name", "pid"])
