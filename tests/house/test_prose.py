"""Pages, messages, help and docstrings are written in plain English: some turns of phrase are forbidden."""

import json

import pytest
from click.testing import CliRunner
from tracekit_cli.numerics import numerics
from tracekit_cli.reftrain import reftrain
from tracekit_cli.tracekit import tracekit

from tests.house import prose

LEFT = {"tracekit": 136, "numerics": 0, "reftrain": 2, "cli": 0}
"""Forbidden turns of phrase that docstrings of a package still hold: fewer with time, and never more."""
ON_PAGES = {"tracekit": 0, "numerics": 0, "reftrain": 0, "cli": 0}
"""The same of messages and pages."""


def found(texts):
    """Places and words of all forbidden turns of phrase in (place, text)."""
    return [f"{place} {words}" for place, text in texts for words in prose.phrases(text)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("If that is meant, declare it.", "meant"),
        ("A text is none.", "none"),
        ("Nothing tells which.", "told"),
        ("A rank whose device is slow.", "who"),
        ("It waits for nobody.", "somebody"),
        ("Ranks of which one is slow.", "of which"),
        ("It says by how much.", "by how much"),
        ("Compute stands still.", "stands"),
        ("Those that wait are victims.", "those that"),
        ("Of the ranks the slow ones.", "starts with Of"),
        ("Is a rank slow, it is named.", "inverted"),
    ],
)
def test_each_pattern_finds_its_phrase(text, name):
    assert [words.partition(":")[0] for words in prose.phrases(text)] == [name]


def test_plain_sentences_pass():
    text = "Users who record the host see when a rank is late. Does a rank wait, or work? One of the ranks is slow."
    assert prose.phrases(text) == []


def test_pages_are_plain():
    assert found(prose.pages()) == []


@pytest.mark.parametrize("package", prose.PACKAGES)
def test_messages_are_plain(package):
    bad = found(prose.messages(package))
    assert len(bad) <= ON_PAGES[package], "\n".join(bad)


@pytest.mark.parametrize("program", [tracekit, numerics, reftrain], ids=lambda p: p.name)
def test_json_descriptions_are_plain(program):
    names = program.get_command(None, "schema").params[0].type.choices
    run = CliRunner().invoke
    schemas = [(name, run(program, ["schema", name], catch_exceptions=False).output) for name in names]
    assert all(json.loads(text)["$schema"] for _, text in schemas)
    assert found(schemas) == []


@pytest.mark.parametrize("package", prose.PACKAGES)
def test_docstrings_get_no_worse(package):
    bad = found(prose.docstrings(package))
    assert len(bad) <= LEFT[package], "\n".join(bad)
