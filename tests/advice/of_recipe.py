"""Recipes, averages, parameter servers and offloads that are refused, and what the refusals advise."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemWriter, save
from tracekit_cli.reftrain_commands import infer as reftrain_infer
from tracekit_cli.reftrain_commands import run as reftrain_run
from tracekit_cli.reftrain_commands import server as reftrain_server

from reftrain.config.recipe import _offset, _read, load_recipe
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import job_of_run
from reftrain.faults.registry import read_faults
from reftrain.infer.serve import check_serving, serve
from reftrain.job.recipe import _check, _chosen
from reftrain.plan.projection import project
from reftrain.simulate.run_folder import windows_of
from reftrain.simulate.runner import simulate
from reftrain.train.average import averaged
from tests.advice.of_config import configured
from tests.advice.of_serving import FEW
from tests.advice.register import Call, calls, case
from tests.simulate.case import setup_of

ONE = '[[stage]]\nname = "one"\nsteps = 4\n'
TWO = '[[stage]]\nname = "two"\nsteps = 2\n'
RECIPES = [
    ("lists no stages", "[model]\nlayers = 2", ONE),
    ("stages are too many", "[[stage]]\nsteps = 1\n" * 500, ONE),
    ("takes average", f"[recipe]\nmean = 2\n{ONE}", f"[recipe]\naverage = 2\n{ONE}"),
    ("two stages have one name", ONE + ONE, ONE + TWO),
    ("{}: {} is not a count; give {} to {}", ONE.replace("4", "0"), ONE),
    ("{}: {}: cannot differ by stage", f"{ONE}{TWO}[stage.model]\nlayers = 2", f"[model]\nlayers = 2\n{ONE}{TWO}"),
    ("holds a field outside a table", f"{ONE}seq_len = 64", f"{ONE}[stage.data]\nseq_len = 64"),
    ("is no name of a folder", ONE.replace("one", "../one"), ONE),
    ("{}: {}: {} has the wrong type; correct it", ONE.replace('"one"', "1"), ONE),
]  # fmt: skip


def _recipe(part: str, wrong: str, right: str) -> None:
    def both(folder: Path, _patch: object) -> tuple[Call, Call]:
        (folder / "wrong.toml").write_text(wrong)
        (folder / "right.toml").write_text(right)
        return lambda: _read(folder / "wrong.toml", {}), lambda: _read(folder / "right.toml", {})

    case(part)(both)


for row in RECIPES:
    _recipe(*row)


@case("no whole number of sequences of {}")
def _(_folder, _patch):
    long, short = configured("data.seq_len=96"), configured("data.seq_len=128")
    return lambda: _offset(long, 4, 512), lambda: _offset(short, 4, 512)


@case("{} holds checkpoints of an earlier recipe")
def _(folder, _patch):
    (folder / "recipe.toml").write_text(ONE)
    recipe = load_recipe(folder / "recipe.toml", {})
    held = folder / "run" / "1-one" / "checkpoint" / "step-00000004"
    held.mkdir(parents=True)
    run, every = folder / "run", range(1)
    return lambda: _check(recipe, every, run, ""), lambda: _check(recipe, every, run, "auto")


def staged(folder: Path) -> object:
    """A recipe of two stages, both of one rank."""
    (folder / "recipe.toml").write_text(ONE + TWO)
    return load_recipe(folder / "recipe.toml", {})


@case("--stage: no stage is named {}")
def _(folder, _patch):
    recipe, run = staged(folder), folder / "run"
    return lambda: _chosen(recipe, run, "three"), lambda: _chosen(recipe, run, "one")


@case("--stage: {} holds no checkpoint of step {}")
def _(folder, _patch):
    recipe, run = staged(folder), folder / "run"

    def after_the_first() -> None:
        (run / "1-one" / "checkpoint" / "step-00000004").mkdir(parents=True)
        _chosen(recipe, run, "two")

    return lambda: _chosen(recipe, run, "two"), after_the_first


@case("--recipe: another launcher has started this rank, and stages")
def _(folder, patch):
    recipe, run = staged(folder), folder / "run"
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        patch.setenv(name, value)
    return lambda: _check(recipe, range(2), run, ""), lambda: _check(recipe, range(1), run, "")


@case("--stage names a stage of --recipe FILE")
def _(folder, _patch):
    staged(folder)
    alone, given = ["--stage", "one", "--dry-run"], ["--recipe", str(folder / "recipe.toml")]
    run = reftrain_run.run.main
    return lambda: run(alone, standalone_mode=False), lambda: run([*given, *alone], standalone_mode=False)


@case("--windows: a job that hangs has one window")
def _(_folder, _patch):
    setup, _ = setup_of({"dp": 2}, "host_stall:rank=1")
    return lambda: windows_of(setup, 2, 3600.0), lambda: windows_of(setup, 1, 3600.0)


@case("save fewer than {} checkpoints")
def _(folder, _patch):
    def checked(every: int) -> None:
        text = f"[recipe]\naverage = 3\n[checkpoint]\nevery = {every}\n{ONE}"
        (folder / "recipe.toml").write_text(text)
        _check(load_recipe(folder / "recipe.toml", {}), range(1), folder / "run", "")

    return lambda: checked(3), lambda: checked(1)


def saved(folder: Path, width: int) -> Path:
    """A checkpoint with one weight of `width` elements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dcp says that one process saves alone
        save({"model.weight": torch.ones(width)}, storage_writer=FileSystemWriter(folder), no_dist=True)
    return folder


