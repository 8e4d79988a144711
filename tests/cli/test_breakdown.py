"""`tracekit breakdown` as a user and as a script call it."""

import json
import re

import pytest

PARTS = ("compute_ns", "bubble_ns", "host_ns", "idle_ns", "unknown_ns")


@pytest.fixture
def told(tracekit, slow):
    return tracekit("breakdown", slow[0], "--json", "-")


def test_text_fits_a_terminal(tracekit, slow):
    done = tracekit("breakdown", slow[0])
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("BREAKDOWN  ")
    table = done.out.split("\n  steps ")[0].splitlines()
    assert max(map(len, table)) <= 80
    shares = re.findall(
        r"^  (\w[\w ]*\w) +[\d.]+ +([\d.]+)% +[\d.]+% +[\d.]+% +[\d.]+%$", done.out, re.MULTILINE
    )
    assert sum(float(share) for _, share in shares) == pytest.approx(100, abs=0.1 * len(shares))


def test_the_rank_that_waits_least_is_first(told, slow):
    document = json.loads(told.out)
    assert document["schema"] == "tracekit.breakdown/1"
    assert document["by_rank"][0]["rank"] in slow[1].suspects


def test_json_adds_up_to_each_step(told):
    document = json.loads(told.out)
    every = [document["total"], *document["by_rank"], *document["cells"]]
    for parts in every:
        exposed = sum(sum(kinds.values()) for kinds in parts["exposed"].values())
        assert sum(parts[name] for name in PARTS) + exposed == parts["step_ns"]
    assert document["total"]["step_ns"] == sum(c["step_ns"] for c in document["cells"])


@pytest.mark.slow
def test_an_ingested_run_answers_alike(tracekit, slow, tmp_path, told):
    assert tracekit("ingest", slow[0], "--out", tmp_path / "run").code == 0
    assert tracekit("breakdown", tmp_path / "run", "--json", "-").out == told.out


def test_steps_choose_the_cells(tracekit, slow):
    document = json.loads(tracekit("breakdown", slow[0], "--steps", "103:105", "--json", "-").out)
    assert {c["step"] for c in document["cells"]} == {103, 104}
