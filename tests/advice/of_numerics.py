"""Captures, plans and shadow sums that are refused, and what the refusals advise."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tracekit_cli.numerics_commands.capture import capture as capture_command
from tracekit_cli.numerics_commands.compare import compare as compare_command
from tracekit_cli.numerics_commands.ladder import ladder as ladder_command
from tracekit_cli.numerics_commands.replay import replay as replay_command

from numerics.columns import Names, read_columns
from numerics.comparison.joins.boxes import covers, is_whole
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.local.model_source import build_model
from numerics.local.proof import prove
from numerics.local.records.recorded import RecordedRun
from numerics.order import replayer
from numerics.order.order_plan import OrderPlan, read_plan, write_plan
from numerics.order.plan_finding import required_plan
from numerics.precision.advise import advise
from numerics.precision.ladder import ladder
from numerics.record.placement import _cut_dimension, boxes_of
from numerics.record.recorder import Recorder
from numerics.record.switch import LEVEL, OUT, switched_on
from numerics.record.values_writer import ValuesWriter
from numerics.store import Capture, open_capture
from numerics.values_file import ValuesFile
from tests.advice.cases import command
from tests.advice.register import Call, calls, case
from tests.house.source import ROOT
from tests.numerics.local import stepping_trainers
from tests.numerics.synthetic import Plan, write
from tests.numerics.test_advise import write as shadow_sums
from tests.numerics.test_ladder import run as ladder_run
from tracekit.plain_pickle import loads_plain

PLAN = Plan(dp=2, steps=1, micro_batches=1, level="tensors")
Damage = Callable[[Path], object]


def opened(run: Path) -> Capture:
    """The capture of a run."""
    return open_capture(run)


def values(run: Path) -> object:
    """All values of rank 0."""
    capture = open_capture(run)
    keys = [k for r, k in zip(capture.table["rank"].to_pylist(), capture.table["values"].to_pylist(), strict=True)
            if r == 0 and k]  # fmt: skip
    return [capture.read_values(0, key) for key in keys]


def captured(part: str, damage: Damage, read: Callable[[Path], object] = opened) -> None:
    """Enter a case of a damaged capture: it is captured again, or its right files are copied back."""

    def made(folder: Path, _patch: object) -> tuple[Call, Call]:
        run = write(folder / "run", PLAN)
        shutil.copytree(run, folder / "kept")

        def wrong() -> object:
            damage(run / "capture")
            return read(run)

        def right() -> object:
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(folder / "kept", run)
            return read(run)

        return wrong, right

    case(part)(made)


def changed_stamp(**fields: object) -> Damage:
    """The damage of other fields in the stamp."""

    def damage(folder: Path) -> None:
        path = folder / "stamp.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return damage


def changed_rank(
    change: Callable[[pa.Table], pa.Table],
    metadata: Callable[[dict[bytes, bytes]], dict[bytes, bytes]] = lambda m: m,
) -> Damage:
    """The damage of another table, or other metadata, in the rows of rank 1."""

    def damage(folder: Path) -> None:
        path = folder / "rank00001.parquet"
        table = pq.read_table(path)
        pq.write_table(change(table).replace_schema_metadata(metadata(dict(table.schema.metadata))), path)

    return damage


def with_column(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """A change of a column to one value in all rows."""

    def change(table: pa.Table) -> pa.Table:
        column = pa.array([value] * len(table), table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


def of_stamp(**fields: object) -> Callable[[dict[bytes, bytes]], dict[bytes, bytes]]:
    """A change of fields in the stamp that a rank's file carries."""
    return lambda m: {
        **m, b"numerics.stamp": json.dumps({**json.loads(m[b"numerics.stamp"]), **fields}).encode()
    }  # fmt: skip


def header(text: str, path: str = "values_rank00000.safetensors") -> Damage:
    """The damage of another header in a file of values."""
    return lambda folder: (folder / path).write_bytes(struct.pack("<Q", len(text)) + text.encode())


