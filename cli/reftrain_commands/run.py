"""`reftrain run`: trains the reference model and leaves evidence behind."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.config.trace_forms import HOST_FORMS
from reftrain.rank.world import check_environment
from reftrain.thresholds import MOST_DEVICES, MOST_STEPS

from ..completion import fault, fields_of_runs, one_of, presets
from ..output import A_FILE
from .run_settings import Tables, parse_steps, tables_of


def fields_help() -> str:
    """All fields of the configuration with default and meaning, by table."""
    config = RunConfig()
    lines = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            lines.append(f"[{field.name}]  {(type(value).__doc__ or '').splitlines()[0]}")
            lines += [_field_line(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
    lines.append("[run]  Everything else.")
    lines += [_field_line(f, getattr(config, f.name)) for f in dataclasses.fields(config) if f.metadata]
    return "\n".join(lines)


def _field_line(field: "dataclasses.Field[Any]", default: object) -> str:
    shown = list(default) if isinstance(default, tuple) else default
    value = str(shown).lower() if isinstance(shown, bool) else repr(shown)
    return f"  {field.name} = {value}: {field.metadata['meaning']}"


def show_all(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    """Print the help with every field of the configuration, and leave."""
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{ctx.get_help()}\n\nFields of CONFIG.toml and --set:\n\n{fields_help()}")
        ctx.exit()


@click.command()
@click.argument("config", required=False, type=A_FILE)
@click.option(
    "--preset", shell_complete=one_of(presets), help="Model preset: tiny, small, 8b, 8x7b, 70b, 405b."
)
@click.option("--mesh", help="Axes and sizes from inner to outer, e.g. tp=2,cp=2,pp=2,dp=2.")
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), help="Steps to train.")
@click.option("--out", help="Folder the run is written to.")
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    help="Tokenised data set: .parquet, .arrow, Megatron's .bin with .idx, or a folder of these; repeatable.",
)
@click.option("--resume", help="Checkpoint to start from, or auto for the run's own latest.")
@click.option("--elastic", is_flag=True, help="Go on from the last checkpoint when a rank dies; one machine.")
@click.option(
    "--max-restarts",
    type=click.IntRange(0, MOST_STEPS),
    help="With --elastic: restarts before it gives up; 10.",
)
@click.option(
    "--min-replicas",
    type=click.IntRange(0, MOST_DEVICES),
    help="With --elastic: a death takes a data-parallel replica out, down to so many; 0 replaces the rank.",
)
@click.option(
    "--compute",
    type=click.Choice(["real", "emulated"]),
    help="Compute for real, or sleep each segment's time.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    shell_complete=fault,
    help="Planted fault, e.g. slow_compute:rank=5,factor=1.5; repeatable.",
)
@click.option("--trace", help="Steps to trace with the profiler, e.g. 3, or 2:4 (end excluded).")
@click.option(
    "--trace-form",
    type=click.Choice(HOST_FORMS),
    help="Torch version that sets the arguments of calls in the trace, or stock: none; 2.13 if left out.",
)
@click.option("--flight-recorder", is_flag=True, help="Keep a flight-recorder dump of each rank in OUT/fr.")
@click.option(
    "--capture",
    type=click.Choice(["digest", "tensors"]),
    help="Record for numerics compare: fingerprints, or values too.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.FIELD=VALUE",
    shell_complete=one_of(fields_of_runs),
    help="Set any field; repeatable.",
)
@click.option(
    "--recipe",
    type=A_FILE,
    help="Train the stages of a recipe's file one after the other, in place of CONFIG.",
)
@click.option("--stage", default="", help="With --recipe: train this stage alone.")
@click.option("--dry-run", is_flag=True, help="Check configuration, faults and the ranks started, then stop.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=show_all,
    help="This help with every field of CONFIG.toml, its default and meaning.",
)  # fmt: skip
def run(
    config: Path | None,
    *,
    recipe: Path | None,
    stage: str,
    settings: Sequence[str],
    dry_run: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Train the model that CONFIG.toml describes; flags override it.

    Forks its ranks on one machine; under torchrun or Slurm it joins the ranks they started.
    """
    overrides = _overrides(settings, flags)
    if recipe is not None:
        _run_recipe(recipe, config, overrides, stage, dry_run=dry_run, quiet=quiet)
        return
    if stage:
        raise click.UsageError("--stage names a stage of --recipe FILE; give that as well.")
    loaded = load(config, overrides)
    from reftrain.job.launcher import check_faults, launch

    check_faults(loaded, None if "faults" in overrides["evidence"] else config)
    if dry_run:
        check_data(loaded)
        click.echo(check_environment(loaded), err=True)
        return
    from .progress import Progress, print_lag

    launch(
        loaded,
        lambda rank: [Progress()] if rank == 0 and not quiet else [],
        lambda sentence: None if quiet else click.echo(sentence, err=True),
    )
    if not quiet:
        print_lag(Path(loaded.out))


def _run_recipe(
    path: Path, config: Path | None, overrides: Tables, stage: str, *, dry_run: bool, quiet: bool
) -> None:
    """Train a recipe or one stage of it, or check each of its stages."""
    from reftrain.config.recipe import load_recipe
    from reftrain.job.recipe import run_recipe

    from .progress import Progress

    if config is not None or "steps" in overrides.get("run", {}) or overrides.get("mesh"):
        raise click.UsageError("--recipe goes without CONFIG.toml, --steps and --mesh: its file has them.")
    found = load_recipe(path, overrides)
    if dry_run:
        for each in found.stages:
            if stage in {"", each.name}:
                check_data(each.config)
                click.echo(f"stage {each.name}: {check_environment(each.config)}", err=True)
        return
    run_recipe(
        found,
        lambda rank: [Progress()] if rank == 0 and not quiet else [],
        lambda sentence: None if quiet else click.echo(sentence, err=True),
        stage,
    )


def check_data(config: RunConfig) -> None:
    """Read one sequence of each tokenised data set; ConfigError where it cannot be."""
    from reftrain.data.sequences import make_source

    sets = [config.data]
    if config.evaluation.every:
        sets.append(dataclasses.replace(config.data, files=config.evaluation.files))
    for data in sets:
        if data.source == "tokens":
            make_source(data, config.model.vocab_size).sequence(0)


def _overrides(settings: Sequence[str], flags: Mapping[str, Any]) -> Tables:
    """Return settings and flags as tables of the configuration; a flag that is not given leaves its field alone."""
    tables = tables_of(flags["preset"], flags["mesh"], settings)
    _put(tables, "run", steps=flags["steps"], out=flags["out"], compute=flags["compute"])
    if flags["data"]:
        _put(tables, "data", source="tokens", files=list(flags["data"]))
    _put(tables, "checkpoint", resume=flags["resume"] or None)
    _put(
        tables,
        "elastic",
        enabled=flags["elastic"] or None,
        restarts=flags["max_restarts"],
        min_replicas=flags["min_replicas"],
    )
    _put(
        tables,
        "evidence",
        faults=list(flags["faults"]) or None,
        trace_steps=parse_steps(flags["trace"]) if flags["trace"] else None,
        trace_form=flags["trace_form"],
        flight_recorder=flags["flight_recorder"] or None,
        capture=flags["capture"],
    )
    return tables


def _put(tables: Tables, table: str, **given: object) -> None:
    """Add the flags that were given to a table."""
    tables.setdefault(table, {}).update({name: value for name, value in given.items() if value is not None})
