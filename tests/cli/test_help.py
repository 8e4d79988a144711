"""Only commands and options that work are there."""

import re

import pytest
from tracekit_cli.tracekit import tracekit as group

ASKED_FOR = {"slowrank", "ingest", "hang"}


def test_help_lists_the_commands_that_stand_and_no_other(tracekit):
    done = tracekit("--help")
    listed = set(re.findall(r"^  ([a-z]+)  ", done.out.split("Commands:")[1], re.MULTILINE))
    assert done.code == 0
    assert {"slowrank", "ingest"} <= listed <= ASKED_FOR
    assert listed == set(group.commands)


@pytest.mark.parametrize("name", sorted(group.commands))
def test_every_command_explains_itself(tracekit, name):
    done = tracekit(name, "--help")
    assert done.code == 0
    assert f"Usage: tracekit {name} " in done.out
    assert f"tracekit {name} " in done.out.split("Options:")[0].split("\n", 1)[1]  # an example


@pytest.mark.parametrize("name", ["breakdown", "whatif", "diff", "mesh"])
def test_an_unknown_command_is_a_usage_error(tracekit, name):
    done = tracekit(name, "traces")
    assert done.code == 2
    assert f"No such command '{name}'" in done.err


def test_version_is_told(tracekit):
    done = tracekit("--version")
    assert done.code == 0
    assert re.search(r"\d+\.\d+\.\d+", done.out)


def test_every_option_of_slowrank_stands_in_the_documentation():
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for parameter in group.commands["slowrank"].params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert f"`{option}" in text, option
