"""`reftrain simulate`: a job of up to 16 384 ranks on a described machine, with traces and dumps as real ones."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from reftrain.config.trace_forms import DEVICE_FORMS, FORMS, NEWEST
from reftrain.errors import ConfigError
from reftrain.schedule.registry import SCHEMES, default_virtual
from reftrain.schedule.spec import CONCATENATIONS, ScheduleSpec
from reftrain.thresholds import DETAILED_WORLD, LARGEST_HOURS, LARGEST_INTEGER, LARGEST_JITTER, MOST_THREADS
from tracekit.text import whole_number

from ..completion import fault, fields_of_runs, machines, one_of, presets, schedules
from ..output import A_FILE, FOLDER, JSON, FiniteRange, emit
from ..progress import simulating
from .schedule import SIZE

if TYPE_CHECKING:
    from reftrain.config.run import RunConfig
    from reftrain.simulate.run_folder import Outcome
    from reftrain.simulate.setup import Setup


@dataclass(frozen=True)
class Flags:
    """The argument and all flags of the command, under the names that click gives them."""

    config: Path | None
    preset: str | None
    mesh: str | None
    name: str | None
    micro_batches: int | None
    virtual: int | None
    k: int | None
    pipelines: int | None
    concat: str | None
    steps: int
    windows: int
    apart: float
    faults: tuple[str, ...]
    hardware: str
    seed: int
    jitter: float
    free_host: bool
    documents: bool
    detail: str
    trace_form: str
    ranks: str
    jobs: int | None
    flight_recorder: bool
    out: Path | None
    json_to: str | None
    settings: tuple[str, ...]
    quiet: bool

    def detail_of(self, world: int) -> "Literal['kernels', 'collectives']":
        """Return the rows of traces for a job of `world` ranks."""
        if self.detail == "auto":
            peers_from_host = not FORMS[self.trace_form].names_peers
            return "kernels" if world <= DETAILED_WORLD or peers_from_host else "collectives"
        return "kernels" if self.detail == "kernels" else "collectives"


@click.command()
@click.argument("config", required=False, type=A_FILE)
@click.option(
    "--preset", shell_complete=one_of(presets), help="Model preset: tiny, small, 8b, 8x7b, 70b, 405b."
)
@click.option("--mesh", help="Axes and sizes from inner to outer, e.g. tp=8,cp=1,pp=16,dp=128.")
@click.option(
    "--schedule",
    "name",
    metavar="NAME|FILE",
    shell_complete=one_of(schedules),
    help="Any of `reftrain schedule`, or a table's file.",
)
@click.option(
    "--micro-batches", type=SIZE, metavar="M", help="Micro-batches of a step and data-parallel rank."
)
@click.option("--virtual", type=SIZE, metavar="V", help="Virtual stages a rank.")
@click.option(
    "--k", type=SIZE, metavar="K", help="Consecutive micro-batches a virtual stage; pp if left out."
)
@click.option(
    "--pipelines", type=SIZE, metavar="2F", help="Chimera's pipelines, half of them up; 2 if left out."
)
@click.option("--concat", type=click.Choice(CONCATENATIONS), help="Chimera beyond m = p; direct if left out.")
@click.option("--steps", type=SIZE, default=2, help="Steps to simulate.")
@click.option(
    "--windows",
    type=SIZE,
    default=1,
    metavar="N",
    help="Windows of the job's life to simulate, each of --steps steps.",
)
@click.option(
    "--apart",
    type=FiniteRange(0, LARGEST_HOURS),
    default=1.0,
    metavar="HOURS",
    help="Hours from the begin of a window to that of the next; 1 if left out.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    shell_complete=fault,
    help="Planted fault as `reftrain run` takes it; repeatable.",
)
@click.option(
    "--hardware", default="h100", metavar="NAME|FILE", shell_complete=one_of(machines), help="The machine."
)
@click.option(
    "--seed", type=click.IntRange(0, LARGEST_INTEGER), default=0, help="Seed of jitter, clocks and documents."
)
@click.option(
    "--jitter",
    type=FiniteRange(0, LARGEST_JITTER),
    default=1.0,
    help="Scale of all random deviations; 0 leaves none.",
)
@click.option(
    "--free-host", is_flag=True, help="The host runs ahead of arriving messages, not waiting for them."
)
@click.option(
    "--detail", type=click.Choice(["auto", "kernels", "collectives"]), default="auto", help="Rows of traces."
)
@click.option(
    "--trace-form",
    type=click.Choice(DEVICE_FORMS),
    default=NEWEST,
    help="Torch version that writes the traces; 2.13 if left out.",
)
@click.option("--ranks", default="all", metavar="0-63,128|all", help="Ranks to write files for.")
@click.option(
    "--jobs", type=click.IntRange(1, MOST_THREADS), help="Processes that write; one a core if left out."
)
@click.option(
    "--documents", is_flag=True, help="Vary attention time as packed documents do (data.mean_document)."
)
@click.option("--flight-recorder", is_flag=True, help="Write dumps too; a planted hang always does.")
@click.option("--out", type=FOLDER, help="Run folder to write.")
@JSON
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.FIELD=VALUE",
    shell_complete=one_of(fields_of_runs),
    help="Set any field of a run; repeatable.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def simulate(**flags: Any) -> None:
    """Simulate a job and say where its time goes; with --out write its run folder.

    The folder holds what `reftrain run` would leave on the machine: Kineto traces, flight-recorder dumps of a
    job that hangs, run.json with the planted faults.

    \b
    reftrain simulate --preset 405b --mesh tp=8,cp=1,pp=16,dp=128 --out run
    reftrain simulate --preset 8b --mesh tp=4,pp=4,dp=4 --fault slow_compute:rank=5,factor=1.3 --out run
    """
    from reftrain.simulate.pool import usual_jobs
    from reftrain.simulate.run_folder import outcome_of, together, windows_of, write_folder
    from reftrain.simulate.runner import simulate as run_simulation

    given = Flags(**flags)
    config = _config(given)
    world = config.mesh.world_size
    ranks, detail = parse_ranks(given.ranks, world), given.detail_of(world)
    outcomes: list[Outcome] = []
    with simulating(quiet=given.quiet) as progress:
        with _fault_errors_of(given):
            setups = windows_of(_setup(given, config), given.windows, 3600 * given.apart)
        for setup in setups:
            progress(f"{world} ranks, {setup.steps} steps")
            with _fault_errors_of(given):
                outcome = outcome_of(setup, run_simulation(setup))
            if given.out is not None:
                jobs, dumps = given.jobs or usual_jobs(), given.flight_recorder
                outcome = write_folder(
                    outcome, config, given.out, ranks=ranks, detail=detail, flight_recorder=dumps, jobs=jobs,
                    form=FORMS[given.trace_form], earlier=outcomes, progress=progress,
                )  # fmt: skip
            outcomes.append(outcome.without_times())
    _answer(together(outcomes), given.json_to)


def _config(given: Flags) -> "RunConfig":
    """Return the run's configuration; a schedule that is no scheme is left to `schedule_of` to judge."""
    from reftrain.config.file import load

    from .run_settings import tables_of

    overrides = tables_of(given.preset, given.mesh, given.settings)
    if given.faults:
        overrides.setdefault("evidence", {})["faults"] = list(given.faults)
    pipeline = overrides.setdefault("pipeline", {})
    if given.name:
        pipeline["schedule"] = given.name if given.name in SCHEMES else "flexible"
        pipeline.setdefault("virtual_stages", given.virtual or default_virtual(given.name))
    sizes = (("virtual_stages", given.virtual), ("consecutive", given.k))
    pipeline |= {field: size for field, size in sizes if size}
    if given.micro_batches is not None:
        # k may be above the micro-batches that the flag is about to replace
        first = load(given.config, {**overrides, "pipeline": {**pipeline, "consecutive": 0}})
        data = overrides.setdefault("data", {})
        data["batch_size"] = given.micro_batches * first.mesh.dp * first.data.micro_batch_size
    return load(given.config, overrides)


