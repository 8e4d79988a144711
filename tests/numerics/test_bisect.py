"""`numerics bisect`: the first divergent step in few runs, kept runs, and clear refusals."""

import json
import shlex
import sys

import pytest
import torch
from click.testing import CliRunner
from tracekit_cli import exit_codes
from tracekit_cli.numerics import numerics
from tracekit_cli.numerics_commands import bisect as numerics_bisect

from numerics.bisection.commands import Commands
from numerics.bisection.search import bisect, probes, rounds_needed
from numerics.record.recorder import Recorder
from numerics.record.switch import STEPS, chosen_steps
from numerics.report.bisect import bisect_text
from numerics.store import open_capture
from tracekit.errors import InputError

TRAINER = """
import sys, torch
from numerics import Recorder
out, steps, bad = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
open(out.rpartition("/")[0] + "/started", "a").write("x")
with Recorder(out, 0, 1) as to:
    weight = torch.ones(4)
    for step in range(steps):
        grad = weight * 0.5 + (step == bad)
        to.record("layer.weight.grad", grad, step=step, phase="reduce", kind="param_grad")
        weight = weight - 0.1 * grad
        to.record("layer.weight", weight, step=step, phase="step", kind="param", module="layer")
"""


def captured(folder, bad, steps, level):
    """The capture of a trainer of one weight, whose gradient is wrong from step `bad` on."""
    with Recorder(folder, 0, 1, level=level) as to:
        weight = torch.ones(4)
        to.record("weight", weight + (bad == -1), step=-1, phase="init", kind="param")
        for step in range(steps):
            grad = weight * 0.5 + (step == bad)
            to.record("weight.grad", grad, step=step, phase="reduce", kind="param_grad")
            weight = weight - 0.1 * grad
            to.record("weight", weight, step=step, phase="step", kind="param")
    return folder


def recorded(folder, bad, steps, monkeypatch):
    """What a bisection records with, in this process; `calls` are the steps of its rounds."""
    calls = []

    def record(probed, level):
        monkeypatch.setenv(STEPS, ",".join(map(str, probed)))
        calls.append(tuple(probed))
        made = [captured(folder / f"{len(calls)}.{n}", b, steps, level) for n, b in enumerate((bad, None))]
        monkeypatch.delenv(STEPS)
        return made[0], made[1]

    return record, calls


@pytest.mark.parametrize("bad", [0, 3, 11, None])
@pytest.mark.quick(1)
def test_the_first_divergent_step_is_found(tmp_path, monkeypatch, bad):
    record, calls = recorded(tmp_path, bad, 12, monkeypatch)
    found = bisect(12, record)
    assert found.first_step == bad
    assert len(calls) <= rounds_needed(12)
    assert found.compare.verdict == ("identical" if bad is None else "undecided")
    if bad is not None:
        assert found.compare.first_divergence.step == bad


def test_other_first_values_come_before_all_steps(tmp_path, monkeypatch):
    record, calls = recorded(tmp_path, -1, 4, monkeypatch)
    found = bisect(4, record)
    assert (found.first_step, len(calls)) == (-1, 2)
    assert "BEFORE THE FIRST STEP" in bisect_text(found)


@pytest.mark.parametrize("steps", [1, 2, 9, 100, 4096])
def test_any_step_is_found_in_few_rounds(steps):
    for bad in {0, 1, steps // 3, steps // 2, steps - 1} & set(range(steps)):
        before, found, rounds = -2, steps, 0
        while found - before > 1 and found:
            probed = probes(before, found, steps)
            rounds += 1
            found = min([s for s in probed if s >= bad] + [found])
            before = max([s for s in probed if s < found], default=before)
        assert found == bad
        assert rounds + 1 <= rounds_needed(steps)


def test_a_recorder_keeps_chosen_steps_and_the_state_before(tmp_path, monkeypatch):
    monkeypatch.setenv(STEPS, "3")
    captured(tmp_path, None, 5, "digest")
    table = open_capture(tmp_path).table
    pairs = zip(table["step"].to_pylist(), table["phase"].to_pylist(), strict=True)
    assert {step for step, phase in pairs if phase != "step" and step >= 0} == {3}
    monkeypatch.setenv(STEPS, "three")
    with pytest.raises(Exception, match="write 0,8,16"):
        chosen_steps()


def test_a_run_that_makes_fewer_steps_is_told(tmp_path, monkeypatch):
    record, _ = recorded(tmp_path, 1, 4, monkeypatch)
    with pytest.raises(InputError, match="the last one is 3; give --steps 4"):
        bisect(9, record)


def test_a_folder_of_another_bisection_is_refused(tmp_path):
    Commands({"parallel": "a", "baseline": "b"}, tmp_path / "out").begin(4)
    Commands({"parallel": "a", "baseline": "b"}, tmp_path / "out").begin(4)
    with pytest.raises(InputError, match="other commands"):
        Commands({"parallel": "a", "baseline": "c"}, tmp_path / "out").begin(4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="holds no bisection"):
        Commands({}, tmp_path / "full").begin(4)


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("false", 3, "the parallel command ended with exit code 1"),
        ("true", 3, "recorded nothing"),
        ("/no/such/program", 2, "cannot be started"),
        ("'", 2, "quote the command"),
        ("", 2, "the command is empty"),
    ],
)
def test_commands_that_fail_are_told(tmp_path, command, code, words):
    arguments = [
        "bisect",
        "--parallel",
        command,
        "--baseline",
        "true",
        "--steps",
        "3",
        "--out",
        tmp_path / "out",
    ]
    done = CliRunner().invoke(numerics, [str(a) for a in arguments])
    assert words in f"{done.output}{done.exception}"
    assert exit_codes.of_error(done.exception) == code


@pytest.mark.slow
def test_commands_are_run_and_kept(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAINER, encoding="utf-8")
    commands = [f"{shlex.quote(sys.executable)} {path} {{out}} 20 {bad}" for bad in (13, -1)]
    arguments = ["bisect", "--parallel", commands[0], "--baseline", commands[1], "--steps", "20", "--quiet"]
    for _ in range(2):
        done = CliRunner().invoke(
            numerics,
            [*arguments, "--out", str(tmp_path / "out"), "--json", str(tmp_path / "answer.json")],
            standalone_mode=False,
        )
        assert done.return_value == 4, done.output
        answer = json.loads((tmp_path / "answer.json").read_text())
        assert (answer["schema"], answer["first_step"]) == ("numerics.bisect/1", 13)
        assert answer["compare"]["first_divergence"]["tensor"] == "layer.weight.grad"
    started = sum(len(p.read_text()) for p in (tmp_path / "out").rglob("started"))
    assert started == 2 * (len(answer["rounds"]) + 1)  # the second time nothing is run again


def test_bisect_proves_with_loss_and_scheduler(tmp_path, monkeypatch):
    source = (
        "import torch\ndef build():\n    model = torch.nn.Linear(2, 2)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=1)\n"
        "    return model, optimizer, torch.nn.MSELoss(), torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
    )
    (tmp_path / "mine.py").write_text(source)
    asked = []
    monkeypatch.setattr(
        "numerics.local.proof.prove", lambda *_, loss, schedule: asked.extend([loss, schedule])
    )
    monkeypatch.setattr(numerics_bisect, "search", lambda steps, record, proof: proof("run"))
    call = ["--parallel", "a", "--baseline", "b", "--steps", "2", "--out", str(tmp_path / "out")]
    CliRunner().invoke(numerics, ["bisect", *call, "--model", f"{tmp_path / 'mine.py'}:build"])
    assert [type(one).__name__ for one in asked] == ["MSELoss", "StepLR"]
