"""What commands of users, saved states and tables of schedules are refused for, and what the refusals advise."""

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata
from tracekit_cli.reftrain_commands.goodput import goodput
from tracekit_cli.reftrain_commands.reproduce import reproduce
from tracekit_cli.reftrain_commands.run import run
from tracekit_cli.reftrain_commands.simulate import simulate as simulate_command

from numerics.bisection.commands import Commands
from numerics.bisection.search import bisect
from numerics.order.order_plan import OrderPlan, read_plan, write_plan
from numerics.precision.ladder import ladder
from numerics.record.recorder import Recorder
from numerics.record.switch import STEPS, chosen_steps
from numerics.store import open_capture
from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load as load_config
from reftrain.faults.doc_imbalance import DocImbalance
from reftrain.layout.declaration import Declaration
from reftrain.replay.manifest import configuration, described
from reftrain.replay.resumed_state import state_before
from reftrain.schedule.check import check
from reftrain.schedule.costs import Costs
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.timing import time_schedule
from reftrain.simulate import pool
from reftrain.simulate.runner import simulate
from reftrain.train.checkpoint import STEP_KEY, Checkpointer, _check_same_model
from tests.advice.cases import command, ingested, traces
from tests.advice.of_config import configured
from tests.advice.of_numerics import rungs
from tests.advice.register import Call, Case, calls, case
from tests.simulate.case import setup_of
from tracekit.ingest import load


@case("{}: cannot be written ({}: {}); name another folder")
def _(folder, _patch):
    given = traces(folder, 2)
    return lambda: load([given], out=Path("/proc/run")), lambda: load([given], out=folder / "run")


@case("makes numbers wrong, and a simulation has none")
def _(_folder, _patch):
    given = "--preset tiny --mesh tp=2 --fault P02:layer=1"
    return command(simulate_command, given, "")[0], command(run, "", f"{given} --dry-run")[1]


def bisection(folder: Path, parallel: str = "true") -> Commands:
    """A bisection of two commands."""
    return Commands({"parallel": parallel, "baseline": "true"}, folder)


@case("holds the bisection of other commands")
def _(folder, _patch):
    bisection(folder / "a").begin(4)
    other = bisection(folder / "a", "python train.py")
    return lambda: other.begin(4), lambda: bisection(folder / "b", "python train.py").begin(4)


@case("holds no bisection; choose another --out")
def _(folder, _patch):
    (folder / "a").mkdir()
    (folder / "a" / "notes.txt").write_text("mine")
    return lambda: bisection(folder / "a").begin(4), lambda: bisection(folder / "b").begin(4)


@case("{}: cannot be used ({}); choose another --out")
def _(folder, _patch):
    (folder / "a").write_text("")
    return lambda: bisection(folder / "a").begin(4), lambda: bisection(folder / "b").begin(4)


def recorded(folder: Path, wrong: str, right: str) -> tuple[Call, Call]:
    """A command that a bisection cannot record with, and one with which it can."""

    def made(command: str) -> object:
        return bisection(folder, command)._made("parallel", folder / "round", [0], "digest")

    return lambda: made(wrong), lambda: made(right)


WRITES = "mkdir {out}"

case("quote the command as a shell would read it")(lambda f, _: recorded(f, "mkdir '{out}", "mkdir '{out}'"))
case("the command is empty; give one that trains")(lambda f, _: recorded(f, "", WRITES))
case("fix it and start the same bisection again")(lambda f, _: recorded(f, "mkdir /dev/null/x", WRITES))
case("let its trainer call numerics.watch, or write to {out}")(lambda f, _: recorded(f, "true", WRITES))


def probed(folder: Path, names: tuple[str, str] = ("weight", "weight"), models: tuple[str, str] = ("a", "a")):
    """What records two steps of two runs, of one tensor each."""

    def record(_probed: object, level: str) -> tuple[Path, Path]:
        sides = []
        for name, model in zip(names, models, strict=True):
            side = folder / str(len(list(folder.iterdir())))
            with Recorder(side, 0, 1, level=level, config={"model": {"name": model}}) as to:
                for step in range(2):
                    to.record(name, torch.ones(4), step=step, phase="step", kind="param")
            sides.append(side)
        return sides[0], sides[1]

    return record


@case("was not recorded, the last one is {}; give --steps {}")
def _(folder, _patch):
    return lambda: bisect(5, probed(folder)), lambda: bisect(2, probed(folder))


