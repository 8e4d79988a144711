"""What each message advises, done: a refused call, and the call that its advice makes of it."""

import hashlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from tracekit_cli import options, output, source, streams, viewer
from tracekit_cli.reftrain_commands import demo as reftrain_demo
from tracekit_cli.reftrain_commands import plan as reftrain_plan
from tracekit_cli.reftrain_commands import run_settings
from tracekit_cli.reftrain_commands import schedule as reftrain_schedule
from tracekit_cli.reftrain_commands import simulate as reftrain_simulate

from numerics.order.replayer import _check_target
from reftrain.job.launcher import prepare_folder
from reftrain.record.manifest import write_manifest
from tests.advice.register import Call, calls, case
from tests.hang import simulate
from tests.hostile import job as hostile
from tests.hostile import test_run_folders as signature
from tests.ingest.sample import document, event, put
from tests.ingest.test_jobs import job as files
from tests.slowrank import test_mesh_choice as meshes
from tests.slowrank import test_unknown_mesh as unknown
from tests.slowrank.jobs import grid, job
from tracekit import installation
from tracekit.analysis.hang.analyse import analyse as hang
from tracekit.analysis.questions.answer import answer
from tracekit.analysis.questions.fixes import parse_fixes
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.files.job_choice import refused
from tracekit.inference.mesh.mesh_choice import check_rest, choose
from tracekit.ingest import load
from tracekit.manifest import open_run
from tracekit.mesh import parse_mesh, parse_order, parse_sizes

calls("--mesh: unknown axis", parse_sizes, "xp=2", "tp=2")
calls("--mesh: size of", parse_sizes, "tp=0", "tp=2")
calls("--order: unknown axis", parse_order, "xp", "tp")
calls("--order: {} divides the ranks", parse_order, "tp,ep", "tp")
calls("--order: no axis given", parse_order, ",", "tp,cp,pp,dp")
calls("is not key=value", parse_fixes, ["5"], ["rank=5,axis=tp"])
calls("--fix: nothing is called", parse_fixes, ["node=5"], ["rank=5"])
calls("must be a number up to", parse_fixes, ["rank=five"], ["rank=3"])
calls("is not a range of steps from", lambda text: options.steps(None, None, text), "x", "3:8")
calls("is an empty range of steps", lambda text: options.steps(None, None, text), "8:3", "3:8")
calls("names no jobs from", lambda text: source.parse_two_jobs(None, None, text), "1,2,3", "1,2")
calls("is not a verdict; choose", lambda text: options.fail_on(["hang"])(None, None, text), "x", "hang")
calls("is not a step or range; {}", run_settings.parse_steps, "x", "2:4")
calls("is not a table.field=value", run_settings.parse_setting, "x", "optimizer.clip_norm=0.5")
calls("is not a count; {}", lambda text: reftrain_plan.parse_count("--seq", text), "x", "8K")
calls("is not a rank or range; write", lambda text: reftrain_simulate.parse_ranks(text, 200), "x", "0-63,128")
calls("is not within 0-", lambda text: reftrain_simulate.parse_ranks(text, 8), "0-63", "0-7")
calls(
    "no input was given",
    load,
    [],
    ["sample_traces/demo_healthy/trace/rank0.json.gz"],
)
calls("an input is empty", load, [""], ["sample_traces/demo_healthy/trace/rank0.json.gz"])


def traces(folder: Path, ranks: int = 8) -> str:
    """A folder with a small job."""
    return str(
        hostile.write(
            folder / "traces", [t if r < ranks else None for r, t in enumerate(hostile.documents())]
        )
    )


def ingested(folder: Path) -> tuple[str, Path]:
    """A folder of traces and the run that was made of it."""
    given = traces(folder, 2)
    load([given], out=folder / "run")
    return given, folder / "run"


def again(given: str, out: Path) -> Call:
    """The traces ingested again, and the run read."""
    return lambda: [open_run(load([given], out=out).folder).events(r) for r in (0, 1)]


@case("is the table of another rank than")
def _(folder, _patch):
    given, out = ingested(folder)
    signature.exchanged(out, 0, 1)
    signature.signed(out)
    run = open_run(out)
    return lambda: run.events(0), again(given, out)


