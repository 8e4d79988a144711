"""Commands of docs/automation.md: each runs as it is written, and ends as the page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.marks import quick_if

TEXT = (ROOT / "docs" / "automation.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?:- run:|entry:|^)\s*(tracekit .*)$", TEXT, re.MULTILINE)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder with traces and dumps; what is written elsewhere is written here."""
    (tmp_path / "traces").symlink_to(ROOT / "sample_traces" / "demo_slow_tp" / "trace")
    (tmp_path / "dumps").symlink_to(ROOT / "sample_traces" / "hang_host_stall" / "fr")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path


def test_page_shows_every_kind():
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", quick_if(lambda c: "hang" in c, COMMANDS))  # the action asks slowrank
def test_commands_of_the_page_run(tracekit, repository, command):
    _, *arguments = shlex.split(
        os.path.expandvars(command).replace("/var/lib/node_exporter", str(repository))
    )
    done = tracekit(*arguments)
    assert done.code == (1 if "--fail-on" in command else 0)
    written = {path.name for path in repository.iterdir() if not path.is_symlink()}
    if "--html" in command:
        assert written == {"summary.md", "slowrank.html"}
    if "--prometheus" in command:
        assert [name for name in written if name.endswith(".prom")]


def test_metrics_of_the_rules_exist(repository, tracekit):
    tracekit("slowrank", "traces", "--quiet", "--prometheus", "job.prom")
    tracekit("hang", "dumps", "--quiet", "--prometheus", "hang.prom")
    known = (repository / "job.prom").read_text() + (repository / "hang.prom").read_text()
    named = set(re.findall(r"tracekit_\w+", TEXT))
    assert named
    assert {name for name in named if f"# TYPE {name} gauge" not in known} == set()


def test_the_action_fails_on_a_slow_rank(repository):
    """The action's last step, as a runner carries it out."""
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    command = action.rpartition("run: ")[2].strip()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"TRACES": "traces/", "FAIL_ON": "slow_rank", "PAGE": "page.html", "PATH": path}
    assert (
        re.findall(r"\$\{\{ inputs\.([a-z-]+) \}\}", command) == []
    )  # values reach the shell by its environment
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, **given}, check=False, capture_output=True
    )
    assert done.returncode == 1
    assert "rank 5" in (repository / "summary.md").read_text()
    assert (repository / "page.html").is_file()


@pytest.mark.slow
def test_the_hook_runs_a_command_that_stands(tracekit, repository):
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entry, arguments = (re.search(rf"{key}: (.*)", hook)[1] for key in ("entry", "args"))
    assert entry == "tracekit slowrank"
    assert tracekit("slowrank", *re.split(r",\s*", arguments.strip("[]"))).code == 1
