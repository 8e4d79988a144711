"""`reftrain`: trains the reference model and leaves evidence behind."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from reftrain.config.file import load
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError, ReftrainError
from reftrain.rank.world import check_environment
from tracekit.errors import UsageError
from tracekit.mesh.parse import parse_mesh as tracekit_mesh
from tracekit.mesh.parse import parse_sizes

from . import exit_codes
from .reftrain_demo import demo
from .reftrain_faults import faults
from .reftrain_plan import calibrate, memory, plan
from .reftrain_schedule import schedule
from .reftrain_simulate import simulate

DEBUG = "TRACEKIT_DEBUG"


def parse_mesh(text: str) -> dict[str, Any]:
    """The `mesh` table of `tp=2,cp=2`: the sizes written, and the order of all axes, inner to outer.

    Axes that `text` does not name stand outermost. Raises ConfigError where it is no list of axes and sizes.
    """
    try:
        sizes, order = parse_sizes(text), list(tracekit_mesh(text))
    except UsageError as error:
        problem = str(error).removeprefix("--mesh: ")
        raise ConfigError("--mesh", problem, "write for example tp=2,cp=1,pp=2,dp=4") from error
    return {**sizes, "order": order}


def parse_steps(text: str) -> list[int]:
    """Read `3` or `2:4` (end excluded) as a list of steps."""
    first, colon, end = text.partition(":")
    if not first.isdigit() or (colon and not end.isdigit()) or (colon and int(end) <= int(first)):
        raise ConfigError("--trace", f"{text!r} is no step or range", "write for example 3 or 2:4")
    return list(range(int(first), int(end) if colon else int(first) + 1))


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Read `table.field=value` with the value in TOML's notation, bare words being text."""
    import tomllib

    name, equals, value = text.partition("=")
    table, dot, field = name.partition(".")
    if not equals or not dot:
        raise ConfigError(
            "--set", f"{text!r} is no table.field=value", "write for example optimizer.clip_norm=0.5"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return table, field, parsed


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


class FieldsCommand(click.Command):
    """A command whose help ends with the fields of the configuration."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the fields as they are, one a line."""
        del ctx
        formatter.write("\nFields of CONFIG.toml and --set:\n\n" + fields_help() + "\n")


@click.group()
@click.version_option(package_name="tracekit4d")
def cli() -> None:
    """Train a reference model on tensor, context, pipeline and data parallelism."""


@cli.command(cls=FieldsCommand)
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--preset", help="Model preset: tiny, small, 8b, 70b, 405b.")
@click.option("--mesh", help="Axes and sizes from inner to outer, e.g. tp=2,cp=2,pp=2,dp=2.")
@click.option("--steps", type=int, help="Steps to train.")
@click.option("--out", help="Folder the run is written to.")
@click.option("--resume", help="Checkpoint to start from, or auto for the run's own latest.")
@click.option(
    "--compute",
    type=click.Choice(["real", "emulated"]),
    help="Compute for real, or sleep each segment's time.",
)
@click.option(
    "--fault", "faults", multiple=True, help="Planted fault, e.g. slow_compute:rank=5,factor=1.5; repeatable."
)
@click.option("--trace", help="Steps to trace with the profiler, e.g. 3, or 2:4 (end excluded).")
@click.option("--flight-recorder", is_flag=True, help="Keep a flight-recorder dump of each rank in OUT/fr.")
@click.option(
    "--capture",
    type=click.Choice(["digest", "tensors"]),
    help="Record for numerics compare: fingerprints, or values too.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="TABLE.FIELD=VALUE", help="Set any field; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Check the configuration and the ranks started, then stop.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def run(
    config: Path | None,
    preset: str | None,
    mesh: str | None,
    steps: int | None,
    out: str | None,
    resume: str | None,
    compute: str | None,
    faults: Sequence[str],
    trace: str | None,
    capture: str | None,
    settings: Sequence[str],
    *,
    flight_recorder: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train with CONFIG.toml, flags going before it.

    Forks its ranks on one machine; under torchrun or Slurm it joins the ranks they started.
    """
    overrides: dict[str, dict[str, Any]] = {}
    for setting in settings:
        table, field, value = parse_setting(setting)
        overrides.setdefault(table, {})[field] = value
    given = {"steps": steps, "out": out, "compute": compute}
    overrides.setdefault("run", {}).update(
        {name: value for name, value in given.items() if value is not None}
    )
    if preset:
        overrides.setdefault("model", {})["preset"] = preset
    if mesh:
        overrides.setdefault("mesh", {}).update(parse_mesh(mesh))
    if faults:
        overrides.setdefault("evidence", {})["faults"] = list(faults)
    if trace:
        overrides.setdefault("evidence", {})["trace_steps"] = parse_steps(trace)
    if flight_recorder:
        overrides.setdefault("evidence", {})["flight_recorder"] = True
    if capture:
        overrides.setdefault("evidence", {})["capture"] = capture
    if resume:
        overrides.setdefault("checkpoint", {})["resume"] = resume
    loaded = load(config, overrides)
    if dry_run:
        click.echo(check_environment(loaded), err=True)
        return
    from reftrain.job.launcher import launch

    from .reftrain_progress import Progress, tell_lag

    launch(loaded, lambda rank: [Progress()] if rank == 0 and not quiet else [])
    if not quiet:
        tell_lag(Path(loaded.out))


cli.add_command(calibrate)
cli.add_command(demo)
cli.add_command(faults)
cli.add_command(memory)
cli.add_command(plan)
cli.add_command(schedule)
cli.add_command(simulate)


def main() -> None:
    """Run the command; errors become one sentence on stderr and an exit code."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except ReftrainError as error:
        click.echo(f"reftrain: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("reftrain: interrupted", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing more to say
        sys.exit(exit_codes.OK)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"reftrain: {where}{error.strerror or error}; name another file or folder", err=True)
        sys.exit(exit_codes.INPUT)
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        told = f"{type(error).__name__}: {error} ({DEBUG}=1 shows where)"
        click.echo(f"reftrain: a fault of ours, please report it: {told}", err=True)
        sys.exit(exit_codes.FAULT)


if __name__ == "__main__":
    main()
