"""Settings outside the command line that are refused, and what the refusals advise."""

from pathlib import Path

import pytest
from tracekit_cli import settings
from tracekit_cli.tracekit_commands import slowrank

from tests.advice.register import Call, case


def written(folder: Path, patch: pytest.MonkeyPatch, wrong: str, right: str) -> tuple[Call, Call]:
    """The settings of a command are read from two files."""

    def read(name: str, text: str) -> object:
        (folder / name).write_text(text)
        patch.setenv("TRACEKIT_CONFIG", str(folder / name))
        return settings.read_settings("tracekit", "slowrank", slowrank.slowrank, ["slowrank"])

    return lambda: read("wrong.toml", wrong), lambda: read("right.toml", right)


@case("{} has no {}; {}")
def _(folder, patch):
    return written(folder, patch, "[tracekit.slowrank]\nstep = '1'", "[tracekit.slowrank]\nsteps = '1'")


@case("{}: {} is a value; write a table of options")
def _(folder, patch):
    return written(folder, patch, "[tracekit]\nslowrank = 1", "[tracekit.slowrank]\njob = 1")


@case("{}: not TOML ({}); fix it, or name another file by {}")
def _(folder, patch):
    return written(folder, patch, "[[", "[tracekit.slowrank]")


@case("{}: {}; fix it, or {}")
def _(folder, patch):
    def read(name: str) -> object:
        patch.setenv("TRACEKIT_CONFIG", str(folder / name))
        return settings.read_settings("tracekit", "slowrank", slowrank.slowrank, ["slowrank"])

    (folder / "right.toml").touch()
    return lambda: read("none.toml"), lambda: read("right.toml")
