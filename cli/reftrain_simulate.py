"""`reftrain simulate`: a job of up to 16 384 ranks on a described machine, with traces and dumps as real ones."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reftrain.errors import ConfigError
from reftrain.schedule.registry import SCHEMES, default_virtual
from reftrain.schedule.spec import ScheduleSpec

if TYPE_CHECKING:
    from reftrain.config.run import RunConfig
    from reftrain.simulate.run_folder import Outcome
    from reftrain.simulate.runner import Setup

CONCATENATIONS = ("direct", "doubling", "halving")
DETAILED_WORLD = 64
"""Larger jobs are written collective by collective, unless told otherwise."""


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--preset", help="Model preset: tiny, small, 8b, 70b, 405b.")
@click.option("--mesh", help="Axes and sizes from inner to outer, e.g. tp=8,cp=1,pp=16,dp=128.")
@click.option(
    "--schedule", "name", metavar="NAME|FILE", help="Any of `reftrain schedule`, or a table's file."
)
@click.option(
    "--micro-batches", type=int, metavar="M", help="Micro-batches of a step and data-parallel rank."
)
@click.option("--virtual", type=int, metavar="V", help="Virtual stages a rank.")
@click.option("--k", type=int, metavar="K", help="Consecutive micro-batches a virtual stage; pp if left out.")
@click.option(
    "--pipelines", type=int, metavar="2F", help="Chimera's pipelines, half of them up; 2 if left out."
)
@click.option("--concat", type=click.Choice(CONCATENATIONS), help="Chimera beyond m = p; direct if left out.")
@click.option("--steps", type=int, default=2, help="Steps to simulate.")
@click.option(
    "--fault", "faults", multiple=True, help="Planted fault as `reftrain run` takes it; repeatable."
)
@click.option("--hardware", default="h100", metavar="NAME|FILE", help="The machine.")
@click.option("--seed", type=int, default=0, help="Seed of jitter, clocks and documents.")
@click.option("--jitter", type=float, default=1.0, help="Scale of all random deviations; 0 leaves none.")
@click.option(
    "--free-host", is_flag=True, help="The host runs ahead of arriving messages, not waiting for them."
)
@click.option(
    "--detail", type=click.Choice(["auto", "kernels", "collectives"]), default="auto", help="Rows of traces."
)
@click.option("--ranks", default="all", metavar="0-63,128|all", help="Ranks whose files are written.")
@click.option("--jobs", type=int, help="Processes that write; one a core if left out.")
@click.option("--documents", is_flag=True, help="Deal attention by packed documents (data.mean_document).")
@click.option("--flight-recorder", is_flag=True, help="Write dumps too; a planted hang always does.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Run folder to write.")
@click.option(
    "--json", "json_to", metavar="FILE|-", help="Write the figures as JSON; - is stdout, in place of text."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.FIELD=VALUE",
    help="Set any field of a run; repeatable.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def simulate(
    config: Path | None,
    preset: str | None,
    mesh: str | None,
    name: str | None,
    micro_batches: int | None,
    virtual: int | None,
    k: int | None,
    pipelines: int | None,
    concat: str | None,
    steps: int,
    faults: Sequence[str],
    hardware: str,
    seed: int,
    jitter: float,
    *,
    free_host: bool,
    documents: bool,
    detail: str,
    ranks: str,
    jobs: int | None,
    flight_recorder: bool,
    out: Path | None,
    json_to: str | None,
    settings: Sequence[str],
    quiet: bool,
) -> None:
    """Simulate a job and say where its time goes; with --out write its run folder.

    The folder holds what `reftrain run` would leave on the machine: Kineto traces, flight-recorder dumps of a
    job that hangs, run.json with the planted faults.

    \b
    reftrain simulate --preset 405b --mesh tp=8,cp=1,pp=16,dp=128 --out run
    reftrain simulate --preset 8b --mesh tp=4,pp=4,dp=4 --fault slow_compute:rank=5,factor=1.3 --out run
    """
    from reftrain.simulate.packing import Packing
    from reftrain.simulate.pool import usual_jobs
    from reftrain.simulate.run_folder import outcome_of, write_folder
    from reftrain.simulate.runner import simulate as run_simulation

    if steps < 1 or (jobs is not None and jobs < 1) or not 0 <= jitter <= 10 or seed < 0:
        raise ConfigError(
            "--steps, --jobs, --jitter, --seed", "out of bounds", "give 1 or more; jitter 0 to 10"
        )
    loaded = _config(config, preset, mesh, name, micro_batches, virtual, k, settings)
    pipeline = loaded.pipeline
    sizes = ScheduleSpec(
        name or pipeline.schedule, loaded.mesh.pp, loaded.micro_batches,
        virtual or pipeline.virtual_stages, loaded.consecutive,
        pipelines or pipeline.pipelines, concat or pipeline.concatenation,
    )  # fmt: skip
    world = loaded.mesh.world_size
    chosen = parse_ranks(ranks, world)
    kernels = detail == "kernels" or (detail == "auto" and world <= DETAILED_WORLD)
    setup = _setup(loaded, sizes, name, steps, faults, hardware)
    packing = None
    if documents:
        data = loaded.data
        packing = Packing(data.seq_len, data.micro_batch_size, data.mean_document, seed)
    setup = dataclasses.replace(
        setup, seed=seed, jitter=jitter, merge=not kernels, host_waits=not free_host, packing=packing
    )
    _talk(f"simulating {world} ranks, {setup.steps} steps", quiet=quiet)
    outcome = outcome_of(setup, run_simulation(setup))
    if out is not None:
        _talk(f"writing {len(chosen)} ranks to {out}", quiet=quiet)
        outcome = write_folder(
            outcome, loaded, out, ranks=chosen, detail="kernels" if kernels else "collectives",
            flight_recorder=flight_recorder, jobs=jobs or usual_jobs(),
        )  # fmt: skip
    _answer(outcome, json_to)


def _config(
    config: Path | None,
    preset: str | None,
    mesh: str | None,
    name: str | None,
    micro_batches: int | None,
    virtual: int | None,
    k: int | None,
    settings: Sequence[str],
) -> "RunConfig":
    """The run's configuration from a file and flags; the schedule's name is judged by the generators."""
    from reftrain.config.file import load

    from .run_settings import tables_of

    overrides = tables_of(preset, mesh, settings)
    pipeline = overrides.setdefault("pipeline", {})
    if name:
        pipeline["schedule"] = name if name in SCHEMES else "flexible"
        pipeline.setdefault("virtual_stages", virtual or default_virtual(name))
    pipeline |= {key: value for key, value in (("virtual_stages", virtual), ("consecutive", k)) if value}
    if micro_batches is not None:
        if micro_batches < 1:
            raise ConfigError("--micro-batches", f"{micro_batches} is none", "give 1 or more")
        first = load(config, overrides)
        data = overrides.setdefault("data", {})
        data["batch_size"] = micro_batches * first.mesh.dp * first.data.micro_batch_size
    return load(config, overrides)


def _setup(
    config: "RunConfig",
    sizes: ScheduleSpec,
    name: str | None,
    steps: int,
    faults: Sequence[str],
    hardware: str,
) -> "Setup":
    """What is simulated, before how."""
    from reftrain.config.fault_spec import parse_fault
    from reftrain.cost.hardware import load_hardware
    from reftrain.cost.job import job_of_run
    from reftrain.schedule.check import check
    from reftrain.schedule.generators import generate
    from reftrain.schedule.lower import complete
    from reftrain.simulate.runner import Setup

    given = None
    if name is not None and name.endswith((".csv", ".txt")):
        from .reftrain_schedule import read_table

        given = table = read_table(Path(name))
        check(table)
    else:
        if sizes.name not in SCHEMES:
            raise ConfigError("--schedule", f"{sizes.name!r} is unknown", f"choose {', '.join(SCHEMES)}")
        table = generate(sizes)
        if not table.synchronous:  # never flushed: all steps are one table
            table, steps = generate(dataclasses.replace(sizes, steps=steps)), 1
    job = dataclasses.replace(
        job_of_run(config),
        schedule=sizes.name if given is None else "flexible",
        micro_batches=table.micro_batches,
        pipelines=sizes.pipelines,
        concatenation=sizes.concatenation,
        given=given,
        kernels="fused",
        attention="flex",
    )
    specs = tuple(parse_fault(text, config.mesh.world_size) for text in faults)
    table = complete(table, config.mesh.zero, config.pipeline.replica_sync)
    return Setup(job, table, load_hardware(hardware), steps, faults=specs)


def parse_ranks(text: str, world: int) -> list[int]:
    """Read `0-63,128` or `all`; raises ConfigError for what is no rank of the job."""
    if text == "all":
        return list(range(world))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ConfigError("--ranks", f"{part!r} is no rank or range", "write for example 0-63,128 or all")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high >= world:
            raise ConfigError("--ranks", f"{part!r} is not within 0-{world - 1}", "name ranks of the job")
        chosen.update(range(low, high + 1))
    return sorted(chosen)


def _talk(text: str, *, quiet: bool) -> None:
    if not quiet:
        click.echo(text, err=True)


def _answer(outcome: "Outcome", json_to: str | None) -> None:
    from reftrain.simulate.run_folder import document

    from .reftrain_schedule import save
    from .simulate_text import outcome_text

    if json_to is not None:
        text = json.dumps(document(outcome)) + "\n"
        if json_to == "-":
            click.echo(text, nl=False)
            return
        save(Path(json_to), text)
    click.echo(outcome_text(outcome), nl=False)
    sys.stdout.flush()