MESH = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}


def hanging(folder: Path, wrong: dict[str, object], right: dict[str, object]) -> tuple[Call, Call]:
    """A hang asked with two meshes."""
    dumps = load_dumps([str(simulate.make(3, "host_stall", "tp", MESH).write(folder / "fr"))])
    return lambda: hang(dumps, **wrong), lambda: hang(dumps, **right)


@case("contradicts the dumps: {} (inner to outer)")
def _(folder, _patch):
    return hanging(folder, {"order": parse_order("dp,pp,cp,tp")}, {"order": parse_order("tp,cp,pp,dp")})


@case("--mesh describes {} ranks")
def _(folder, _patch):
    return hanging(folder, {"mesh": parse_mesh("tp=8")}, {"mesh": parse_mesh("tp=2,cp=2,pp=2,dp=2")})


@case("--mesh contradicts the dumps")
def _(folder, _patch):
    return hanging(
        folder, {"mesh": parse_mesh("dp=2,cp=2,pp=2,tp=2")}, {"mesh": parse_mesh("tp=2,cp=2,pp=2,dp=2")}
    )


@case("was recorded; {}")
def _(folder, _patch):
    run = job(folder, grid(tp=2, dp=2))
    return lambda: answer(run, ["rank=99"]), lambda: answer(run, ["rank=3"])


@case("fix something else")
def _(folder, _patch):
    run = job(folder, grid(dp=4))
    return lambda: answer(run, ["stage=0"]), lambda: answer(run, ["rank=3"])


@case("no communication operation in any trace")
def _(folder, _patch):
    quiet = hostile.documents()
    for trace in quiet:
        kept = [e for e in trace["traceEvents"] if "Collective name" not in e.get("args", {})]
        trace["traceEvents"] = [e for e in kept if "nccl" not in e["name"]]
    folder_ = str(hostile.write(folder / "quiet", quiet))
    return lambda: analyse(load([folder_])), lambda: analyse(load([traces(folder)]))


@case("the traces hold only CPU events and no communication")
def _(folder, _patch):
    hosts = hostile.documents()
    for trace in hosts:
        kept = [e for e in trace["traceEvents"] if "Collective name" not in e.get("args", {})]
        trace["traceEvents"] = [e for e in kept if "nccl" not in e["name"] and e.get("cat") != "kernel"]
    folder_ = str(hostile.write(folder / "hosts", hosts))
    return lambda: analyse(load([folder_])), lambda: analyse(load([traces(folder)]))


@case("no step was recorded whole on enough ranks")
def _(folder, _patch):
    run = job(folder, grid(dp=4))
    return lambda: analyse(run, steps=[(900, 901)]), lambda: analyse(run)


def chosen(part: str, wrong: tuple[object, ...], right: tuple[object, ...], **mesh: int) -> None:
    """Enter a case of a mesh that the user gives beside groups."""

    def made(folder, _patch):
        run = job(folder, grid(**mesh))
        return lambda: meshes.chosen(run, *wrong), lambda: meshes.chosen(run, *right)

    case(part)(made)


chosen("but the job has {} ranks", ("tp=8",), ("tp=2,dp=2",), tp=2, dp=2)
chosen("lies along none of its axes", ("dp=8",), ("tp=2,dp=4",), tp=2, dp=4)
chosen("does not lie along its axis {}; correct the sizes", ("dp=2,tp=2",), ("tp=2,dp=2",), tp=2, dp=2)
chosen(
    "--order {} contradicts the traces",
    (None, ("dp", "cp", "pp", "tp")),
    (None, ("tp", "cp", "pp", "dp")),
    tp=2,
    dp=2,
)


@case("and rank {} is missing, so the mesh is unknown")
def _(folder, _patch):
    run = meshes.bare(folder, {r: ["allreduce"] for r in (0, 1, 3)}, world=4)
    return lambda: meshes.chosen(run), lambda: meshes.chosen(run, "tp=2,dp=2")


@case("call different collectives, so the mesh is unknown")
def _(folder, _patch):
    run = meshes.bare(folder, {0: ["allreduce"], 1: ["allgather", "allreduce"]})
    return lambda: meshes.chosen(run), lambda: meshes.chosen(run, "tp=2")


