"""No state of a standard stream is a fault: an answer that cannot be printed is exit 3, unless a file holds it."""

import json

import pytest

from tests.cli.streams import CLOSED, FULL, ends
from tests.house.source import ROOT
from tests.wheel.extras import PROGRAMS, commands

SAMPLES = ROOT / "sample_traces"
ANSWERS = [
    ["tracekit", "doctor"],
    ["tracekit", "schema", "mesh"],
    ["tracekit", "--version"],
    ["numerics", "schema", "plan"],
    ["reftrain", "memory", "--preset", "tiny"],
    ["reftrain", "schedule", "1f1b", "--stages", "2", "--micro-batches", "4"],
    ["reftrain", "plan", "--preset", "tiny", "--gpus", "4", "--tokens", "4K", "--seq", "256", "--quiet"],
]
ANALYSES = [
    ["tracekit", name, str(SAMPLES / sample), "--quiet"]
    for name, sample in (("mesh", "slow_compute"), ("slowrank", "slow_compute"), ("hang", "hang_host_stall"))
]
HELPS = [[program, name, "--help"] for program in PROGRAMS for name in commands(program)]
REFUSED = [["tracekit", "mesh", "nowhere"], ["reftrain", "schedule", "none"], ["numerics", "plan", "a", "b"]]


def judged(found):
    """What is wrong with how commands ended whose answer goes to stdout alone."""
    wrong = []
    for words, stream, how, code, err in found:
        lost = stream == "stdout" and how in {CLOSED, FULL}
        fine = code == (3 if lost else 0) and "fault of ours" not in err and "Traceback" not in err
        if lost:
            fine &= "standard output cannot be written" in err and err.count("\n") == 1
        if not fine:
            wrong.append((" ".join(words), stream, how, code, err))
    return wrong


def test_answers_survive_every_state_of_the_streams():
    assert judged(ends(ANSWERS)) == []


@pytest.mark.slow
def test_analyses_survive_every_state_of_the_streams():
    assert judged(ends(ANALYSES)) == []


@pytest.mark.slow
def test_every_help_survives_every_state_of_the_streams():
    assert judged(ends(HELPS)) == []


@pytest.mark.slow
def test_refusals_keep_their_code_without_stderr():
    found = ends(REFUSED)
    assert {(words[0], code) for words, _, _, code, _ in found} == {
        ("tracekit", 3),
        ("reftrain", 2),
        ("numerics", 3),
    }


@pytest.mark.slow
def test_a_file_is_answer_enough_where_stdout_is_closed(tmp_path):
    answer = tmp_path / "answer.json"
    calls = [[*words, "--json", str(answer)] for words in ANSWERS if words[1] in {"schedule", "memory"}]
    for words, stream, how, code, err in ends(calls):
        assert code == (3 if (stream, how) == ("stdout", FULL) else 0), (words, stream, how, err)
    assert json.loads(answer.read_text())