def placed(end: int, dtype: str = "F32") -> Damage:
    """The damage of values that end elsewhere, for all keys."""

    def damage(folder: Path) -> None:
        path = folder / "values_rank00000.safetensors"
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        found = json.loads(raw[8 : 8 + length])
        for key, entry in found.items():
            if key != "__metadata__":
                entry.update(dtype=dtype, data_offsets=[0, end])
        text = json.dumps(found).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])

    return damage


def empty_cells(part: str, name: str) -> None:
    """Enter a case of a table that lacks cells; a file's reader refuses such a table before."""

    def made(folder: Path, _patch: object) -> tuple[Call, Call]:
        whole = open_capture(write(folder / "run", PLAN))
        broken = replace(whole, table=with_column(name, None)(whole.table))
        return lambda: read_columns(broken, Names()), lambda: read_columns(whole, Names())

    case(part)(made)


empty_cells("{}: damaged rows (an empty cell)", "numel")
empty_cells("{}: damaged rows (sketch)", "sketch")


captured("name the folder of a run made with --capture", lambda f: shutil.rmtree(f.parent))
captured("no sensible world size", changed_stamp(world_size=-1))
captured("let it finish, or capture the run again",
         lambda f: (f / "rank00001.parquet").rename(f / "rank00001.parquet.partial"))  # fmt: skip
captured("remove the files of another run",
         lambda f: shutil.copy(f / "rank00001.parquet", f / "rank00007.parquet"))  # fmt: skip
captured("left no capture; copy the missing files here", lambda f: (f / "rank00001.parquet").unlink())
captured("{}: no capture ({}/{} is missing)", lambda f: (f / "stamp.json").unlink())
captured("{}: unreadable ({}); capture the run again", lambda f: (f / "stamp.json").write_text("{"))
captured("{}: written as {}, this is {}; capture again", changed_stamp(schema="numerics.capture/9"))
captured("its columns are others", lambda f: pq.write_table(pa.table({"a": [1]}), f / "rank00001.parquet"))
captured("{}: damaged ({}); capture the run again",
         changed_rank(lambda t: t, lambda m: {**m, b"numerics.stamp": b"{"}))  # fmt: skip
captured("carries no stamp", changed_rank(lambda t: t, lambda m: {**m, b"numerics.stamp": b"{}"}))
captured("belongs to another run ({} {}, the others", changed_rank(lambda t: t, of_stamp(source="other")))
captured("stamp.json says {}", changed_stamp(run="another"))
captured("holds rows of rank {}; copy", changed_rank(with_column("rank", 0)))
captured("holds rows of {} rank {}", changed_rank(with_column("dp", 0)))
captured(
    "{}: unreadable ({}); copy the run's manifest again", lambda f: (f.parent / "run.json").write_text("{")
)
captured(
    "no safetensors file, or cut short",
    lambda f: (f / "values_rank00000.safetensors").write_bytes(b"x"),
    values,
)
captured("holds values of rank {} of run {}",
         lambda f: shutil.copy(f / "values_rank00001.safetensors", f / "values_rank00000.safetensors"),
         values)  # fmt: skip


def file_of_values(part: str, damage: Damage, key: str = "") -> None:
    """Enter a case of one file of values, read alone."""

    def read(run: Path) -> object:
        file = ValuesFile(run / "capture" / "values_rank00000.safetensors")
        return file.read(key or next(k for k in file._header if k != "__metadata__"))

    captured(part, damage, read)


file_of_values("its values are unreadable", header("{x"))
file_of_values("its header is not a table", header("[]"))
file_of_values("its values are cut short", placed(1 << 40))
file_of_values("values of {} are cut short", placed(1))
file_of_values("no values under {}", placed(4, "F99"))


@case("the capture holds no tensor")
def _(folder, _patch):
    Recorder(folder / "empty", 0, 1).close()
    return lambda: open_capture(folder / "empty"), lambda: open_capture(write(folder / "run", PLAN))


@case("left no values; capture with level tensors")
def _(folder, _patch):
    digest = write(folder / "digest", Plan(dp=2, steps=1, micro_batches=1))
    run = write(folder / "run", PLAN)
    return lambda: open_capture(digest).read_values(0, "x"), lambda: values(run)


