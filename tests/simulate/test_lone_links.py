"""Slow links of pipelines whose messages all pass one rank: no other link shows which length is usual."""

import pytest

import tracekit
from tests.simulate.case import setup_of, written


@pytest.mark.quick(1)
@pytest.mark.parametrize(("stages", "hub"), [(2, [0, 1]), (3, [1])])
def test_a_longer_stage_hides_no_slow_messages(tmp_path, stages, hub):
    """The head makes the last stage longer, which costs a fifth of what the link at rank 1 costs."""
    tables = {"model": {"layers": 2 * stages, "vocab_size": 32000}}
    text = "slow_link:rank=1,delay_ms=30"
    setup, config = setup_of({"pp": stages}, text, tables=tables, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    ends = [c for c in found.candidates if c.cause == "network"]
    assert (found.verdict, [c.rank for c in ends]) == ("inconclusive", hub)
    assert found.candidates[-1].cause == "stage_imbalance"
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert gain <= 1.01 * ends[0].lost_ms_high


def test_usual_messages_of_two_stages_are_no_gap(tmp_path):
    tables = {"model": {"layers": 4, "vocab_size": 1024}}
    setup, config = setup_of({"pp": 2}, tables=tables, merge=False)
    written(tmp_path, setup, config, detail="kernels")
    assert tracekit.slowrank(tracekit.load([str(tmp_path / "trace")])).verdict == "healthy"


@pytest.mark.quick(1)
@pytest.mark.parametrize("mesh", [{"cp": 2}, {"tp": 4}])
def test_members_of_a_slow_only_group_are_candidates(tmp_path, mesh):
    """No other group shows whether the network or the link of one member is slow: any member may be at it."""
    text = "slow_link:rank=1,delay_ms=5"
    setup, config = setup_of(mesh, text, tables={"model": {"layers": 4}}, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    ranks = list(range(*mesh.values()))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", ranks)
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert all(gain <= c.lost_ms_high for c in found.candidates)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("stages", "ranks", "hub"), [(4, [1, 2, 3], [2]), (3, [0, 1], [0, 1])])
def test_missing_stages_hide_no_slow_link(tmp_path, stages, ranks, hub):
    """The rank without a trace may be late as well, so that the link is one candidate more."""
    tables = {"model": {"layers": 2 * stages, "vocab_size": 32000}}
    text = f"slow_link:rank={hub[-1]},delay_ms=5"
    setup, config = setup_of({"pp": stages}, text, steps=4, tables=tables, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels", ranks=ranks)
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    ends = [c for c in found.candidates if c.cause == "network"]
    assert (found.verdict, [c.rank for c in ends]) == ("inconclusive", hub)
    assert outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms <= ends[0].lost_ms_high
