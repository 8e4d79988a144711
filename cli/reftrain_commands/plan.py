"""`reftrain memory`, `plan` and `calibrate`: memory and time of a run before it is run."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reftrain.errors import ConfigError
from reftrain.thresholds import MOST_DEVICES, MOST_TOKENS, WIDEST
from tracekit.text import whole_number

from ..completion import fields_of_runs, machines, one_of, presets
from ..output import A_FILE, JSON, FiniteRange, emit, write_file

if TYPE_CHECKING:
    from reftrain.plan.meshes import Workload

SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_count(option: str, text: str) -> int:
    """Read `8192`, `8K` or `16M` (powers of 1024)."""
    number, suffix = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    count = whole_number(number, MOST_TOKENS) if suffix in SUFFIXES else None
    if not count or count * SUFFIXES[suffix] > MOST_TOKENS:
        remedy = f"write for example 8192, 8K or 16M, up to {MOST_TOKENS >> 30}G"
        raise ConfigError(option, f"{text[:40]!r} is not a count", remedy)
    return count * SUFFIXES[suffix]


@click.command()
@click.argument("config", required=False, type=A_FILE)
@click.option(
    "--preset", shell_complete=one_of(presets), help="Model preset: tiny, small, 8b, 8x7b, 70b, 405b."
)
@click.option("--mesh", help="Axes and sizes from inner to outer, e.g. tp=8,cp=1,pp=16,dp=128.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.FIELD=VALUE",
    shell_complete=one_of(fields_of_runs),
    help="Set any field of run; repeatable.",
)
@click.option(
    "--kernels",
    type=click.Choice(["eager", "fused"]),
    default="eager",
    help="What layers keep for backward: as run executes them, or fused as on a cluster.",
)
@JSON
def memory(
    config: Path | None,
    preset: str | None,
    mesh: str | None,
    settings: Sequence[str],
    kernels: str,
    json_to: str | None,
) -> None:
    """Show the memory of every pipeline rank of the run that CONFIG.toml and the flags describe.

    The figures are those of the moment in a step that needs most, by kind; the kinds add up to the peak.
    """
    from dataclasses import replace

    from reftrain.config.file import load
    from reftrain.cost.job import job_of_run
    from reftrain.cost.memory import MemoryModel
    from reftrain.plan.memory_report import document, table

    from .run_settings import tables_of

    job = job_of_run(load(config, tables_of(preset, mesh, settings)))
    if kernels == "fused":
        job = replace(job, kernels="fused", attention="flex", optimizer="fused")
    ranks = MemoryModel(job).ranks()
    emit(table(ranks, job.kernels), lambda: json.dumps(document(job, ranks)) + "\n", json_to)


@click.command()
@click.option(
    "--preset",
    shell_complete=one_of(presets),
    help="Model preset: tiny, small, 8b, 8x7b, 70b, 405b.",
)
@click.option("--gpus", type=click.IntRange(1, MOST_DEVICES), help="Devices.")
@click.option("--tokens", help="Tokens of a step, e.g. 16M.")
@click.option("--seq", help="Tokens of a sequence, e.g. 8192 or 128K.")
@click.option(
    "--recipe", type=A_FILE, help="Plan every stage of a recipe; goes with --gpus alone of those above."
)
@click.option(
    "--hardware",
    default="h100",
    show_default=True,
    shell_complete=one_of(machines),
    help="A known machine, or a .toml file.",
)
@click.option("--micro-batch", type=click.IntRange(1, WIDEST), default=1, help="Sequences of a micro-batch.")
@click.option(
    "--mean-document",
    type=FiniteRange(1, WIDEST),
    help="Mean length of documents that do not attend to each other, tokens; else attention is causal.",
)
@click.option(
    "--prefer",
    type=click.Choice(["simple", "time"]),
    default="simple",
    show_default=True,
    help="Which mesh to recommend if several tie: the simplest, or the fastest.",
)
@click.option(
    "--sharding",
    type=click.Choice(["fsdp", "spmd_2d"]),
    default="fsdp",
    show_default=True,
    help="FSDP with tensor parallelism, or weights and activations annotated over two axes (dp, tp).",
)
@click.option("--offload", is_flag=True, help="Also consider optimizers in the host's memory (ZeRO-Offload).")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--svg", type=A_FILE, help="Draw time against memory as SVG.")
@JSON
def plan(
    preset: str | None,
    gpus: int | None,
    tokens: str | None,
    seq: str | None,
    recipe: Path | None,
    hardware: str,
    micro_batch: int,
    mean_document: float | None,
    prefer: str,
    sharding: str,
    offload: bool,
    quiet: bool,
    svg: Path | None,
    json_to: str | None,
) -> None:
    """Rank all meshes with their best schedules by projected step time, and say why others are left out."""
    from reftrain.cost.hardware import load_hardware
    from reftrain.plan import plan_report
    from reftrain.plan.choose import Planner

    from ..progress import planning

    if recipe is not None:
        needless: dict[str, object] = {"--preset": preset, "--tokens": tokens, "--seq": seq, "--svg": svg}
        needless |= {"--mean-document": mean_document, "--offload": offload or None}
        needless |= {"--sharding": None if sharding == "fsdp" else sharding}
        _plan_recipe(recipe, needless, hardware, gpus, prefer, json_to, quiet=quiet)
        return
    work = _workload(preset, gpus, tokens, seq, micro_batch, sharding, offload=offload)
    planner = Planner(work, load_hardware(hardware), _pairs_of(mean_document, work.seq_len))
    with planning(quiet=quiet) as progress:
        made = planner.plan(prefer, progress)
    if svg:
        write_file(svg, plan_report.svg(made))
    emit(plan_report.table(made), lambda: json.dumps(plan_report.document(made)) + "\n", json_to)


def _workload(
    preset: str | None,
    gpus: int | None,
    tokens: str | None,
    seq: str | None,
    micro_batch: int,
    sharding: str,
    *,
    offload: bool,
) -> "Workload":
    """Return the workload that the flags describe; UsageError where one of them is missing."""
    from reftrain.config.file import load
    from reftrain.plan.meshes import Workload

    if preset is None or gpus is None or tokens is None or seq is None:
        given = {"--preset": preset, "--gpus": gpus, "--tokens": tokens, "--seq": seq}
        missing = next(name for name, value in given.items() if value is None)
        raise click.UsageError(f"Missing option '{missing}', or --recipe in place of it.")
    shapes = load(None, {"model": {"preset": preset}})
    length, total = parse_count("--seq", seq), parse_count("--tokens", tokens)
    if total % length:
        problem = f"{total} tokens are not a whole number of sequences of {length}"
        raise ConfigError("--tokens", problem, f"give a multiple of {length}")
    if micro_batch > total // length:
        problem = f"{micro_batch} sequences are more than the {total // length} of a step"
        raise ConfigError("--micro-batch", problem, "give fewer, or more --tokens")
    return Workload(
        shapes.model, gpus, length, total // length, micro_batch, shapes.encoder, sharding, offload
    )


def _plan_recipe(
    path: Path, needless: Mapping[str, object], hardware: str, gpus: int | None, prefer: str,
    json_to: str | None, *, quiet: bool,
) -> None:  # fmt: skip
    """Plan the stages of a recipe; UsageError for a flag that its file answers."""
    from reftrain.config.recipe import load_recipe
    from reftrain.cost.hardware import load_hardware
    from reftrain.plan.recipe_plan import document, plan_recipe, table

    from ..progress import planning

    for name, value in needless.items():
        if value is not None:
            raise click.UsageError(f"{name} does not go with --recipe, which has it in its file.")
    recipe, machine = load_recipe(path, {}), load_hardware(hardware)
    with planning(quiet=quiet) as progress:
        made = plan_recipe(recipe, machine, gpus, prefer, progress)
    emit(table(made), lambda: json.dumps(document(made)) + "\n", json_to)


def _pairs_of(mean_document: float | None, length: int) -> Callable[[int], float] | None:
    """Return the attending pairs of documents of a mean length by context ranks, None where attention is causal."""
    from functools import lru_cache

    from reftrain.plan.attention_pairs import slowest_pairs

    if mean_document is None:
        return None
    return lru_cache(maxsize=None)(lambda cp: slowest_pairs(mean_document, length, cp))


@click.command()
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=4, show_default=True, help="Processes that measure."
)
@click.option("--out", type=A_FILE, help="Write the hardware file here.")
@JSON
def calibrate(ranks: int, out: Path | None, json_to: str | None) -> None:
    """Measure this machine with real processes: messages, collectives, computation.

    Prints a hardware file for plan --hardware, or writes it to --out.
    """
    from reftrain.cost.calibrate import document, fit_link, hardware_toml, measure_links, measure_speed

    samples = measure_links(ranks)
    fit, speed = fit_link(samples), measure_speed()
    toml = hardware_toml(ranks, fit, speed)
    if out:
        write_file(out, toml)
        click.echo(f"reftrain: {out} written; use it with plan --hardware {out}", err=True)
    content = document(ranks, fit, speed, samples, toml)
    emit("" if out else toml, lambda: json.dumps(content) + "\n", json_to)