calls("damaged rows in the capture ({})", lambda shape: is_whole(shape, "0+4"), "-3", "4")
calls("boxes of other dimensions", lambda box: covers("4", (box,)), "0+4,0+4", "0+4")


@case("{}: values and rows do not fit; capture the run again")
def _(folder, _patch):
    run = write(folder / "run", PLAN)

    def read(numel: int) -> object:
        found = read_columns(open_capture(run), Names())
        row = next(r for r in range(len(found)) if found.values_key(r))
        found.ints["numel"][row] += numel
        RecordedRun(found).local(row)
        return RowPairs.array(SimpleNamespace(), found, row)  # type: ignore[arg-type]

    return lambda: read(1), lambda: read(0)


@case("returned {}; return an nn.Module")
def _(folder, _patch):
    (folder / "model.py").write_text(
        "import torch\ndef wrong():\n    return 3\ndef right():\n    return torch.nn.Linear(2, 2)\n"
    )
    return lambda: build_model(f"{folder}/model.py:wrong"), lambda: build_model(f"{folder}/model.py:right")


def recorded(folder: Path, names: tuple[str, ...], level: str = "tensors", *, forward: bool = True) -> object:
    """The columns of one step of a linear model, with the values of `names` only, and of its `forward`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    with Recorder(folder, 0, 1, level=level) as to:  # type: ignore[arg-type]
        for name, value in model.named_parameters():
            if "weights" in names:
                to.record(name, value.detach(), step=-1, phase="init", kind="param")
        if "inputs" in names:
            to.record("in.input", torch.ones(1, 2), step=0, phase="forward", kind="input", micro_batch=0)
        if forward:
            out = model(torch.ones(1, 2)).detach()
            to.record("out", out, step=0, phase="forward", kind="activation", micro_batch=0)
    return read_columns(open_capture(folder), Names())


def proven(folder: Path, *names: str, level: str = "tensors") -> Call:
    """The local proof of such a step."""
    return lambda: prove(recorded(folder, names, level), torch.nn.Linear(2, 2), None)  # type: ignore[arg-type]


@case("a local proof needs values")
def _(folder, _patch):
    return proven(folder / "a", "weights", "inputs", level="digest"), proven(
        folder / "b", "weights", "inputs"
    )


@case("{}: no forward was recorded; `numerics.watch` records forwards with gradients")
def _(folder, _patch):
    unseen = recorded(folder / "a", ("weights", "inputs"), forward=False)
    return lambda: prove(unseen, torch.nn.Linear(2, 2), None), proven(folder / "b", "weights", "inputs")  # type: ignore[arg-type]


@case("was not recorded before step {}; is this the model")
def _(folder, _patch):
    return proven(folder / "a", "inputs"), proven(folder / "b", "weights", "inputs")


@case("holds no values of the model's inputs")
def _(folder, _patch):
    return proven(folder / "a", "weights"), proven(folder / "b", "weights", "inputs")


class Wider(torch.nn.Linear):
    """A model that takes another argument than the one that was trained."""

    def forward(self, words):
        return super().forward(words)


@case("the built model cannot run on what step {} recorded")
def _(folder, _patch):
    run = recorded(folder / "a", ("weights", "inputs"))
    return (lambda: prove(run, Wider(2, 2), None)), (lambda: prove(run, torch.nn.Linear(2, 2), None))  # type: ignore[arg-type]


ORDER = OrderPlan(source="recorded", world_size=1, mesh={"dp": 1}, reductions=())


def plan_case(part: str, text: Callable[[str], str], limit: int = 0) -> None:
    """Enter a case of a plan's text; the run that writes it is done again."""

    def made(folder, patch):
        def wrong() -> object:
            write_plan(folder, ORDER)
            path = folder / "order_plan.json"
            path.write_text(text(path.read_text()))
            with patch.context() as for_now:
                if limit:
                    for_now.setattr("numerics.order.order_plan.MAX_PLAN_BYTES", limit)
                return read_plan(folder)

        return wrong, lambda: (write_plan(folder, ORDER), read_plan(folder))

    case(part)(made)


