"""Options from the environment and from tracekit.toml: who goes before whom, and what a bad one is told."""

from pathlib import Path

import click
import pytest
from tracekit_cli.numerics import numerics
from tracekit_cli.reftrain import reftrain
from tracekit_cli.tracekit import tracekit as program

TRACES = str(Path(__file__).parents[2] / "sample_traces" / "demo_healthy" / "trace")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Write a tracekit.toml into the current folder."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "tracekit.toml").write_text


def taken(program, *arguments):
    """Parameters of a command from all places, without running it."""
    context = program.make_context(program.name, list(arguments))
    name, command, rest = program.resolve_command(context, list(arguments))
    return command.make_context(name, rest, parent=context).params


def test_line_goes_before_environment_before_file(given, monkeypatch):
    given('[tracekit.slowrank]\nsteps = "1"\n')
    assert taken(program, "slowrank", TRACES)["steps"] == [(1, 2)]
    monkeypatch.setenv("TRACEKIT_SLOWRANK_STEPS", "2")
    assert taken(program, "slowrank", TRACES)["steps"] == [(2, 3)]
    assert taken(program, "slowrank", TRACES, "--steps", "3")["steps"] == [(3, 4)]


def test_other_commands_take_nothing(given):
    given('[tracekit.slowrank]\nsteps = "1"\n')
    assert taken(program, "breakdown", TRACES)["steps"] is None


def test_named_file_goes_before_that_of_folder(given, tmp_path, monkeypatch):
    given('[tracekit.slowrank]\nsteps = "1"\n')
    (tmp_path / "other.toml").write_text('[tracekit.slowrank]\nsteps = "4"\n')
    monkeypatch.setenv("TRACEKIT_CONFIG", str(tmp_path / "other.toml"))
    assert taken(program, "slowrank", TRACES)["steps"] == [(4, 5)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tracekit.slowrank]\nstep = '1'\n", "[tracekit.slowrank] has no 'step'; did you mean 'steps'?"),
        (
            "[tracekit.slowrank]\nzzz = '1'\n",
            "has no 'zzz'; choose from address, engine, explain, fail-on, hardware, hosts",
        ),
        ("[tracekit.slow-rank]\nsteps = '1'\n", "[tracekit] has no 'slow-rank'; did you mean 'slowrank'?"),
        ("[slowrank]\nsteps = '1'\n", "has no 'slowrank'; choose from numerics, reftrain, tracekit"),
        ("[tracekit.slowrank]\nquiet = 'loud'\n", "'--quiet': 'loud' is not a valid boolean"),
        ("[tracekit.slowrank]\njobs = true\n", "'--jobs': 'True' is not a valid integer range"),
        ("[tracekit.slowrank]\nsteps = [1]\n", "'--steps': '[1]' is not a range of steps"),
        ("[tracekit.slowrank]\njson = 1979-05-27\nsteps = 'x'\n", "--json is set by tracekit.toml"),
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


@pytest.mark.parametrize(
    ("value", "fixes"), [("'rank=5'", ("rank=5",)), ("['rank=5', 'axis=tp']", ("rank=5", "axis=tp"))]
)
def test_options_that_repeat_take_one_or_several(given, value, fixes):
    given(f"[tracekit.whatif]\nfix = {value}\n")
    assert taken(program, "whatif", TRACES)["fix"] == fixes


def test_values_need_no_quotes_where_toml_has_a_type(given):
    given("[tracekit.slowrank]\nquiet = true\njobs = 2\nsteps = 3\n")
    params = taken(program, "slowrank", TRACES)
    assert (params["quiet"], params["jobs"]) == (True, 2)
    assert params["steps"] == [(3, 4)]


def test_pairs_are_lists_in_a_list(given):
    given("[numerics.compare]\npair = [['a', 'b']]\n")
    assert taken(numerics, "compare", "--parallel", "run_a")["pairs"] == ((Path("a"), Path("b")),)
    given("[numerics.compare]\npair = ['ab', 'cd']\n")
    with pytest.raises(click.BadParameter, match="2 values are required"):
        taken(numerics, "compare", "--parallel", "run_a")


def test_every_option_has_the_variable_of_its_long_name(monkeypatch):
    for group in (program, numerics, reftrain):
        for name in group.list_commands(None):
            for option in group.get_command(None, name).params:
                long = max(option.opts, key=len)
                if long.startswith("--"):
                    wanted = f"{group.name}_{name}_{long[2:]}".upper().replace("-", "_")
                    assert option.envvar == wanted


def test_refusal_tells_the_place_of_settings(given, tracekit, monkeypatch):
    given("[tracekit.slowrank]\nquiet = true\nsteps = '1'\nfail-on = 'any'\n")
    monkeypatch.setenv("TRACEKIT_SLOWRANK_MESH", "tp=3")
    monkeypatch.setenv("TRACEKIT_SLOWRANK_FAIL_ON", "any")
    done = tracekit("slowrank", TRACES, "--steps", "1:2")
    assert done.code == 2
    assert done.err.splitlines()[1:] == [
        "--mesh is set by the environment variable TRACEKIT_SLOWRANK_MESH",
        "--fail-on is set by the environment variable TRACEKIT_SLOWRANK_FAIL_ON",
        "--quiet is set by tracekit.toml",
    ]


def test_named_file_that_is_missing_is_refused(tracekit, monkeypatch):
    monkeypatch.setenv("TRACEKIT_CONFIG", "/no/such.toml")
    done = tracekit("slowrank", TRACES)
    assert done.code == 2
    assert "/no/such.toml: No such file" in done.err
