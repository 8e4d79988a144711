"""A cure of a stopped process shortens the transfers that its threads carry; a device carries them by itself."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import TRANSFER_US, grid, job, prepared
from tracekit.analysis.slowrank.analyse import explanation_of
from tracekit.analysis.slowrank.decision.decide import decide
from tracekit.analysis.slowrank.hypotheses.link_cure import carried_ns
from tracekit.analysis.slowrank.hypotheses.slow_link import slow_link
from tracekit.units import NS_PER_MS, NS_PER_US

MESH = grid(tp=2, dp=4)
SLOW = 3


def case_of(folder, *, factor, on_gpu=False):
    """A job with transfers of the dp and tp groups of one slow rank that take `factor` times as long."""
    folder.mkdir(exist_ok=True)
    link = dict.fromkeys([(2, 3), (1, 3, 5, 7)], factor)
    case = prepared(job(folder, MESH, slow={SLOW: 1.5}, link=link), MESH)
    ranks = {r: replace(found, on_gpu=on_gpu) for r, found in case.ops.per_rank.items()}
    return replace(case, ops=replace(case.ops, per_rank=ranks))


def test_a_late_host_thread_is_no_link(tmp_path):
    """Transfers of a host may wait for a time slice; those of a device do not."""
    found = [slow_link(case_of(tmp_path / str(gpu), factor=20, on_gpu=gpu)) for gpu in (False, True)]
    assert found[0] is None
    assert found[1] is not None


def test_transfers_beyond_a_time_slice_are_a_link(tmp_path):
    assert slow_link(case_of(tmp_path, factor=200)) is not None


def rows(case):
    return np.array([case.steps.row(SLOW)])


def test_long_transfers_of_a_host_are_saved_with_it(tmp_path):
    usual, longer = (carried_ns(c, rows(c)) for c in (case_of(tmp_path / str(f), factor=f) for f in (1, 5)))
    assert usual == pytest.approx((0.0, 0.0), abs=TRANSFER_US * NS_PER_US)
    assert longer[0] > 4 * TRANSFER_US * NS_PER_US
    assert longer[1] >= longer[0]


def test_a_device_carries_transfers_without_its_host(tmp_path):
    case = case_of(tmp_path, factor=5, on_gpu=True)
    assert carried_ns(case, rows(case)) == (0.0, 0.0)


def test_ranks_together_cost_what_the_answer_says(tmp_path):
    """The table of `--explain` counts the transfers that both processes hold up, as the answer does."""
    held = {MESH.line(rank, [axis]): 5.0 for rank in (3, 4) for axis in ("tp", "dp")}
    case = prepared(job(tmp_path, MESH, slow={3: 1.5, 4: 1.5}, link=held), MESH)
    ranks = {r: replace(found, on_gpu=False) for r, found in case.ops.per_rank.items()}
    case = replace(case, ops=replace(case.ops, per_rank=ranks))
    answer = decide(case)
    found = explanation_of(case, answer).considered
    (together,) = (c for c in found if c.kind == "ranks")
    alone = [c for c in found if c.kind == "rank" and c.outcome == "named"]
    assert set(together.ranks) == {3, 4} == {s.rank for s in answer.suspects}
    assert together.likely_ms == pytest.approx(answer.gain / NS_PER_MS)
    assert together.high_ms >= max(c.high_ms for c in alone)


def test_transfers_without_peers_follow_the_pace(tmp_path):
    """Ranks 1 and 3 share a core, so that no group of tp lacks both: their transfers take as much longer as work."""
    mesh = grid(tp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={1: 2.0, 3: 2.0}, link={(0, 1): 40.0, (2, 3): 4.0}), mesh)
    ranks = {r: replace(found, on_gpu=False) for r, found in case.ops.per_rank.items()}
    case = replace(case, ops=replace(case.ops, per_rank=ranks))
    likely, most = carried_ns(case, np.array([case.steps.row(1), case.steps.row(3)]))
    layers = 3
    assert likely == pytest.approx(layers * 20 * TRANSFER_US * NS_PER_US, rel=0.05)
    assert most == pytest.approx(layers * 36 * TRANSFER_US * NS_PER_US, rel=0.05)
