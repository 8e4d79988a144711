"""Described hardware bounds every transfer: the longest sound one, and the one that is proven sound."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.mesh.hardware import Hardware, Way

GROUP, MESH = grid(dp=4), grid(tp=2, dp=2)
LARGE = {"dtype": "BFloat16", "in_nelems": 1 << 20, "out_nelems": 1 << 20}


def given(node, network):
    return Hardware("mine", Way(500.0, node), Way(1_000.0, network))


def only_group(folder, hosts):
    """Calls of 0.4 ms, an eighth of the step or more, at 7.9 GB/s."""
    run = job(folder, GROUP, link={(0, 1, 2, 3): 8.0}, sized=LARGE)
    return replace(run, ranks=tuple(replace(r, host=f"n{r.rank * hosts // 4}") for r in run.ranks))


@pytest.mark.parametrize(
    ("described", "hosts", "verdict"),
    [
        (None, 1, "inconclusive"), (given(8.0, 1.0), 1, "healthy"), (given(80.0, 8.0), 1, "inconclusive"),
        (None, 2, "inconclusive"), (given(80.0, 4.0), 2, "healthy"), (given(80.0, 40.0), 2, "inconclusive"),
    ],
)  # fmt: skip
def test_a_description_proves_the_only_group(tmp_path, described, hosts, verdict):
    """Two ranks on each of two nodes share two ports: 8 GB/s where one has 4."""
    assert analyse(only_group(tmp_path, hosts), hardware=described).verdict == verdict


def test_no_transfer_fits_a_wrong_description(tmp_path):
    found = analyse(only_group(tmp_path, 1), hardware=given(100.0, 30.0))
    assert (found.verdict, found.suspects, found.candidates) == ("inconclusive", (), ())
    assert "no transfer is as quick as mine lets it" in found.reason
    assert found.to_decide.startswith("give --hardware")


@pytest.mark.parametrize(
    ("described", "verdict"),
    [(None, "healthy"), (given(50.0, 5.0), "healthy"), (given(50.0, 40.0), "inconclusive")],
)
def test_a_network_that_is_slow_for_all(tmp_path, described, verdict):
    """Every group between the nodes takes eight times as long as those inside, which fit the description."""
    run = job(tmp_path, MESH, link={(0, 2): 8.0, (1, 3): 8.0}, sized=LARGE)
    run = replace(run, ranks=tuple(replace(r, host=f"n{r.rank // 2}") for r in run.ranks))
    found = analyse(run, hardware=described)
    assert (found.verdict, found.suspects) == (verdict, ())
    assert [(c.rank, c.cause) for c in found.candidates] == (
        [(rank, "network") for rank in range(4)] if verdict == "inconclusive" else []
    )
    assert ("sound ones on mine are quicker" in found.reason) == (verdict == "inconclusive")
