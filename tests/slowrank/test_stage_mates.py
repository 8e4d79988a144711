"""Collectives of unknown groups wait for their stage, where that gives the recorded waits."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.what_if.tables import unnamed
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.gaps.evidence_gaps import least_ns
from tracekit.step_graph.traced_model import mates, model_of
from tracekit.thresholds.slowrank import LITTLE_SHARE

MESH = grid(tp=2, dp=4)


@pytest.fixture
def cases(tmp_path):
    """The job of one slow rank with all groups named, and with those of dp unnamed."""
    folders = tmp_path / "named", tmp_path / "unnamed"
    for folder in folders:
        folder.mkdir()
    whole, part = (job(folder, MESH, slow={3: 1.3}) for folder in folders)
    return prepared(whole, MESH), prepared(unnamed(part, "dp"), MESH)


@pytest.mark.slow
def test_one_place_of_all_ranks_shares_a_number(cases):
    _, case = cases
    number = mates(case)
    assert ((number >= 0) == (case.ops.channel < 0)).all()
    assert np.bincount(number[number >= 0]).tolist() == [len(case.ops.ranks)] * (int(number.max()) + 1)


@pytest.mark.slow
def test_unknown_waits_are_told_by_the_stage(cases):
    whole, case = cases
    assert case.residual_ns < LITTLE_SHARE * case.step_ns
    assert least_ns(case, np.array([3])) == pytest.approx(least_ns(whole, np.array([3])), rel=0.1)


@pytest.mark.slow
def test_waits_of_some_are_not_the_stages(tmp_path):
    case = prepared(unnamed(job(tmp_path, MESH, link={(0, 2, 4, 6): 12}), "dp"), MESH)
    assert len(case.model.transfer) == len(case.waits.transfer)


def test_a_slow_rank_is_named_by_unknown_groups(tmp_path):
    finding = analyse(unnamed(job(tmp_path, MESH, slow={3: 1.3}), "dp"), dict(MESH.sizes))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [3])


def test_streams_are_joined_by_place_not_number(tmp_path):
    """Two ranks have another stream, which changes the numbers of the rest."""
    case = prepared(unnamed(job(tmp_path, MESH), "dp"), MESH)
    per_rank = {r: replace(o, stream=o.stream + 7 * (r in {2, 3})) for r, o in case.ops.per_rank.items()}
    other = replace(case, ops=replace(case.ops, per_rank=per_rank))
    assert mates(case).max() > 0
    assert (mates(other) == mates(case)).all()


def test_joined_collectives_put_ranks_on_one_clock(tmp_path):
    """The clock of two ranks is 5 ms off the others', and no collective of known members shows it."""
    case = prepared(unnamed(job(tmp_path, MESH), "dp"), MESH)
    clocks = case.clocks
    pair = [rank for rank in case.ops.ranks if clocks.island[rank] == clocks.island[3]]
    assert len(pair) == 2
    away = {rank: offset + 5e6 * (rank in pair) for rank, offset in clocks.offset.items()}
    moved = replace(case, clocks=replace(clocks, offset=away))
    begins = [[line.start for line in model_of(m, joined=True).runs[0][1]] for m in (case, moved)]
    assert begins[1] == pytest.approx(begins[0], abs=1e3)
