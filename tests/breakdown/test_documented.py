"""docs/breakdown.md shows what the command prints."""

import re
import sys

import pytest
from tracekit_cli import tracekit

from tests.house.source import ROOT

PAGE = (ROOT / "docs" / "breakdown.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_shown_output_is_what_the_command_prints(monkeypatch, capsys):
    (arguments, shown), *_ = re.findall(r"^```\n\$ tracekit (.*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["tracekit", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        tracekit.main()
    assert (left.value.code, capsys.readouterr().out) == (0, shown)
