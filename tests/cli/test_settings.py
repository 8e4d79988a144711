"""Options from the environment and from tracekit.toml: who goes before whom, and what a bad one is told."""

from pathlib import Path

import pytest
from tracekit_cli.tracekit import tracekit as program

TRACES = str(Path(__file__).parents[2] / "sample_traces" / "demo_healthy" / "trace")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Write a tracekit.toml into the current folder."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "tracekit.toml").write_text


def steps_of(arguments):
    """Steps that `mesh` or `slowrank` would take from all places, without running it."""
    name, command, rest = program.resolve_command(
        context := program.make_context("tracekit", arguments), arguments
    )
    taken = command.make_context(name, rest, parent=context)
    return taken.params["steps"]


def test_line_goes_before_environment_before_file(given, monkeypatch):
    given('[tracekit.slowrank]\nsteps = "1"\n')
    assert steps_of(["slowrank", TRACES]) == [(1, 2)]
    monkeypatch.setenv("TRACEKIT_SLOWRANK_STEPS", "2")
    assert steps_of(["slowrank", TRACES]) == [(2, 3)]
    assert steps_of(["slowrank", TRACES, "--steps", "3"]) == [(3, 4)]


def test_other_commands_take_nothing(given):
    given('[tracekit.slowrank]\nsteps = "1"\n')
    assert steps_of(["breakdown", TRACES]) is None


def test_named_file_goes_before_that_of_folder(given, tmp_path, monkeypatch):
    given('[tracekit.slowrank]\nsteps = "1"\n')
    (tmp_path / "other.toml").write_text('[tracekit.slowrank]\nsteps = "4"\n')
    monkeypatch.setenv("TRACEKIT_CONFIG", str(tmp_path / "other.toml"))
    assert steps_of(["slowrank", TRACES]) == [(4, 5)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[tracekit.slowrank]\nstep = '1'\n",
            "has no 'step'; choose from address, engine, explain, fail-on, html",
        ),
        ("[tracekit.slowrank]\nquiet = 'yes'\n", "quiet: a switch is either; write true"),
        ("[tracekit.slowrank]\nsteps = [1]\n", "steps: no text; write one"),
        ("[tracekit]\nslowrank = 1\n", "'slowrank' is a value"),
        ("[[[\n", "not TOML"),
        ("tracekit = " + "[" * 5000, "not TOML"),
    ],
)
def test_bad_file_is_refused_with_its_name(given, tracekit, text, told):
    given(text)
    done = tracekit("slowrank", TRACES)
    assert done.code == 2
    assert told in done.err
    assert "tracekit.toml" in done.err
    assert tracekit("slowrank", "--help").code == 0


def test_several_values_are_a_list(given, tracekit):
    given("[tracekit.whatif]\nfix = 'rank=5'\n")
    assert 'write a list, as in ["rank=5"]' in tracekit("whatif", TRACES).err


def test_refusal_tells_the_place_of_settings(given, tracekit, monkeypatch):
    given("[tracekit.slowrank]\nquiet = true\n")
    monkeypatch.setenv("TRACEKIT_SLOWRANK_MESH", "tp=3")
    done = tracekit("slowrank", TRACES)
    assert done.code == 2
    assert "--mesh is set by the environment variable TRACEKIT_SLOWRANK_MESH" in done.err
    assert "--quiet is set by tracekit.toml" in done.err


def test_named_file_that_is_missing_is_refused(tracekit, monkeypatch):
    monkeypatch.setenv("TRACEKIT_CONFIG", "/no/such.toml")
    done = tracekit("slowrank", TRACES)
    assert done.code == 2
    assert "/no/such.toml: No such file" in done.err
