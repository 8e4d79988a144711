"""The foot of a page that a command writes: what repeats the answer, and nothing that opens a store of others."""

import html
import json
import re
from dataclasses import asdict

import click
import pytest
from click.testing import CliRunner
from tracekit_cli import options
from tracekit_cli.program import Command, program
from tracekit_cli.source import Source, pair, source

from tests.house.source import ROOT
from tracekit.page.shell import About
from tracekit.text import without_secrets

SAMPLE = "sample_traces/demo_healthy"


@click.command()
@click.option("--fix", multiple=True)
@click.option("--pair", "pairs", type=(str, str), multiple=True)
@click.option("--no-replay", is_flag=True)
@options.cut()
@options.failing(["healthy"])
@options.answer()
@source()
def asked(source: Source, **_others):
    """Print the foot."""
    click.echo(json.dumps(asdict(options.page_foot(source.inputs))))


@click.command()
@options.answer()
@pair()
def compared(pair, **_others):
    """Print the foot."""
    click.echo(json.dumps(asdict(options.page_foot([pair.before, None, pair.after], "today"))))


@pytest.fixture
def foot(monkeypatch, tmp_path):
    """The foot of a command of a program with these arguments."""
    monkeypatch.setattr(Command, "load", lambda self: {"asked": asked, "compared": compared}[self.name])
    monkeypatch.chdir(tmp_path)

    def prog():
        """A program."""

    group = program("nowhere", {"All": [Command(n, n, n) for n in ("asked", "compared")]})(prog)

    def ask(*arguments):
        done = CliRunner().invoke(group, arguments, prog_name="tracekit", standalone_mode=False)
        assert done.exception is None, done.exception
        said = json.loads(done.output)
        return About(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
        )

    return ask


def test_command_repeats_what_was_asked(foot):
    about = foot(
        "asked", "a b", "--fix", "rank=5", "--steps", "3:8", "--fix", "axis=tp", "--pair", "x", "y", "--no-replay", "c"
    )  # fmt: skip
    assert about.command == (
        "tracekit asked 'a b' c --fix rank=5 --fix axis=tp --steps 3:8 --pair x y --no-replay"
    )
    assert about.inputs == ("a b", "c")
    assert about.recorded is None


def test_forms_of_the_answer_are_left_out(foot, tmp_path):
    flags = ("--json", str(tmp_path / "x.json"), "--verbose", "--quiet", "--jobs", "3", "--fail-on", "any")
    assert foot("asked", "traces", *flags) == foot("asked", "traces")
    assert foot("asked", "traces").command == "tracekit asked traces"


def test_both_runs_of_a_pair_are_named(foot):
    about = foot("compared", "one", "--job", "2", "two")
    assert about.command == "tracekit compared one two --job 2"
    assert (about.inputs, about.recorded) == (("one", "two"), "today")


def test_settings_from_outside_are_named(foot, monkeypatch, tmp_path):
    (tmp_path / "tracekit.toml").write_text('[prog.asked]\nsteps = "3:8"\n')
    monkeypatch.setenv("PROG_ASKED_MESH", "tp=8")
    assert foot("asked", "traces").settings == (
        "--mesh is set by the environment variable PROG_ASKED_MESH",
        "--steps is set by tracekit.toml",
    )
    assert foot("asked", "traces", "--mesh", "tp=4", "--steps", "1").settings == ()


def test_secrets_in_urls_are_left_out(foot):
    about = foot("asked", "s3://KEY:SECRET@host/traces", "https://h/t.json?X-Amz-Signature=SECRET&b=1")
    assert "SECRET" not in repr(about)
    assert about.inputs == ("s3://…@host/traces", "https://h/t.json?…")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("traces/rank@7?x=1", "traces/rank@7?x=1"),
        ("s3://bucket/rank?.json", "s3://bucket/rank?.json"),
        ("s3://bucket/a@b.json", "s3://bucket/a@b.json"),
        ("ftp://user@host/a", "ftp://…@host/a"),
        ("ftp://u:p@ss@host/a", "ftp://…@host/a"),
        ("zip://x.json::s3://K:S@host/a.zip", "zip://x.json::s3://…@host/a.zip"),
        ("https://h/a?sig=1/2?3&b=4", "https://h/a?…"),
        ("https://h/a?token=x#part", "https://h/a?…"),
        ("", ""),
    ],
)
def test_only_what_opens_a_url_is_hidden(given, told):
    assert without_secrets(given) == told


@pytest.mark.slow
def test_pages_of_one_input_are_equal_bytes(tracekit, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = []
    for name in ("a.html", "b.html"):
        assert tracekit("mesh", SAMPLE, "--quiet", "--html", tmp_path / name).code == 0
        pages.append((tmp_path / name).read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    assert f"<code>tracekit mesh {SAMPLE}</code>" in pages[0]
    assert re.search(r"recorded</dt><dd>20\d\d-\d\d-\d\d", html.unescape(pages[0]))
