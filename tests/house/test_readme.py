"""What the README shows is what the programs print."""

import re
import sys

import pytest
from tracekit_cli import tracekit

from tests.house.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```\n\$ tracekit (.*)\n((?:.*\n)*?)```$", README, re.MULTILINE)


def test_first_output_is_of_a_sample():
    assert SHOWN[0][0] == "slowrank sample_traces/slow_compute"
    assert README.index("```\n$ tracekit") == README.index("```\n$ ")


@pytest.mark.parametrize(("arguments", "shown"), SHOWN)
def test_output_is_what_the_command_prints(arguments, shown, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["tracekit", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        tracekit.main()
    assert (left.value.code, capsys.readouterr().out) == (0, shown)
