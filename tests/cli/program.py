"""The program `tracekit` as a user starts it, in this process: arguments in; exit code, stdout and stderr out."""

import sys
from dataclasses import dataclass

import pytest
from tracekit_cli.tracekit import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Program:
    """Calls the console script's entry point; anything but SystemExit that escapes it fails the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(self, *arguments: object) -> Done:
        self.capfd.readouterr()
        self.monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = self.capfd.readouterr()
        assert "Traceback" not in out + err
        return Done(
            left.value.code if isinstance(left.value.code, int) else int(bool(left.value.code)), out, err
        )