plan_case("larger than {} MiB; run again to record a new one", lambda text: text, limit=1)
plan_case("{}: no order plan ({}); run again", lambda text: text[:-9])
plan_case("{}: written as {}, this is {}; run again", lambda text: text.replace('/1"', '/9"'))


@case("no order_plan.json; run again with reftrain run")
def _(folder, _patch):
    return lambda: required_plan(folder), lambda: (write_plan(folder, ORDER), required_plan(folder))


calls("no replayer for captures of {}", replayer.replayer, "torchtitan", "reftrain")


@case("captures of numerics.watch have no replayer")
def _(folder, _patch):
    run, model = folder / "run", ROOT / "tests/numerics/local/stepping_trainers.py"
    stepping_trainers.trained(0, 1, None, run, steps=1)
    refused, _right = command(replay_command, f"{run} --quiet", "")
    _wrong, proven_by_model = command(
        compare_command, "", f"--model {model}:whole --parallel {run} --quiet --no-replay"
    )
    return refused, proven_by_model


@case("{}: cannot be written ({}); choose another --out")
def _(folder, patch):
    patch.setattr(replayer, "_start", lambda command, *_: write(Path(command[-1]), PLAN))
    (folder / "file").write_text("")
    wrong, right = folder / "file" / "replay", folder / "replay"
    return (
        lambda: replayer._make(["x"], folder, wrong, None),
        lambda: replayer._make(["x"], folder, right, None),
    )


@case("is the run itself or holds it; choose another --out")
def _(folder, _patch):
    return (
        lambda: replayer._check_target(folder / "run", folder),
        lambda: replayer._check_target(folder / "run", folder / "replay"),
    )


@case("is there already and holds no replay")
def _(folder, _patch):
    (folder / "mine").write_text("")
    return (
        lambda: replayer._check_target(folder / "run", folder / "mine"),
        lambda: replayer._check_target(folder / "run", folder / "replay"),
    )


@case("a budget of {} is not a factor")
def _(folder, _patch):
    run = shadow_sums(folder)
    return lambda: advise(run, 0.5), lambda: advise(run, 2)


def shadow(part: str, damage: Callable[[Path], object]) -> None:
    """Enter a case of shadow sums of two ranks; the run is done again, or the right file is copied back."""

    def made(folder, _patch):
        def whole() -> Path:
            shutil.rmtree(folder / "shadow", ignore_errors=True)
            for rank in (0, 1):
                shadow_sums(folder, rank, 2)
            return folder

        return lambda: (whole(), damage(folder / "shadow"), advise(folder)), lambda: advise(whole())

    case(part)(made)


def replaced(**fields: object) -> Callable[[Path], object]:
    """The damage of other fields in the file of rank 1."""

    def damage(folder: Path) -> object:
        path = folder / "rank00001.json"
        return path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return damage


shadow("left no shadow sums", shutil.rmtree)
shadow("files of runs of {} ranks; keep the files of one run", replaced(world_size=3))
shadow("left no file; copy it here or run again", lambda f: (f / "rank00001.json").unlink())
shadow("{}: unreadable ({}); run again", lambda f: (f / "rank00001.json").write_text("{"))
shadow("{}: is not a {}; remove the foreign file", replaced(schema="x"))
shadow("{}: says it is {}; copy the right file", replaced(rank=7))
shadow("has a row without all its figures", replaced(rows=[{}]))
shadow("{}: holds no step; let the run make one", lambda f: [
    (f / f"rank0000{r}.json").write_text(json.dumps({**json.loads((f / f"rank0000{r}.json").read_text()), "rows": []}))
    for r in (0, 1)])  # fmt: skip


def rungs(folder: Path, *policies: str, name: str = "a") -> list[tuple[Path, Path]]:
    """Pairs of runs of these policies; the runs of one pair hold the same."""
    return [(ladder_run(folder / f"{name}{i}", p), ladder_run(folder / f"{name}{i}b", p))
            for i, p in enumerate(policies)]  # fmt: skip


