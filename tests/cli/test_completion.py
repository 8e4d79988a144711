"""A shell completes values of options, whoever types them; the help of `run` fits a screen, with more on demand."""

import pytest
from tracekit_cli.completion import several_of
from tracekit_cli.progress import comparing, simulating
from tracekit_cli.reftrain import reftrain
from tracekit_cli.tracekit import tracekit

from reftrain.config.presets import MODEL_PRESETS
from reftrain.schedule.registry import SCHEMES
from reftrain.simulate.pool import _counted
from tracekit.case.opened import enter

SCREEN = 50
"""Lines of a terminal that people use."""


def completed(monkeypatch, capfd, program, words):
    """What a shell offers for the last of `words`."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setenv(f"_{program.name.upper()}_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        program.main(prog_name=program.name, standalone_mode=False)
    return [line.partition(",")[2] for line in capfd.readouterr().out.split()]


@pytest.mark.parametrize("command", ["run", "plan", "memory", "simulate"])
def test_presets_complete(monkeypatch, capfd, command):
    offered = completed(monkeypatch, capfd, reftrain, f"reftrain {command} --preset ")
    assert offered == list(MODEL_PRESETS)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tracekit whatif --fix rank=5,axis=t", ["rank=5,axis=tp"]),
        ("tracekit floor --hardware h1", ["h100"]),
        ("tracekit slowrank --hardware h1", ["h100"]),
        ("reftrain plan --hardware h1", ["h100"]),
        ("reftrain simulate --hardware h1", ["h100"]),
        ("reftrain run --set optimizer.clip", ["optimizer.clip_norm="]),
    ],
)
def test_values_complete(monkeypatch, capfd, words, offered):
    program = {p.name: p for p in (tracekit, reftrain)}[words.split()[0]]
    assert completed(monkeypatch, capfd, program, words) == offered


@pytest.mark.parametrize("words", ["reftrain simulate --schedule 1", "reftrain schedule 1"])
def test_schedules_complete(monkeypatch, capfd, words):
    offered = completed(monkeypatch, capfd, reftrain, words)
    assert offered == [name for name in SCHEMES if name.startswith("1")]


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("slow_c", ["slow_compute:"]),
        ("slow_compute:rank=5,f", ["slow_compute:rank=5,factor="]),
        ("slow_compute:rank=5,ra", []),
        ("nonsense:", []),
    ],
)
@pytest.mark.parametrize("command", ["run", "simulate", "demo"])
def test_faults_complete(monkeypatch, capfd, command, begun, offered):
    assert completed(monkeypatch, capfd, reftrain, f"reftrain {command} --fault {begun}") == offered


def test_verdicts_complete_one_after_the_other(monkeypatch, capfd):
    words = "tracekit slowrank --fail-on slow_rank,s"
    assert completed(monkeypatch, capfd, tracekit, words) == ["slow_rank,slow_link"]
    assert several_of(("a", "b"))(None, None, "a,") == ["a,b"]


def test_the_help_of_run_fits_a_screen(capsys):
    for words, fields in ((["run", "--help"], False), (["run", "--help-all"], True)):
        reftrain.main(words, prog_name="reftrain", standalone_mode=False)
        out = capsys.readouterr().out
        assert (out.count("\n") <= SCREEN, "emulated_gflops = " in out) == (not fields, fields)


def test_what_follows_the_reading_is_named(monkeypatch, capsys):
    monkeypatch.setattr("tracekit_cli.progress._SILENT_S", 0.01)
    monkeypatch.setattr("tracekit_cli.progress._LOG_EVERY_S", 0.1)
    with comparing(quiet=False) as progress:
        progress(128, 128)
        enter(progress, "pricing what each of 128 ranks costs")
        wait_for(capsys, "comparing: pricing what each of 128 ranks costs, ")
    enter(None, "nothing")
    enter(lambda _done, _of: None, "nothing")


def test_simulations_say_how_far_they_are(monkeypatch, capsys):
    monkeypatch.setattr("tracekit_cli.progress._SILENT_S", 0.01)
    monkeypatch.setattr("tracekit_cli.progress._LOG_EVERY_S", 0.1)
    told = []
    assert list(_counted(iter([(1, 2), (3, 4)]), [[0, 1], [2]], lambda *n: told.append(n))) == [
        (1, 2),
        (3, 4),
    ]
    assert told == [(2, 3), (3, 3)]
    with simulating(quiet=False) as progress:
        progress("8 ranks")
        wait_for(capsys, "simulating 8 ranks\n")
        progress("2 of 3 traces written")
        wait_for(capsys, "simulating: 2 of 3 traces written, ")


def wait_for(capsys, line):
    """Read stderr until a line is there: it comes from a thread."""
    import time

    said, end = "", time.monotonic() + 10
    while line not in said and time.monotonic() < end:
        time.sleep(0.01)
        said += capsys.readouterr().err
    assert line in said