@case("{}: cannot be read ({}); name a finished checkpoint")
def _(folder, _patch):
    finished = saved(folder / "finished", 3)
    return lambda: averaged([folder / "unfinished"]), lambda: averaged([finished])


@case("{}: is of another model than {}")
def _(folder, _patch):
    small, wide, other = saved(folder / "a", 3), saved(folder / "b", 4), saved(folder / "c", 4)
    return lambda: averaged([small, wide]), lambda: averaged([wide, other])


def served(steps: str) -> object:
    """The configuration of a parameter server with three workers."""
    return reftrain_server._config(None, steps.split(), 3, 2)


calls("is not what workers of a parameter server compute here", served, "mesh.tp=2", "mesh.tp=1")
calls(
    "rank 0 is the server",
    lambda t: reftrain_server._faults([t], 3),
    "slow_compute:rank=0",
    "slow_compute:rank=2",
)
calls(
    "is not planted here",
    lambda t: reftrain_server._faults([t], 3),
    "host_stall:rank=2",
    "slow_compute:rank=2",
)


calls(
    "strikes simulated jobs only",
    lambda fault: read_faults(
        replace(configured(""), evidence=replace(configured("").evidence, faults=(fault,)))
    ),
    "checkpoint:rank=0",
    "pauses:rank=0",
)


def planted(settings: str) -> object:
    """The faults of a run with a slow link to the host."""
    config = configured(settings)
    return read_faults(replace(config, evidence=replace(config.evidence, faults=("slow_host_link:rank=0",))))


calls("strikes at copies between device and host", planted, "", "optimizer.offload=true")


@case("fault: {}; set optimizer.offload = true")
def _(_folder, _patch):
    def simulated(*, offload: bool) -> None:
        tables = {"model": {"layers": 2}, "optimizer": {"offload": offload}}
        simulate(setup_of({"dp": 3}, "slow_host_link:rank=1", tables=tables)[0])

    return lambda: simulated(offload=False), lambda: simulated(offload=True)


@case("--hardware: {} describes no link to the host")
def _(_folder, _patch):
    full = load_hardware("h100")
    job = replace(job_of_run(configured("mesh.dp=4")), offload=True)
    bare = replace(full, host_link=type(full.host_link)())
    return lambda: project(job, bare), lambda: project(job, full)


def engine(fault: str) -> None:
    """Check an engine with a fault."""
    config = configured("mesh.dp=2")
    check_serving(replace(config, evidence=replace(config.evidence, faults=(fault,))), FEW)


calls("is not for an engine", engine, "slow_host_link:rank=1", "slow_compute:rank=1,factor=2")


@case("--capture: records an engine of one rank")
def _(folder, _patch):
    def captured(mesh: str, name: str) -> None:
        serve(configured(f"{mesh} run.out={folder / name}"), FEW, "digest")

    return lambda: captured("mesh.dp=2", "two"), lambda: captured("mesh.dp=1", "one")


@case("give a number with more divisors, or more --requests")
def _(_folder, _patch):
    def projected(devices: int) -> None:
        flags = {"hardware": "h100", "requests": 4, "prompt": 6, "generate": 2, "weight_bytes": 2}
        reftrain_infer._project(configured(""), devices, flags, None)

    return lambda: projected(7), lambda: projected(8)


@case("data.mix: {}; give each file a share")
def _(_folder, _patch):
    files = "data.source=text data.files=['README.md','LICENSE']"
    return lambda: configured(f"{files} data.mix=[0.5]"), lambda: configured(f"{files} data.mix=[0.5,0.5]")


@case("{}: spmd_2d {}; {}, or mesh.sharding = fsdp")
def _(_folder, _patch):
    mesh = "mesh.sharding=spmd_2d mesh.dp=2 mesh.tp=2"
    return lambda: configured(f"{mesh} mesh.pp=2"), lambda: configured(mesh)
