"""Only commands and options that work are there, and help is quick."""

import re
import subprocess
import sys

import pytest
from tracekit_cli.tracekit import tracekit as group

ASKED_FOR = {
    *(
        "doctor",
        "slowrank",
        "ingest",
        "hang",
        "mesh",
        "open",
        "schema",
        "whatif",
        "breakdown",
        "floor",
        "next",
        "diff",
        "trend",
        "triage",
    ),
}
HEAVY = {"numpy", "pyarrow", "torch", "scipy", "rich"}
"""Libraries whose import alone takes longer than help may (0.25 s)."""


def test_help_lists_the_commands_that_stand(tracekit):
    done = tracekit("--help")
    listed = set(re.findall(r"^  ([a-z]+)  ", done.out.split("Slow jobs:")[1], re.MULTILINE))
    assert done.code == 0
    assert {"slowrank", "ingest"} <= listed <= ASKED_FOR
    assert listed == set(group.entries)


@pytest.mark.parametrize("name", sorted(group.entries))
def test_every_command_explains_itself(tracekit, name):
    done = tracekit(name, "--help")
    assert done.code == 0
    assert f"Usage: tracekit {name} " in done.out
    assert f"tracekit {name} " in done.out.split("Options:")[0].split("\n", 1)[1]  # an example


@pytest.mark.parametrize("name", ["trends", "explain"])
def test_an_unknown_command_is_a_usage_error(tracekit, name):
    done = tracekit(name, "traces")
    assert done.code == 2
    assert f"No such command '{name}'" in done.err


def test_commands_stand_by_what_they_are_for(tracekit):
    out = tracekit("--help").out
    places = [
        out.index(f"\n  {name} ") for name in ("slowrank", "whatif", "hang", "triage", "mesh", "doctor")
    ]
    assert places == sorted(places)
    assert [title for title in group.sections if f"\n{title}:\n" in out] == list(group.sections)


def test_a_mistyped_command_gets_a_suggestion(tracekit):
    done = tracekit("slwrank", "traces")
    assert done.code == 2
    assert "No such command 'slwrank'. Did you mean slowrank?" in done.err


@pytest.mark.parametrize(
    ("words", "offered"), [("tracekit slow", "slowrank"), ("tracekit hang --mark", "--markdown")]
)
def test_a_shell_completes_commands_and_options(monkeypatch, capfd, words, offered):
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_TRACEKIT_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        group.main(prog_name="tracekit", standalone_mode=False)
    assert capfd.readouterr().out.strip() == f"plain,{offered}"


def test_version_is_told(tracekit):
    done = tracekit("--version")
    assert done.code == 0
    assert re.search(r"\d+\.\d+\.\d+", done.out)


@pytest.mark.parametrize("program", ["tracekit", "numerics", "reftrain"])
def test_help_imports_no_library(program):
    script = f"""
import sys
from tracekit_cli.{program} import main
sys.argv = ["{program}", "--help"]
try:
    main()
except SystemExit:
    print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "Usage: " + program in done.stdout
    assert loaded & HEAVY == set()
    commands = {name for name in loaded if name.startswith("tracekit_cli.")}
    shared = {f"tracekit_cli.{name}" for name in ("exit_codes", "program", "settings", "streams")}
    assert commands == shared | {f"tracekit_cli.{program}"}
