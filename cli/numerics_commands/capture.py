"""`numerics capture -- CMD`: runs a training command with capture switched on by environment variables."""

import os
import sys
from pathlib import Path

import click

from numerics.record.switch import LEVEL, NAMES, OUT
from tracekit.child_processes import run_command
from tracekit.errors import OutputError, UsageError
from tracekit.own_files import odd_name, unwritable

from ..output import FOLDER


@click.command()
@click.option("--out", required=True, type=FOLDER, help="Run folder to write.")
@click.option(
    "--level",
    type=click.Choice(["digest", "tensors"]),
    default="digest",
    show_default=True,
    help="Fingerprints and statistics, or values as well.",
)
@click.option(
    "--names", metavar="GLOB,…", help="Tensors to keep with values at level tensors; all if left out."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(out: Path, level: str, names: str | None, command: tuple[str, ...]) -> int:
    """Run CMD with capture on. Its trainer must call numerics.watch, which does nothing without this command.

    \b
    numerics capture --out run_a -- torchrun --nproc-per-node 4 train.py

    The exit code is that of CMD.
    """
    if (out / "capture").exists():
        raise UsageError(f"{out}: a capture is there already; name another folder")
    _check_writable(out)
    environment = {**os.environ, OUT: str(out.absolute()), LEVEL: level, NAMES: names or ""}
    try:
        code = run_command(command, environment)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started ({error.strerror or error})") from error
    if code == 0 and not (out / "capture").is_dir():
        click.echo("numerics: the command recorded nothing; does its trainer call numerics.watch?", err=True)
        return 3
    sys.stdout.flush()
    return code if code >= 0 else 128 - code


def _check_writable(out: Path) -> None:
    """Raise OutputError where the ranks could not make the folder, before the command runs for nothing."""
    if why := odd_name(out):
        raise OutputError(f"{out}: {why}; name another folder")
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if why := unwritable(there) if there.is_dir() else "it is not a folder":
        raise OutputError(f"{out}: cannot be written ({there}: {why}); name another folder")
