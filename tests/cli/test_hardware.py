"""`--hardware` of the commands that ask which rank is slow: the same links prove the same group sound."""

import json
from importlib.resources import files

import pytest

from tests.cli.test_next import planned
from tests.slowrank.test_described_hardware import only_group
from tracekit.manifest import save_manifest


@pytest.fixture
def given(tmp_path):
    """The options of a node whose links reach what the only group took: its hosts, and its links."""
    known = (files("reftrain.cost.hardware") / "h100.toml").read_text(encoding="utf-8")
    slower = known.replace("gb_s = 450.0\nefficiency = 0.80", "gb_s = 8.0\nefficiency = 1.0")
    assert slower != known
    (tmp_path / "mine.toml").write_text(slower, encoding="utf-8")
    (tmp_path / "hosts").write_text("node01 slots=4\n", encoding="utf-8")
    return ("--hosts", tmp_path / "hosts"), ("--hardware", tmp_path / "mine.toml")


VERDICTS = {
    "slowrank": lambda out: json.loads(out)["verdict"],
    "triage": lambda out: json.loads(out)["answers"][0]["answer"]["verdict"],
    "next": lambda out: planned(out)["why"].partition(":")[0],
}


@pytest.mark.parametrize("command", VERDICTS)
def test_described_links_prove_the_group(command, given, tracekit, tmp_path):
    (hosts, links), folder = given, tmp_path / "run"
    folder.mkdir()
    save_manifest(only_group(folder, 1), kept=True)
    form = () if command == "next" else ("--json", "-")
    bare, described = (
        tracekit(command, folder, *hosts, *options, *form, "--quiet").out for options in ((), links)
    )
    assert (VERDICTS[command](bare), VERDICTS[command](described)) == ("inconclusive", "healthy")


@pytest.mark.parametrize("command", VERDICTS)
def test_an_unknown_machine_is_refused(command, tracekit, slow):
    done = tracekit(command, slow[0], "--hardware", "abacus")
    assert (done.code, done.out) == (2, "")
    assert "'abacus' is not a known machine" in done.err