@case("{}; give two commands that compute the same thing")
def _(folder, _patch):
    return lambda: bisect(2, probed(folder, models=("a", "b"))), lambda: bisect(2, probed(folder))


@case("have no tensor in common; give two commands that train one model")
def _(folder, _patch):
    return lambda: bisect(2, probed(folder, ("weight", "bias"))), lambda: bisect(2, probed(folder))


@case("{}: {} is not a list of steps; write 0,8,16")
def _(_folder, patch):
    def chosen(text: str) -> object:
        patch.setenv(STEPS, text)
        return chosen_steps()

    return lambda: chosen("0-8"), lambda: chosen("0,8,16")


def simulated(fault: str) -> object:
    """A simulated job of two replicas with a fault."""
    return simulate(setup_of({"dp": 2}, fault, steps=1)[0])


calls(
    "rank {} makes no {} call; choose another",
    simulated,
    "host_stall:rank=1,axis=tp",
    "host_stall:rank=1,axis=dp",
)


def written(jobs: int) -> object:
    """Ranks written by workers, each of which is killed, or by this process."""
    here = os.getpid()

    def write(_rank: int) -> tuple[int, int]:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1, 1

    return pool.in_parallel(SimpleNamespace(write=write), range(64), jobs, lambda rank: rank)


calls("{}; use fewer --jobs or write fewer --ranks", written, 2, 1)


def same_model(name: str, sizes: tuple[int, ...]) -> object:
    """A weight of four elements, beside the one that a checkpoint holds."""
    stored = TensorStorageMetadata(TensorProperties(), torch.Size(sizes), [])
    return _check_same_model(Path("x"), {"w": SimpleNamespace(whole=(4,))}, Metadata({name: stored}))


calls("{}: holds no {}; load it with the model and policy", lambda name: same_model(name, (4,)), "b", "w")
calls("{}: {} is {}, here {}; load it with its own model", lambda sizes: same_model("w", sizes), (8,), (4,))


def saved(error: OSError | None) -> object:
    """The end of a save that failed, or did not."""
    return Checkpointer.wait(SimpleNamespace(_thread=None, _error=error, folder="x"))


calls("free space or choose another out", saved, OSError(28, "No space left on device"), None)


def checkpoint(folder: Path) -> Path:
    """A checkpoint of a trainer without weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({STEP_KEY: torch.tensor([4])}, checkpoint_id=folder)
    return folder


def loaded(folder: Path, patch: pytest.MonkeyPatch) -> object:
    """The steps that a checkpoint holds."""
    patch.setattr("reftrain.train.checkpoint.state_boxes", lambda *_, **__: {})
    trainer = SimpleNamespace(
        optimizer=SimpleNamespace(set_steps=lambda _: None), loader=SimpleNamespace(state=lambda _: None)
    )
    return Checkpointer.load(SimpleNamespace(trainer=trainer, group=None), folder)


@case("{}: {}; name a finished checkpoint")
def _(folder, patch):
    whole = checkpoint(folder / "whole")
    (folder / "half").mkdir()
    return lambda: loaded(folder / "half", patch), lambda: loaded(whole, patch)


@case("{}: {}; name another finished checkpoint")
def _(folder, patch):
    whole, cut = checkpoint(folder / "whole"), checkpoint(folder / "cut")
    for path in cut.glob("*.distcp"):
        path.write_bytes(b"")
    return lambda: loaded(cut, patch), lambda: loaded(whole, patch)


MANIFEST = {
    "model": {}, "data": {}, "numerics": {}, "parallel": {}, "optimizer": {}, "schedule": {}, "steps": 1,
    "seeds": {"weights": 0},
}  # fmt: skip
calls("run.json lacks {}", lambda told: described(told, Path("x")), {}, MANIFEST)


def resumed_run(folder, *, checkpoint=True, damaged=False):
    """A run folder that went on at step 1, read as the replay reads it."""
    config = load_config(None, {"model": {"layers": 1, "dim": 16, "ffn_dim": 16, "vocab_size": 8}})
    with Recorder(folder / "run", 0, 1) as to:
        to.record("x", torch.ones(1), step=1, phase="forward", kind="input")
    state = {"meta.step": torch.tensor([1])}
    for parameter in Declaration(config).in_order(0):
        for kind in ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
            state[f"{kind}.{parameter.name}"] = torch.ones(parameter.shape)
    kept = folder / "run" / "checkpoint" / "step-00000001"
    if checkpoint:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save(state, storage_writer=FileSystemWriter(kept), no_dist=True)
    if damaged:
        (kept / ".metadata").write_bytes(b"")
    return lambda: state_before(folder / "run", "auto", config)


@case("that the run went on from is not in")
def _(folder, _patch):
    return resumed_run(folder / "a", checkpoint=False), resumed_run(folder / "b")


@case("is not a checkpoint of this run")
def _(folder, _patch):
    return resumed_run(folder / "a", damaged=True), resumed_run(folder / "b")


@case("holds no step of a resumed run")
def _(folder, _patch):
    config = load_config(None, {})
    return lambda: state_before(folder, "auto", config), resumed_run(folder / "b")


@case("numerics ladder decides without a replay")
def _(folder, _patch):
    on_gpus = {**MANIFEST, "device": "cuda"}
    return lambda: configuration(on_gpus, Path("x")), lambda: ladder(rungs(folder, "fp32", "fp64"))


def dying(target: str, make: Callable[[Path], object], read: Callable[[Path], object]) -> Case:
    """A case of a file whose reading takes too long, and of one that was made again."""

    def entered(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Call, Call]:
        make(folder)
        patch.setattr(target, lambda *_, **__: {0: "it took too long"})
        return lambda: read(folder), lambda: (patch.undo(), make(folder), read(folder))

    return entered


def captured(folder: Path) -> Path:
    """The capture of one rank."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    with Recorder(folder / "run", 0, 1) as to:
        to.record("w", torch.ones(4), step=0, phase="step", kind="param")
    return folder / "run"


