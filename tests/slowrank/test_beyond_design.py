"""Transfers without peers are slow where they take longer than any design of their hardware lets them."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.decision import decide
from tracekit.analysis.slowrank.suspects import imbalance

BOARD, CARD = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"
MESH = grid(dp=4)
SMALL = {"dtype": "Float", "in_nelems": 1, "out_nelems": 1}


def made(folder, device, hosts, numel=1 << 20, factor=5.0):
    """Two calls a step of the only group, 0.25 ms each (7 % of the step together), and a small one of 50 µs."""
    large = {"dtype": "BFloat16", "in_nelems": numel, "out_nelems": numel}
    run = job(folder, MESH, link={(0, 1, 2, 3): factor}, sized=large, first=SMALL)
    return replace(
        run, ranks=tuple(replace(r, device=device, host=f"n{r.rank * hosts // 4}") for r in run.ranks)
    )


@pytest.mark.parametrize(
    ("device", "hosts", "verdict"),
    [(BOARD, 1, "inconclusive"), (BOARD, 2, "inconclusive"), (CARD, 1, "healthy"), (CARD, 2, "healthy")],
)
def test_hardware_shows_a_slow_only_group(tmp_path, device, hosts, verdict):
    """3 MB in 0.25 ms are 12.6 GB/s: NVLink is faster by any design, the network beside it nearly always."""
    found = analyse(made(tmp_path, device, hosts))
    assert found.verdict == verdict
    assert [s.rank for s in found.candidates] == ([] if verdict == "healthy" else [0, 1, 2, 3])
    assert ("the slowest sound network of such devices would save" in found.reason) == (verdict != "healthy")


@pytest.mark.parametrize("hosts", [1, 2])
def test_transfers_at_a_usual_pace_are_sound(tmp_path, hosts):
    assert analyse(made(tmp_path, BOARD, hosts, numel=1 << 22)).verdict == "healthy"


def test_short_calls_prove_no_slow_link(tmp_path):
    """Calls that take no longer than the quickest kind of their group are what a call takes to begin."""
    assert analyse(made(tmp_path, BOARD, 1, factor=1.0)).verdict == "healthy"


@pytest.mark.parametrize(("costs", "left"), [(0.01, True), (0.5, False)])
def test_an_imbalance_does_not_hide_a_slow_network(tmp_path, monkeypatch, costs, left):
    case = prepared(made(tmp_path, BOARD, 2), MESH)
    monkeypatch.setattr(decide, "RULES", (lambda e: imbalance("work is uneven", costs * case.step_ns),))
    answer = decide.concluded(case)[1]
    assert (answer.verdict == "inconclusive") == left
    assert ("in addition, work is uneven" in answer.reason) == left
