"""Every command and option stands in docs/cli.md, and nothing stands there that does not exist."""

import re
from pathlib import Path

import click
import pytest
from tracekit_cli.numerics import numerics
from tracekit_cli.reftrain import reftrain
from tracekit_cli.tracekit import tracekit as tracekit_program

PROGRAMS = (tracekit_program, numerics, reftrain)
COMMANDS = {
    f"{program.name} {name}": entry for program in PROGRAMS for name, entry in program.entries.items()
}
TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `(\w+ \w+)`\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL))
AS_ELSEWHERE = {"--mesh", "--set", "--baseline", "--out", "--hardware", "--fault"}
"""Options of one command that the section of another one may mention."""


def options(name):
    parameters = COMMANDS[name].load().params
    return {o for p in parameters if isinstance(p, click.Option) for o in p.opts if o.startswith("--")}


def test_every_command_has_a_section():
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_documentation_agree(name):
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", SECTIONS[name]))
    assert options(name) - told == set()
    assert told - options(name) - AS_ELSEWHERE - {"--help"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_listed_summary_is_one_short_sentence(name):
    summary = COMMANDS[name].summary
    assert summary.endswith(".")
    assert len(summary) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_explains_itself(name):
    for parameter in COMMANDS[name].load().params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