def planned(folder: Path) -> None:
    """An order plan without sums."""
    write_plan(folder, OrderPlan(source="recorded", world_size=1, mesh={}, reductions=()))


case("{}: {}; capture the run again")(
    dying("numerics.store.deaths", captured, lambda f: open_capture(f / "run"))
)
case("{}: {}; run again to record a new one")(dying("numerics.order.order_plan.deaths", planned, read_plan))
case("{}: {}; ingest the traces again")(
    dying("tracekit.ingest.far_run.deaths", ingested, lambda f: load([str(f / "run")]))
)


@case("{}: damaged rows ({}); capture the run again")
def _(folder, _patch):
    (path,) = captured(folder).rglob("*.parquet")
    table = pq.read_table(path)
    at = table.schema.names.index("step")
    pq.write_table(table.set_column(at, "step", pa.array([-(2**31)], table.schema.types[at])), path)
    return lambda: open_capture(folder / "run"), lambda: open_capture(captured(folder))


def imbalanced(kernel: str) -> object:
    """Longer documents for a trainer with this attention."""
    config, one = configured("numerics.document_mask=true"), SimpleNamespace(size=1)
    mesh = SimpleNamespace(dp=one, cp=one, coords_of=lambda _: {"dp": 0, "cp": 0})
    loader = SimpleNamespace(source=SimpleNamespace(eos=1, pad=0))
    trainer = SimpleNamespace(config=config, mesh=mesh, kernel=kernel, loader=loader)
    return DocImbalance(parse_fault("doc_imbalance:rank=0,factor=2", 1)).built(trainer)


calls("fault: doc_imbalance shows nothing", imbalanced, "sdpa", "documents")
TABLE = make_schedule("1f1b", 2, 1, 2, 1)
TWICE = replace(TABLE, actions=(TABLE.actions[0] + TABLE.actions[0][:1], TABLE.actions[1]))
STUCK = replace(TABLE, actions=(TABLE.actions[0][::-1], TABLE.actions[1]))
calls("pipeline.schedule: {}: {}; correct the table", check, TWICE, TABLE)
calls("pipeline.schedule: {}; correct the table", lambda table: time_schedule(table, Costs()), STUCK, TABLE)


def judged(days: str) -> object:
    """The share of a job of so many days that trains."""
    return goodput.main(["--between", "0.05", "--days", days, "--runs", "20"], standalone_mode=False)


calls("--between: {}; give a longer time, or fewer --days or --runs", judged, "1000", "5")


def reproduced(figure: str) -> object:
    """A published figure beside ours."""
    return reproduce.main([figure], standalone_mode=False)


calls("FIGURE: {}; choose {}", reproduced, "figure99", "figure13")