@case("no process group shows an axis of {} ranks, which may be several axes")
def _(folder, _patch):
    run, ops, found = unknown.left_over(folder, lambda rank: 6 + rank // 2 % 2)
    given = choose(run, ops, parse_mesh("tp=2,dp=2,pp=2"), None)
    return lambda: check_rest(run, ops, found), lambda: check_rest(run, ops, given)


@case("--job {}: the input holds {}; {}")
def _(folder, _patch):
    run = job(folder, grid(tp=2, dp=2))
    return lambda: analyse(replace(run, job=9)), lambda: analyse(replace(run, job=None))


@case("the ranks were not recorded together")
def _(folder, _patch):
    one, other = hostile.documents(), hostile.documents(302, "healthy")
    mixed = str(hostile.write(folder / "mixed", one[:4] + other[4:]))
    return lambda: analyse(load([mixed])), lambda: analyse(load([mixed], job=1))


def lend_trace(port: int) -> None:
    """Lend a trace on a port."""
    with viewer.lent(b"", port):
        pass


@case("and the viewer asks no other")
def _(_folder, _patch):
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    return lambda: lend_trace(port), lambda: (taken.close(), lend_trace(port))


@case("choose one of these")
def _(_folder, _patch):
    given = [*files("a"), *files("b", at=90)]
    return lambda: refused(given, 3), lambda: refused(given, 2)


@case("which are never compared")
def _(_folder, _patch):
    given = [*files("a"), *files("b", at=90)]
    return lambda: refused(given, None), lambda: refused(given, 1)


@case("give the folder that holds the dumps")
def _(folder, _patch):
    (folder / "logs").mkdir()
    right = simulate.make(3, "host_stall", "tp", MESH).write(folder / "fr")
    return lambda: load_dumps([str(folder / "logs")]), lambda: load_dumps([str(right)])


@case("no file matches; check the pattern")
def _(folder, _patch):
    given = traces(folder, 2)
    return lambda: load([f"{given}/*.gzip"]), lambda: load([f"{given}/*.json"])


@case("no such file or folder; check the path")
def _(folder, _patch):
    given = traces(folder, 2)
    return lambda: load([f"{given}s"]), lambda: load([given])


def remote(folder: Path) -> str:
    """The URL of a folder with a small job."""
    memory = fsspec.filesystem("memory")
    memory.put(traces(folder, 2), f"/{folder.name}", recursive=True)
    return f"memory://{folder.name}"


@case("no such file or folder; check the URL")
def _(folder, _patch):
    url = remote(folder)
    return lambda: load([f"{url}/absent.json"]), lambda: load([url])


@case("no file matches; check the URL")
def _(folder, _patch):
    url = remote(folder)
    return lambda: load([f"{url}/*.zst"]), lambda: load([f"{url}/**/*.json"])


@case("cannot be {} ({}); check the URL and the credentials")
def _(folder, _patch):
    url = remote(folder)
    return lambda: load([url.replace("memory", "mem")]), lambda: load([url])


class Remote(MemoryFileSystem):
    """The memory's files under another protocol."""

    protocol = "s3"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("s3://", "memory://"))


@case("needs a package that is not installed); pip install {}")
def _(folder, patch):
    remote(folder)

    def installed():
        patch.setitem(_registry, "s3", Remote)
        return load([f"s3://{folder.name}"])

    return lambda: load([f"s3://{folder.name}"]), installed


@case("{} needs {} {} or newer, {}; {}")
def _(_folder, patch):
    def imported(version: str) -> None:
        patch.setattr("importlib.metadata.version", lambda _: version)
        if refusal := installation.missing_extra(ImportError("none", name="numba.core"), "this"):
            raise refusal

    return lambda: imported("0.1"), lambda: imported("99")


@case("--micro-batch: {}; give fewer, or more --tokens")
def _(_folder, _patch):
    sizes = "--preset tiny --gpus 4 --tokens 4K --seq 256 --quiet --micro-batch"
    return command(reftrain_plan.plan, f"{sizes} 99", f"{sizes} 1")


