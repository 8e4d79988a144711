"""What `next:` names can work for the run and its trainer."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tracekit_cli.numerics import numerics

from numerics.comparison import next_step
from numerics.comparison.compare import Options, compare
from numerics.comparison.next_step import ladder_of, what_decides
from tests.numerics.synthetic import Plan, write
from tracekit.errors import InputError


def capture(source, *, values=True):
    return SimpleNamespace(folder=Path("run"), source=source, values={0: "there"} if values else {})


@pytest.mark.parametrize(
    ("source", "refused", "command"),
    [
        ("reftrain", False, "numerics replay run"),
        ("reftrain", True, "numerics ladder --parallel run --baseline base"),
        ("theirs", False, "numerics compare --model FILE.py:FUNCTION --parallel run --baseline base"),
        ("theirs", True, "numerics compare --model FILE.py:FUNCTION --parallel run --baseline base"),
    ],
)
def test_replay_ladder_or_proof(source, refused, command):
    assert what_decides(capture(source), Path("base"), refused=refused).startswith(command)


def test_values_come_before_a_proof():
    assert what_decides(capture("theirs", values=False)).startswith("numerics capture --level tensors")


def test_after_a_proof_comes_the_ladder():
    assert "--pair" in ladder_of(capture("theirs"), None)
    assert ladder_of(capture("reftrain"), None).endswith("--baseline BASELINE")


def test_a_refused_replay_is_not_named_again(tmp_path, monkeypatch):
    monkeypatch.setattr(next_step, "_has_replayer", lambda _: True)
    run = write(tmp_path / "a", Plan(tp=2))

    def refuses(*_, **__):
        raise InputError("its schedule gems has no counterpart here")

    assert compare(run, None, Options()).next.startswith("numerics replay")
    assert compare(run, None, Options(make_replay=refuses)).next.startswith("numerics ladder")


def test_capture_checks_its_folder_before_the_command_runs(tmp_path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(
        numerics, ["capture", "--out", str(tmp_path / "file" / "run"), "--", "touch", "x"]
    )
    assert "it is not a folder); name another" in str(done.exception)
