"""Runs, tables and simulations of reftrain that are refused, and what the refusals advise."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import torch
from tracekit_cli.reftrain_commands import schedule as reftrain_schedule

from numerics.order.order_plan import OrderPlan, read_plan, write_plan
from reftrain.config.checks import check_world
from reftrain.cost.hardware import load_hardware
from reftrain.data.sequences import SyntheticSource
from reftrain.faults.bugs import parse_bug
from reftrain.faults.bugs.bug import BugField, parse_value
from reftrain.faults.longer_documents import LongerDocuments
from reftrain.job.launcher import _fork_all, prepare_folder
from reftrain.job.one_rank import _check_resumed, choose_device
from reftrain.plan.choose import Planner
from reftrain.plan.meshes import Workload
from reftrain.rank.processes import Ranks
from reftrain.rank.world import world_from_environment
from reftrain.replay.command import _plan_of, replay
from reftrain.replay.formats import formats_of
from reftrain.replay.manifest import read_manifest
from reftrain.replay.variant import with_variants
from reftrain.schedule.costs import Costs
from reftrain.schedule.csv_form import from_csv
from reftrain.schedule.evaluation import evaluate
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.spec import ScheduleSpec
from reftrain.schedule.svg import to_svg
from reftrain.schedule.text_form import from_text, to_text
from reftrain.simulate.pool import made_folder
from reftrain.simulate.runner import simulate
from reftrain.simulate.setup import schedule_of
from reftrain.train.checkpoint import find
from tests.advice.cases import command, traces
from tests.advice.of_config import configured
from tests.advice.register import calls, case
from tests.simulate.case import setup_of
from tracekit.dumps.files import read_bytes
from tracekit.dumps.transfer import DumpReader
from tracekit.ingest import load

WHOLE = json.dumps({"schema": "reftrain.run/1"})
TABLE = to_text(make_schedule("1f1b", 2, 1, 4, 1))


@case("a table has its own sizes")
def _(folder, _patch):
    path = folder / "table.txt"
    path.write_text(TABLE)
    return command(reftrain_schedule.schedule, f"{path} --stages 2", str(path))


def read_table(folder: Path, content: bytes) -> object:
    """The table in a file with this content."""
    path = folder / "table.txt"
    path.write_bytes(content)
    return reftrain_schedule.read_table(path)


@case("is not text; name a table file")
def _(folder, _patch):
    return lambda: read_table(folder, b"\xff\xfe"), lambda: read_table(folder, TABLE.encode())


calls(
    "see docs/schedules.md for the form of a table", lambda text: from_text(text, "x"), "rank 0: X9\n", TABLE
)


@case("{}: longer than {} characters; give a smaller table")
def _(_folder, patch):
    patch.setattr("reftrain.schedule.csv_form.MOST_TABLE_BYTES", 60)
    patch.setattr("reftrain.schedule.text_form.MOST_TABLE_BYTES", 999)
    return lambda: from_csv("0F0," * 60, "x"), lambda: from_text(TABLE, "x")


@case("--svg: {}; stay below {}")
def _(_folder, patch):
    patch.setattr("reftrain.schedule.svg.MOST_DRAWN_ACTIONS", 20)

    def drawn(count: int) -> object:
        return to_svg(evaluate(make_schedule("1f1b", 2, 1, count, 1), Costs(), None))

    return lambda: drawn(8), lambda: drawn(2)


FIELD = BugField("share of the sum", 0.5)
calls("{}: '{}' is not a {}; it is: {}", lambda text: parse_value("fault.x", FIELD, text), "x", "0.5")
calls("{}: {} is out of bounds; give {} to {}", lambda text: parse_value("fault.x", FIELD, text), "-1", "0.5")
calls(
    "{}: '{}' is unknown; choose among {}",
    lambda text: parse_value("fault.x", BugField("", "w1", ("w1", "w2")), text),
    "w9",
    "w2",
)
calls(
    "set numerics.document_mask = true",
    lambda masked: LongerDocuments(
        SyntheticSource(configured("run.seed=0").data, 32), 2.0, lambda _: None, masked=masked
    ),
    False,
    True,
)


@case("mesh: {}; stay below {}, or start the ranks")
def _(_folder, _patch):
    many = configured("mesh.dp=2000 data.batch_size=2000")
    return lambda: _fork_all(many, lambda _: []), lambda: check_world(many, 2000)


@case("{}: {}; choose another out")
def _(folder, _patch):
    (folder / "file").write_text("")
    return lambda: prepare_folder(folder / "file" / "run"), lambda: prepare_folder(folder / "run")


@case("run.device: rank {} of this machine has no GPU")
def _(_folder, patch):
    patch.setattr(torch.cuda, "device_count", lambda: 0)
    return (
        lambda: choose_device(configured("run.device=cuda"), 0),
        lambda: choose_device(configured("run.device=cpu"), 0),
    )


def resumed(settings: str) -> object:
    """A run that goes on from a checkpoint of four steps."""
    return _check_resumed(configured(f"checkpoint.resume=x {settings}"), 4)


calls("the checkpoint is at step {}", resumed, "run.steps=4", "run.steps=5")
calls(
    "where the run resumes; choose steps from {} on",
    resumed,
    "run.steps=6 evidence.trace_steps=[2]",
    "run.steps=6 evidence.trace_steps=[4]",
)
calls(
    "is not a number; start ranks with torchrun or srun",
    world_from_environment,
    {"RANK": "x", "WORLD_SIZE": "2"},
    {"RANK": "1", "WORLD_SIZE": "2"},
)
SLURM = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
calls("MASTER_ADDR: is not set", world_from_environment, SLURM, {**SLURM, "MASTER_ADDR": "node0"})


@case("has no order_plan.json; run again with --capture digest")
def _(folder, patch):
    patch.setattr("reftrain.replay.command.configuration", lambda *_: configured("run.steps=1"))
    (folder / "run.json").write_text(WHOLE)

    def further() -> object:
        write_plan(folder, OrderPlan(source="recorded", world_size=1, mesh={}, reductions=()))
        return read_plan(folder)

    return lambda: replay(folder, folder / "out", "digest", (), (), None), further


@case("order_plan.json is of {} ranks")
def _(folder, _patch):
    def of(size: int) -> object:
        write_plan(folder, OrderPlan(source="recorded", world_size=size, mesh={}, reductions=()))
        return _plan_of(folder, 2)

    return lambda: of(4), lambda: of(2)


def manifest(folder: Path, text: str) -> object:
    """A run.json with this text, read for a replay."""
    (folder / "run.json").write_text(text)
    return read_manifest(folder)


def manifest_case(part: str, text: str) -> None:
    """Enter a case of a manifest that is copied again."""
    case(part)(lambda folder, _patch: (lambda: manifest(folder, text), lambda: manifest(folder, WHOLE)))


manifest_case("no manifest of {}; only reftrain's own runs", "{}")
calls(
    "is not a variant; write one of",
    lambda text: with_variants(formats_of("bf16"), [text]),
    "rope=x",
    "rope=fp32",
)
calls(
    "--schedule: {} is unknown; choose {}",
    lambda name: schedule_of(ScheduleSpec(name, 2, 4), None, 1),
    "x",
    "1f1b",
)


@case("{}: {}; name another folder or free space")
def _(folder, _patch):
    (folder / "file").write_text("")

    def made(path: Path) -> None:
        with made_folder(path):
            pass

    return lambda: made(folder / "file" / "run"), lambda: made(folder / "run")


def simulated(mesh: dict[str, int], *faults: str, **options: object) -> object:
    """A simulated job."""
    return simulate(setup_of(mesh, *faults, steps=1, **options)[0])  # type: ignore[arg-type]


@case("--mesh: {} ranks are too many; simulate")
def _(_folder, patch):
    patch.setattr("reftrain.simulate.runner.MOST_SIMULATED_RANKS", 4)
    return lambda: simulated({"dp": 8}), lambda: simulated({"dp": 4})


@case("--micro-batches: {}; {}")
def _(_folder, patch):
    patch.setattr("reftrain.simulate.runner.MOST_LAYER_RUNS", 200)
    return lambda: simulated({"dp": 2}, micro_batches=64), lambda: simulated({"dp": 2}, micro_batches=1)


@case("--steps: {} operations are too many; {}")
def _(_folder, patch):
    patch.setattr("reftrain.simulate.runner.MOST_TIMES", 2000)
    return lambda: simulated({"dp": 8}, micro_batches=8), lambda: simulated({"dp": 2}, micro_batches=1)


@case("hybrid sharding is not simulated; leave it out")
def _(_folder, _patch):
    return lambda: simulated({"dp": 4, "dp_shard": 2, "zero": 1}), lambda: simulated({"dp": 4, "zero": 1})


@case("fault.steps: {} holds none of the {} steps")
def _(_folder, _patch):
    return (
        lambda: simulated({"dp": 2}, "slow_compute:rank=1,factor=2,steps=5:"),
        lambda: simulated({"dp": 2}, "slow_compute:rank=1,factor=2,steps=0:"),
    )


@case("checkpoint.resume: {} holds no finished checkpoint")
def _(folder, _patch):
    (folder / "step-00000001").mkdir()
    (folder / "step-00000001" / ".metadata").write_text("")
    return lambda: find(str(folder / "absent"), folder), lambda: find(str(folder / "step-00000001"), folder)


@case("refused: larger than {} MiB; no flight recorder")
def _(folder, patch):
    patch.setattr("tracekit.dumps.files.MAX_DUMP_BYTES", 4)
    (folder / "large").write_bytes(b"12345")
    (folder / "small").write_bytes(b"123")
    return lambda: read_bytes(str(folder / "large")), lambda: read_bytes(str(folder / "small"))


@case("flex has no backward on a CPU")
def _(_folder, _patch):
    def chosen(kernel: str) -> object:
        return choose_device(configured(f"run.device=cpu numerics.attention={kernel}"), 0)

    return lambda: chosen("flex"), lambda: chosen("sdpa")


calls("cannot show here: {}; change the layout", lambda layout: parse_bug("P01", configured(layout)), "mesh.tp=1",
      "mesh.tp=2")  # fmt: skip


@case("--gpus: {}; give more devices or a larger memory")
def _(_folder, patch):
    patch.setattr("reftrain.plan.meshes.MOST_ACTIONS", 20)

    def planned(gpus: int) -> object:
        return Planner(
            Workload(configured("model.layers=2").model, gpus, 64, 8), load_hardware("h100")
        ).plan()

    return lambda: planned(1), lambda: planned(4)


@case("--schedule: {}; give both the same")
def _(_folder, _patch):
    setup, _config = setup_of({"pp": 2}, steps=1)
    four = setup_of({"pp": 4}, steps=1)[0].schedule
    return lambda: simulate(replace(setup, schedule=four)), lambda: simulate(setup)


@case("a ring is not simulated; choose all_gather")
def _(_folder, _patch):
    setup, _config = setup_of({"cp": 2}, steps=1)
    return lambda: simulate(replace(setup, job=replace(setup.job, ring=True))), lambda: simulate(setup)


@case("start fewer ranks on this machine")
def _(_folder, patch):
    def forked(room: int) -> None:
        ranks = Ranks()
        patch.setattr(
            "reftrain.rank.processes.os.fork", lambda: refuse() if len(ranks.pids) >= room else 99999999
        )
        ranks.fork(lambda: None)
        for pipe in ranks.pipes:
            pipe.close()

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    return lambda: forked(0), lambda: forked(1)


def dump(folder: Path, content: bytes) -> object:
    """What a file is to the reader of dumps; raises what the reader tells of it."""
    (folder / "file").write_bytes(content)
    found = DumpReader()(str(folder / "file"))
    if isinstance(found, Exception):
        raise found
    return found


def dump_case(part: str, content: bytes) -> None:
    """Enter a case of a file that is no dump: the dump is given instead."""
    whole = json.dumps(
        {"version": "2.5", "entries": [], "pg_config": {}, "pg_status": {}, "rank": 0}
    ).encode()
    case(part)(lambda folder, _patch: (lambda: dump(folder, content), lambda: dump(folder, whole)))


dump_case("it is a profiler's trace; `tracekit slowrank`", b'{"traceEvents": []}')


@case("{}: {}; free some space, or choose another folder")
def _(folder, patch):
    given = traces(folder, 2)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def loaded(*, space: bool) -> object:
        with patch.context() as for_now:
            if not space:
                for_now.setattr("tracekit.ingest.reading.read_file", full)
            return load([given], out=folder / "run")

    return lambda: loaded(space=False), lambda: loaded(space=True)