@case("standard output cannot be written ({}); redirect it")
def _(folder, _patch):
    def written(path: object) -> None:
        with Path(str(path)).open("wb") as file:
            out = streams._text(streams._Stream(file.fileno(), answers=True), None, "strict")
            out.write("answer")
            out.flush()

    return lambda: written("/dev/full"), lambda: written(folder / "answer")


@case("not installed; pip install '{}[{}]'")
def _(_folder, patch):
    def checked(finder: Callable[[str], object]) -> object:
        patch.setattr(installation, "find_spec", finder)
        return installation.check_extra("prometheus", "--prometheus")

    return lambda: checked(lambda _: None), lambda: checked(find_spec)


@case("its list of input files is damaged")
def _(folder, _patch):
    given, run = ingested(folder)
    (run / "files.json").write_text("{}")
    traces(folder, 3)
    return lambda: load([given], out=run, append=True), lambda: load([given], out=run)


@case("nothing can be appended, as its files are of a format that is read as a whole")
def _(folder, _patch):
    given, run = ingested(folder)
    (run / "files.json").unlink()
    traces(folder, 3)
    return lambda: load([given], out=run, append=True), lambda: load([given], out=run)


@case("the run mixes its events with others")
def _(folder, _patch):
    given = folder / "traces"
    for number in range(2):
        put(given / f"{number}.json", document([event(100 * number + i) for i in range(6)]))
    load([str(given)], out=folder / "run")
    put(given / "0.json", document([event(i) for i in range(9)]))
    return lambda: load([str(given)], out=folder / "run", append=True), lambda: load(
        [str(given)], out=folder / "run"
    )


@case("every command reads it as it is")
def _(folder, _patch):
    _, run = ingested(folder)
    return lambda: load([str(run)], out=folder / "other"), lambda: load([str(run)])


@case("is an ingested run; give it alone")
def _(folder, _patch):
    given, run = ingested(folder)
    return lambda: load([given, str(run)]), lambda: load([str(run)])


@case("the files are of one job")
def _(folder, _patch):
    given = traces(folder, 2)
    return lambda: load([given], out=folder / "run", job=3), lambda: load([given], out=folder / "run")


@case("{}: is a symbolic link; name the folder itself")
def _(folder, _patch):
    given, run = ingested(folder)
    (folder / "link").symlink_to(run)
    return lambda: load([given], out=folder / "link"), lambda: load([given], out=run)


ODD = os.fsdecode(b"\xff")


@case("{}: {}; name another folder")
def _(folder, _patch):
    given = traces(folder, 2)
    return lambda: load([given], out=folder / ODD), lambda: load([given], out=folder / "run")


@case("rename it, or copy the run elsewhere")
def _(folder, _patch):
    _, run = ingested(folder)
    odd = run.rename(folder / ODD)
    return lambda: load([str(odd)]), lambda: load([str(odd.rename(run))])


@case("exists and is not an ingested run")
def _(folder, _patch):
    given = traces(folder, 2)
    return lambda: load([given], out=Path(given)), lambda: load([given], out=folder / "other")


@case("the folder to put it in does not exist")
def _(folder, _patch):
    given, out = traces(folder, 2), folder / "new" / "run"
    return lambda: load([given], out=out), lambda: (out.parent.mkdir(), load([given], out=out))


@case("{}: holds {}, which tracekit did not write; move it away, or name another folder")
def _(folder, _patch):
    given, run = ingested(folder)
    (run / "notes.txt").write_text("mine")
    return lambda: load([given], out=run), lambda: ((run / "notes.txt").unlink(), load([given], out=run))


@case("{}: written as {}, this is {}; ingest the traces again")
def _(folder, _patch):
    given, run = ingested(folder)
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace("tracekit.run/1", "tracekit.run/9"))
    return lambda: open_run(run), again(given, run)


@case("its run manifest is damaged")
def _(folder, _patch):
    given, run = ingested(folder)
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text()[:-40])
    return lambda: open_run(run), again(given, run)


@case("the table of rank {} is missing")
def _(folder, _patch):
    given, run = ingested(folder)
    (run / "events" / "rank-000001.parquet").unlink()
    return lambda: open_run(run), again(given, run)


@case("was changed after it was written")
def _(folder, _patch):
    given, run = ingested(folder)
    with (run / "events" / "rank-000001.parquet").open("ab") as file:
        file.write(b"x")
    return lambda: open_run(run).events(1), again(given, run)


