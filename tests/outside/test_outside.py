"""The harness of runs that are disturbed from outside: what disturbs, and what an answer is worth."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.outside.__main__ import judged, summary
from tests.outside.disturb import stopped
from tests.outside.job import write_data
from tests.outside.slow_disk import _reply

STOPPED = {
    "ranks": (1,),
    "causes": ("host_stall",),
    "verdict": "slow_rank",
    "named": [1],
    "cause": "host_stall",
}


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, "right"),
        ({"cause": "gpu_compute"}, "cause wrong"),
        ({"named": [0]}, "innocent accused"),
        ({"named": [0, 1]}, "innocent accused"),
        ({"verdict": "healthy", "named": []}, "missed"),
        ({"verdict": "inconclusive", "named": []}, "undecided"),
        ({"ranks": ()}, "healthy accused"),
        ({"ranks": (), "verdict": "healthy", "named": []}, "right"),
    ],
)
def test_each_answer_has_its_worth(changes, worth):
    assert judged({**STOPPED, **changes}) == worth


@pytest.mark.parametrize(("cause", "worth"), [("network", "right"), ("host_stall", "innocent accused")])
def test_only_a_disturbed_link_names_both_ends(cause, worth):
    named = {"verdict": "slow_link", "named": [0, 1], "cause": "network", "causes": (cause,)}
    assert judged(STOPPED | named) == worth


def test_intervals_are_held_against_measured_prices():
    prices = [(150, 10), (190, 10), (205, 10), (90, 10), (70, 10)]
    rows = [
        STOPPED | {"low_ms": 100.0, "high_ms": 200.0, "measured_ms": float(price), "doubt_ms": float(doubt)}
        for price, doubt in prices
    ]
    assert "5 measured prices: 2 inside the interval, 2 beside it" in summary(rows)


@pytest.fixture
def process():
    child = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"])
    yield child
    child.kill()
    child.wait()


def test_a_stopped_process_is_continued_at_the_end(process):
    def state():
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    seen = set()
    with stopped(40, 50, process.pid):
        end = time.monotonic() + 10
        while "T" not in seen and time.monotonic() < end:
            seen.add(state())
            time.sleep(0.002)
    assert "T" in seen
    assert state() != "T"


def test_a_slow_folder_answers_with_its_bytes(tmp_path):
    tokens = write_data(tmp_path)
    content = {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    names = list(content)
    request = (0).to_bytes(8, "little") + (100).to_bytes(8, "little") + (64).to_bytes(4, "little")
    node = names.index(tokens.name) + 2
    assert _reply(15, node, request, content, names, 0.0) == content[tokens.name][100:164]
    assert _reply(1, 1, b"absent\0", content, names, 0.0) == 2
