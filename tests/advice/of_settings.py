"""Settings outside the command line that are refused, and what the refusals advise."""

from pathlib import Path

import click
import pytest
from tracekit_cli import settings
from tracekit_cli.tracekit_commands import slowrank, whatif

from tests.advice.register import Call, case


def written(
    folder: Path, patch: pytest.MonkeyPatch, wrong: str, right: str, of: click.Command = slowrank.slowrank
) -> tuple[Call, Call]:
    """The settings of a command are read from two files."""

    def read(name: str, text: str) -> object:
        (folder / name).write_text(text)
        patch.setenv("TRACEKIT_CONFIG", str(folder / name))
        return settings.read_settings("tracekit", of, str(of.name))

    return lambda: read("wrong.toml", wrong), lambda: read("right.toml", right)


@case("{}: [{}.{}] has no {}; choose from {}")
def _(folder, patch):
    return written(folder, patch, "[tracekit.slowrank]\nstep = '1'", "[tracekit.slowrank]\nsteps = '1'")


@case("{}: {} is a value; write a table of options")
def _(folder, patch):
    return written(folder, patch, "[tracekit]\nslowrank = 1", "[tracekit.slowrank]\njob = 1")


@case("{}: a single value; write a list, as in")
def _(folder, patch):
    tables = ("[tracekit.whatif]\nfix = 'rank=5'", "[tracekit.whatif]\nfix = ['rank=5']")
    return written(folder, patch, *tables, of=whatif.whatif)


@case("{}: a switch is either; write true or false")
def _(folder, patch):
    return written(folder, patch, "[tracekit.slowrank]\nquiet = 'yes'", "[tracekit.slowrank]\nquiet = true")


@case("{}: no text; write one, as on the command line")
def _(folder, patch):
    return written(folder, patch, "[tracekit.slowrank]\nsteps = [3, 8]", "[tracekit.slowrank]\nsteps = '3:8'")


@case("{}: not TOML ({}); fix it, or name another file by {}")
def _(folder, patch):
    return written(folder, patch, "[[", "[tracekit.slowrank]")


@case("{}: {}; fix it, or {}")
def _(folder, patch):
    def read(name: str) -> object:
        patch.setenv("TRACEKIT_CONFIG", str(folder / name))
        return settings.read_settings("tracekit", slowrank.slowrank, "slowrank")

    (folder / "right.toml").touch()
    return lambda: read("none.toml"), lambda: read("right.toml")
