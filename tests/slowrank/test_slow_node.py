"""Ranks that are slow as one, as those of a node are, cost little each: the others of them are as late."""

import pytest

from tests.localise import case as localise
from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.candidates import price, slow_ranks
from tracekit.ingest import load
from tracekit.placement import HostList, Place
from tracekit.thresholds.slowrank import MIN_LOST_SHARE

MESH = grid(dp=12)


@pytest.mark.parametrize(
    ("slow", "as_one"),
    [
        ({0: 1.033, 1: 1.033, 2: 1.033}, True),
        (
            {0: 1.033, 1: 1.033, 2: 1.033, 3: 1.025},
            False,
        ),  # the end of a spread: ranks 4 and 5 are hardly quicker
    ],
)
def test_a_node_costs_together(tmp_path, slow, as_one):
    spread = {4: 1.02, 5: 1.017} if not as_one else {}
    case = prepared(job(tmp_path, MESH, slow=spread | slow, jitter=0.02, layers=6), MESH)
    found = slow_ranks(case)
    assert found is not None
    assert found.lost[0] < MIN_LOST_SHARE * case.step_ns
    assert (price(case, found) == found.gain > found.lost[0]) is as_one


def test_all_ranks_of_a_slow_node_are_named(tmp_path):
    found = analyse(job(tmp_path, MESH, slow={0: 1.033, 1: 1.033, 2: 1.033}, jitter=0.02, layers=6))
    assert found.verdict == "slow_rank"
    assert {s.rank for s in found.suspects} == {0, 1, 2}


def test_ranks_with_slack_are_cured_with_their_host(tmp_path):
    """One stage of the host has slack, so that each of its ranks costs little; without them the price is too low."""
    made = localise.make(9900379)
    localise.save(made, tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert {s.rank for s in found.suspects} == set(made.culprits)
    assert found.what_if.slowdown == pytest.approx(made.slowdown, abs=0.002)


@pytest.mark.parametrize(("slow", "named"), [({8, 9, 10, 11}, {8, 10, 11}), ({8}, {8})])
def test_an_unseen_rank_shares_the_fault_of_its_host(tmp_path, slow, named):
    """Rank 9 left no trace, and is between ranks of one host: curing these saves something if it is slow as well."""
    lost = {1, 2, 4, 9, 12, 15}
    hosts = HostList("hosts", {rank: Place(f"n{rank // 4}") for rank in range(16) if rank not in lost})
    run = job(tmp_path, grid(tp=4, dp=4), slow=dict.fromkeys(slow, 1.5), lost=lost, steps=3)
    found = analyse(run, hosts=hosts)
    assert {s.rank for s in found.suspects} == named
    assert found.what_if.slowdown == pytest.approx(1.47, abs=0.03)