def _setup(given: Flags, config: "RunConfig") -> "Setup":
    """Return the inputs of the simulation: the flags go before the configuration.

    Raises ConfigError for a planted bug, and as its parts do.
    """
    from reftrain.config.fault_spec import parse_fault
    from reftrain.cost.hardware import load_hardware
    from reftrain.faults.bugs import is_bug
    from reftrain.simulate.packing import Packing
    from reftrain.simulate.setup import Setup, job_of, lowered, schedule_of

    from .schedule import TABLE_SUFFIXES, read_table

    pipeline, data, world = config.pipeline, config.data, config.mesh.world_size
    spec = ScheduleSpec(
        given.name or pipeline.schedule, config.mesh.pp, config.micro_batches,
        given.virtual or pipeline.virtual_stages, config.consecutive,
        given.pipelines or pipeline.pipelines, given.concat or pipeline.concatenation,
    )  # fmt: skip
    from_file = given.name is not None and given.name.endswith(TABLE_SUFFIXES)
    table, steps = schedule_of(spec, read_table(Path(spec.name)) if from_file else None, given.steps)
    job = job_of(config, spec, table, given=from_file)
    for text in filter(is_bug, config.evidence.faults):
        raise ConfigError(
            "fault", f"{text} makes numbers wrong, and a simulation has none", "plant it in `reftrain run`"
        )
    faults = tuple(parse_fault(text, world) for text in config.evidence.faults)
    packing = Packing(data.seq_len, data.micro_batch_size, data.mean_document, given.seed)
    return Setup(
        job, lowered(config, table), load_hardware(given.hardware), steps, given.seed, given.jitter, faults,
        merge=given.detail_of(world) == "collectives", host_waits=not given.free_host,
        packing=packing if given.documents else None,
    )  # fmt: skip


@contextmanager
def _fault_errors_of(given: Flags) -> Iterator[None]:
    """Add to the error of a fault that it is in the configuration file, if no flag names a fault."""
    flags = given.faults or any(text.partition("=")[0] == "evidence.faults" for text in given.settings)
    try:
        yield
    except ConfigError as error:
        if given.config is None or flags or error.field.partition(".")[0] != "fault":
            raise
        where = f"{given.config}: evidence.faults: {error.field}"
        raise ConfigError(where, error.problem, error.remedy) from error


_RANGE = re.compile(r"[0-9]+(-[0-9]+)?")


def parse_ranks(text: str, world: int) -> list[int]:
    """Return the ranks that `0-63,128` or `all` names; raises ConfigError for any that is not a rank of the job."""
    if text == "all":
        return list(range(world))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not _RANGE.fullmatch(part):
            raise ConfigError(
                "--ranks", f"{part[:40]!r} is not a rank or range", "write for example 0-63,128 or all"
            )
        low, high = (whole_number(number, world - 1) for number in (first, last if dash else first))
        if low is None or high is None or high < low:
            raise ConfigError(
                "--ranks", f"{part[:40]!r} is not within 0-{world - 1}", "name ranks of the job"
            )
        chosen.update(range(low, high + 1))
    return sorted(chosen)


def _answer(outcome: "Outcome", json_to: str | None) -> None:
    from reftrain.simulate.run_folder import document

    from .simulate_text import outcome_text

    emit(outcome_text(outcome), lambda: json.dumps(document(outcome)) + "\n", json_to)
    sys.stdout.flush()