@case("cannot be written ({}); name another file")
def _(folder, _patch):
    return (
        lambda: output.write_file(folder / "absent" / "x.json", "{}"),
        lambda: output.write_file(folder / "x.json", "{}"),
    )


@case("cannot be read ({}); name a table file")
def _(folder, _patch):
    table = folder / "table.txt"
    table.write_text("rank 0: F0 B0\n")
    return lambda: reftrain_schedule.read_table(folder / "absent"), table.read_text


@case("holds something else than a run")
def _(folder, _patch):
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    return lambda: reftrain_demo.clear(folder / "mine"), lambda: reftrain_demo.clear(folder / "other")


def rid(folder: Path, of: Callable[[Path], object]) -> tuple[Call, Call]:
    """A call on a folder with an earlier run and a stranger's file, and the same once the file has moved away."""
    run = folder / "run"
    for path in ("capture/stamp.json", "trace/notes.txt"):
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_text("{}")
    write_manifest(run, {"faults": []})

    def moved() -> object:
        (run / "trace" / "notes.txt").rename(folder / "notes.txt")
        return of(run)

    return lambda: of(run), moved


@case("--out: {}; move it away, or give another folder")
def _(folder, _patch):
    return rid(folder, reftrain_demo.clear)


@case("which no replay wrote; move it away")
def _(folder, _patch):
    return rid(folder, lambda run: _check_target(folder / "other", run))


@case("{}: {}; move it away, or name another folder")
def _(folder, _patch):
    (folder / "run" / "trace").mkdir(parents=True)

    def moved() -> object:
        (folder / "run" / "trace").rename(folder / "trace")
        return prepare_folder(folder / "run")

    return lambda: prepare_folder(folder / "run"), moved


@case("{}: {} is a symbolic link; name the folder itself")
def _(folder, _patch):
    (folder / "link").symlink_to(folder)
    return lambda: prepare_folder(folder / "link"), lambda: prepare_folder(folder)


def changed(folder: Path, change: Callable[[Path, dict[str, object]], None]) -> tuple[Call, Call]:
    """A run whose table of rank 1 and its row of the manifest are changed together, and the traces ingested again."""
    given, run = ingested(folder)
    manifest = json.loads((run / "manifest.json").read_text())
    row = manifest["ranks"][1]
    table = run / row["table"]
    change(table, row)
    row["table_sha256"] = hashlib.sha256(table.read_bytes()).hexdigest()
    (run / "manifest.json").write_text(json.dumps(manifest | {"sha256": ""}))
    return lambda: open_run(run).events(1), again(given, run)


@case("events, its manifest says {}")
def _(folder, _patch):
    return changed(folder, lambda _table, row: row.update(events=1))


@case("is not an event table of tracekit")
def _(folder, _patch):
    def texts(path: Path, _row: object) -> None:
        table = pq.read_table(path)
        pq.write_table(table.set_column(0, table.schema.names[0], pa.array(["x"] * table.num_rows)), path)

    return changed(folder, texts)


@case("{}: lacks the column {}; ingest the traces again")
def _(folder, _patch):
    def without_times(path: Path, _row: object) -> None:
        pq.write_table(pq.read_table(path).drop_columns(["ts"]), path)

    return changed(folder, without_times)


@case("unreadable ({}); ingest the traces again")
def _(folder, _patch):
    return changed(folder, lambda table, _row: table.write_bytes(b"PAR1"))


def command(program: click.Command, wrong: str, right: str) -> tuple[Call, Call]:
    """A command with two lists of arguments."""

    def run(text: str) -> object:
        done = CliRunner().invoke(program, text.split(), standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.output

    return lambda: run(wrong), lambda: run(right)


@case("the sizes are not given")
def _(_folder, _patch):
    return command(reftrain_schedule.schedule, "1f1b", "1f1b --stages 2 --micro-batches 4")


@case("--tokens: {}; give a multiple of {}")
def _(_folder, _patch):
    few = "--preset tiny --gpus 1 --seq 64 --tokens"
    return command(reftrain_plan.plan, f"{few} 100", f"{few} 128")
