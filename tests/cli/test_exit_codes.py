"""One table holds the exit code of every error of the three programs, and the documentation repeats it."""

import re
from pathlib import Path

import click
import pytest
from tracekit_cli import exit_codes
from tracekit_cli.program import Command, program, run

from numerics.errors import CaptureError
from reftrain.errors import ConfigError, MachineError, RankDiedError, ReftrainError, ScheduleError
from tracekit.errors import InputError, MeshError, TracekitError, UsageError

DOCUMENTED = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (InputError("x"), 3),
        (MeshError("x"), 3),
        (CaptureError("x"), 3),
        (ConfigError("field", "problem", "remedy"), 2),
        (ScheduleError("field", "problem", "remedy"), 2),
        (MachineError("x"), 3),
        (RankDiedError("x"), 3),
        (click.UsageError("x"), 2),
        (FileNotFoundError("x"), 3),
        (BrokenPipeError(), 0),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (ZeroDivisionError("x"), 70),
    ],
)
def test_every_error_has_one_code(error, code):
    assert exit_codes.of_error(error) == code


@pytest.mark.parametrize("error", [CaptureError, ReftrainError])
def test_every_package_shares_the_error_root(error):
    assert issubclass(error, TracekitError)


def test_documented_codes_are_the_codes():
    section = DOCUMENTED.read_text(encoding="utf-8").split("## Exit codes")[1].split("\n## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    assert documented == {
        value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)
    }


@pytest.fixture
def failing(monkeypatch, capsys):
    """Run a program whose only command fails: (error, debug) in; (exit code, stderr) out."""

    def call(error, *, debug=False):
        @click.command
        def fail():
            raise error

        monkeypatch.setattr(Command, "load", lambda _: fail)
        monkeypatch.setattr("sys.argv", ["trial", "fail"])
        monkeypatch.setenv("TRACEKIT_DEBUG", "1" if debug else "")

        @program("", {"Fails": [Command("fail", "nowhere", "Fails.")]})
        def trial():
            """Fail."""

        with pytest.raises(SystemExit) as left:
            run(trial)
        said = capsys.readouterr()
        assert said.out == ""
        return left.value.code, said.err

    return call


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InputError("a.json: is no trace"), (3, "trial: a.json: is no trace\n")),
        (ConfigError("mesh.tp", "3 is odd", "give 2"), (2, "trial: mesh.tp: 3 is odd; give 2\n")),
        (
            PermissionError(13, "Permission denied", "x/y"),
            (3, "trial: x/y: Permission denied; name another file or folder\n"),
        ),
        (KeyboardInterrupt(), (130, "\ntrial: interrupted\n")),
        (InputError("bad\x1b[31m name"), (3, "trial: bad\ufffd[31m name\n")),
        (
            RuntimeError("so it is"),
            (
                70,
                "trial: a fault of ours, please report it: RuntimeError: so it is (TRACEKIT_DEBUG=1 shows where)\n",
            ),
        ),
    ],
)
def test_errors_are_one_sentence_and_a_code(failing, error, told):
    assert failing(error) == told


def test_debug_shows_where_a_fault_is(failing):
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError("x"), debug=True)
    assert failing(InputError("x"), debug=True) == (3, "trial: x\n")
