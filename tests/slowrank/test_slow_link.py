"""Transfers that are slow though everybody arrived in time are a slow link; its ranks are named together."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job, prepared
from tests.tables.rows import events
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses import slow_link as links
from tracekit.analysis.slowrank.hypotheses.slow_link import _compare, slow_link
from tracekit.matching.channels import Channel

MESH = grid(tp=2, dp=4)
COLUMN = (1, 3, 5, 7)  # the dp group of tp index 1


@pytest.mark.parametrize("factor", [6, 12])
def test_one_slow_group_is_a_slow_link(tmp_path, factor):
    mesh = grid(tp=4, dp=2)
    finding = analyse(job(tmp_path, mesh, link={(1, 5): factor}))
    assert (finding.verdict, finding.cause) == ("slow_link", "network")
    assert [s.rank for s in finding.suspects] == [1, 5]
    (row,) = finding.suspects[0].evidence
    assert row.value == pytest.approx(factor * TRANSFER_US / 1000, rel=0.02)
    assert row.peers_median == pytest.approx(TRANSFER_US / 1000, rel=0.02)


def test_slowness_shared_by_every_group_is_no_link(tmp_path):
    every = {MESH.line(r, ["dp"]): 6.0 for r in range(8)}
    assert analyse(job(tmp_path, MESH, link=every)).verdict == "healthy"


def test_a_slow_transfer_below_two_percent_is_healthy(tmp_path):
    mesh = grid(tp=4, dp=2)
    factor = 1 + 0.015 * 2 * (LAYER_US + TRANSFER_US) / TRANSFER_US
    assert factor > 1.6  # slow by any measure, but too cheap to name
    assert analyse(job(tmp_path, mesh, link={(1, 5): factor}, jitter=0)).verdict == "healthy"


def test_a_slow_rank_makes_no_slow_link(tmp_path):
    finding = analyse(job(tmp_path, grid(tp=4, dp=2), slow={6: 1.3}))
    assert (finding.verdict, finding.suspects[0].rank) == ("slow_rank", 6)


@pytest.mark.slow
def test_the_dearer_of_slow_link_and_rank_is_answered(tmp_path):
    mesh = grid(tp=4, dp=2)
    for folder, slow, factor, verdict in (("a", 1.8, 4, "slow_rank"), ("b", 1.1, 16, "slow_link")):
        (tmp_path / folder).mkdir()
        finding = analyse(job(tmp_path / folder, mesh, slow={6: slow}, link={(1, 5): factor}))
        assert finding.verdict == verdict, finding.reason


def test_shards_and_replicas_are_told_by_their_shape(tmp_path):
    mesh = grid(dp=8)
    case = prepared(job(tmp_path, mesh), mesh)
    shapes = [case.shape_of(Channel(0, members, False, 0)) for members in ((0, 1), (2, 3), (0, 2), (4, 6))]
    assert shapes[0] == shapes[1] != shapes[2] == shapes[3]
    assert case.shape_of(Channel(0, tuple(range(8)), False, 0)) == ("dp",)


def test_messages_without_a_like_are_slow_as_well(tmp_path):
    """Half of what the slow group carries has a size of its own, as tokens dealt to experts have."""
    prices = []
    for folder, own_sizes in (("even", False), ("uneven", True)):
        (tmp_path / folder).mkdir()
        run = job(tmp_path / folder, grid(tp=4, dp=2), link={(1, 5): 12}, jitter=0)
        for record in [r for r in run.ranks if r.rank in {1, 5}] if own_sizes else []:
            path = run.folder / record.table
            rows = pq.read_table(path).to_pylist()
            for row in rows:
                if row["group"] is not None and row["dur"] > 6 * TRANSFER_US * 1000 and row["seq"] % 2:
                    row |= {"in_nelems": 1000 + row["seq"], "out_nelems": 1000 + row["seq"]}
            pq.write_table(events(rows), path)
        prices.append(analyse(run).what_if.slowdown)
    assert prices[1] == pytest.approx(prices[0], rel=0.005)


def test_a_slow_link_slows_every_group_that_passes_it(tmp_path):
    """A group with one peer is 1.55 times as slow: too little to accuse the link, and part of its price."""
    mesh, saved = grid(tp=2, cp=2, dp=2), []
    for folder, also in (("one", {}), ("both", {(1, 3, 5, 7): 1.55})):
        (tmp_path / folder).mkdir()
        run = job(tmp_path / folder, mesh, link={(1, 5): 20, **also}, jitter=0, combined=[("cp", "dp")])
        finding = analyse(run)
        assert [s.rank for s in finding.suspects] == [1, 5]
        saved.append(finding.what_if.step_ms - finding.what_if.without_suspects_ms)
    assert saved[1] - saved[0] == pytest.approx(3 * 0.55 * TRANSFER_US / 1000, rel=0.02)


def test_a_small_difference_of_two_groups_is_no_link(tmp_path):
    mesh = grid(tp=2, cp=2, dp=2)
    finding = analyse(job(tmp_path, mesh, link={(1, 3, 5, 7): 1.55}, jitter=0, combined=[("cp", "dp")]))
    assert finding.verdict == "healthy"


@pytest.mark.parametrize(
    ("slow", "stages", "expected"),
    [
        ({1}, 4, {(0, 1), (1, 2)}),  # of three links two touch rank 1: the median link is slow
        ({0}, 4, {(0, 1)}),
        ({2}, 5, {(1, 2), (2, 3)}),
        ({5}, 12, {(4, 5), (5, 6)}),
        (set(), 4, set()),
        (set(range(4)), 4, set()),  # all alike
    ],
)
def test_links_of_one_rank_may_be_most(slow, stages, expected):
    links = [(a, a + 1) for a in range(stages - 1)]
    ways = [Channel(n, way, True, 0) for n, way in enumerate([*links, *((b, a) for a, b in links)])]
    spent = np.array([50.0 if slow & set(way.members) else 10.0 for way in ways] * 4)
    rows = np.arange(len(spent))
    ops = SimpleNamespace(channels=tuple(ways), channel=rows % len(ways), step=rows // len(ways))
    case = SimpleNamespace(ops=ops, waits=SimpleNamespace(first_row=rows))
    found = _compare(case, {n: rows[n :: len(ways)].tolist() for n in range(len(ways))}, spent)
    assert {tuple(sorted(ways[n].members)) for n in found} == expected


@pytest.mark.parametrize(("sized", "expected"), [(False, {1}), (True, set())])
def test_operations_of_unknown_size_are_compared_by_place(sized, expected):
    """Large and small gathers alternate, and all take twice as long on one link: their spread is no noise."""
    groups = [Channel(n, (n, n + 4), False, n) for n in range(4)]
    usual = np.tile([600.0, 100.0], 6)
    spent = np.concatenate([usual * (2 if n == 1 else 1) for n in range(4)])
    rows = np.arange(len(spent))
    token = np.array([f"all_gather/BFloat16/{64 if sized else -1}"] * len(rows), object)
    ops = SimpleNamespace(channels=tuple(groups), channel=rows // 12, step=rows % 12 // 4, token=token)
    case = SimpleNamespace(ops=ops, waits=SimpleNamespace(first_row=rows))
    found = _compare(case, {n: rows[12 * n : 12 * n + 12].tolist() for n in range(4)}, spent)
    assert set(found) == expected


@pytest.mark.parametrize(("slow", "named"), [({}, [0, 1, 2, 3]), ({5: 1.5, 9: 1.5}, [])])
def test_recorded_members_bound_transfers_of_other_groups(tmp_path, slow, named):
    """Ranks 5 and 9 left no trace: only one tensor group is whole, and the others may wait for these ranks at most."""
    mesh = grid(tp=4, dp=3)
    finding = analyse(job(tmp_path, mesh, slow=slow, link={(0, 1, 2, 3): 10.0}, lost={5, 9}))
    assert [s.rank for s in finding.suspects] == named
    if named:
        suspect = finding.suspects[0]
        assert finding.verdict == "slow_link"
        assert suspect.lost_ms_low - 0.01 <= 3 * 0.45 <= suspect.lost_ms_high + 0.01


def test_a_link_that_no_channel_shows_again_stays(tmp_path, monkeypatch):
    """Channels that pass the ranks of a slow link may be alike beside each other: the first comparison counts."""
    case = prepared(job(tmp_path, MESH, link={(0, 1): 30.0}), MESH)
    found = slow_link(case)
    ask = links._slow_channels
    none = {}, {}, np.zeros(len(case.waits.delivery)), False
    monkeypatch.setattr(links, "_slow_channels", lambda *given: ask(*given) if len(given) < 4 else none)
    assert slow_link(case).ranks == found.ranks