@case("its policy {} is not one of its rungs")
def _(folder, _patch):
    run = write(folder / "run", PLAN)
    return lambda: ladder([(run, run)]), lambda: ladder(rungs(folder, "fp32", "fp64"))


@case("two pairs have the same policy")
def _(folder, _patch):
    return (
        lambda: ladder(rungs(folder, "fp32", "fp32", name="x")),
        lambda: ladder(rungs(folder, "bf16", "fp32", "fp64")),
    )


@case("one policy is not enough")
def _(folder, _patch):
    return lambda: ladder(rungs(folder, "fp32", name="x")), lambda: ladder(rungs(folder, "fp32", "fp64"))


@case("the pairs share no tensor")
def _(folder, patch):
    def other() -> object:
        first = rungs(folder, "fp32", name="x")
        with patch.context() as for_now:
            for_now.setattr("tests.numerics.test_ladder.NAMES", ("fourth.weight.grad",))
            return ladder([*first, *rungs(folder, "fp64", name="y")])

    return other, lambda: ladder(rungs(folder, "fp32", "fp64"))


calls("placement {} is unknown; declare", lambda dim: _cut_dimension(SimpleNamespace(dim=dim), 2), None, 0)
calls(
    "cut with strides in two dimensions",
    boxes_of,
    [torch.tensor([0, 2]), torch.tensor([0, 2])],
    [torch.tensor([0, 1]), torch.tensor([0, 2])],
)


@case("{}: a capture is there already; choose another folder")
def _(folder, _patch):
    write(folder / "run", PLAN)
    return lambda: Recorder(folder / "run", 0, 1), lambda: Recorder(folder / "other", 0, 1)


@case("{}: a capture is there already; name another folder")
def _(folder, _patch):
    (folder / "a" / "capture").mkdir(parents=True)
    (folder / "c" / "capture").mkdir(parents=True)
    return command(capture_command, f"--out {folder}/a -- true", f"--out {folder}/b -- true")


@case("phase {} or kind {} is unknown")
def _(folder, _patch):
    to = Recorder(folder, 0, 1)
    return (
        lambda: to.record("x", torch.ones(1), step=0, phase="x", kind="param"),  # type: ignore[arg-type]
        lambda: to.record("x", torch.ones(1), step=0, phase="forward", kind="param"),
    )


@case("is not a level; choose digest or tensors")
def _(_folder, patch):
    def asked(level: str) -> object:
        patch.setitem(os.environ, OUT, "x")
        patch.setitem(os.environ, LEVEL, level)
        return switched_on()

    return lambda: asked("all"), lambda: asked("tensors")


@case("values of type {} cannot be stored")
def _(folder, _patch):
    def stored(dtype: torch.dtype) -> None:
        with closing(ValuesWriter(folder / "x")) as writer:
            writer.add("z", torch.ones(1, dtype=dtype))

    return lambda: stored(torch.complex64), lambda: stored(torch.float32)


@case("--pair gives all runs; leave")
def _(folder, _patch):
    pairs = rungs(folder, "fp32", "fp64")
    given = " ".join(f"--pair {a} {b}" for a, b in pairs)
    return command(ladder_command, f"{given} --parallel x", given)


@case("--variant and --steps belong to the matched replay")
def _(folder, patch):
    patch.setattr("tracekit_cli.numerics_commands.replay.make_replay", lambda *_, **__: folder)
    folder_ = write(folder / "run", PLAN)
    return command(
        replay_command,
        f"{folder_} --baseline 2d --out {folder}/o --steps 1",
        f"{folder_} --baseline 2d --out {folder}/o",
    )


calls(
    "it asks for {}.{}; a dump holds plain data only", loads_plain, pickle.dumps(Path), pickle.dumps({"a": 1})
)
calls("it asks for an external object", loads_plain, b"\x80\x02X\x01\x00\x00\x00aQ.", pickle.dumps({"a": 1}))
