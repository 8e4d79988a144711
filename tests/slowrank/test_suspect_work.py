"""Work that one index of an axis does in every replica is the job's design, and no rank is slow."""

from dataclasses import replace

import numpy as np
import pytest

from tests.generator import generate
from tests.slowrank.jobs import cut_at, grid, job, prepared
from tracekit.analysis.slowrank import suspects
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.shared_documents import dealt_to_its_replica, only_attention
from tracekit.ingest import load

MESH = grid(tp=2, dp=3)


def test_loading_first_ranks_are_the_design(tmp_path):
    case = generate(2005015, kind="healthy")
    case.write(tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert (found.verdict, found.suspects) == ("imbalance", ())
    assert "the job's design" in found.reason


def test_devices_of_that_index_that_are_slow_are_named(tmp_path):
    found = analyse(job(tmp_path, MESH, slow={0: 1.08, 2: 1.08, 4: 1.08}, jitter=0.001, layers=6))
    assert found.verdict == "slow_rank"
    assert {s.rank for s in found.suspects} == {0, 2, 4}


@pytest.mark.parametrize(
    ("turns", "shared", "dealt"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_documents_are_dealt_to_a_whole_replica(tmp_path, turns, shared, dealt):
    """Both stages of a replica are longer in three steps, and shorter in one: no device is quicker in one step."""
    mesh = grid(pp=2, dp=2)
    case = prepared(job(tmp_path, mesh, jitter=0), mesh)
    pattern = np.array([-10.0 if turns else 10.0, 11, 10, 12, 9]) * 1e5
    value = np.zeros((4, 5))
    for row, rank in enumerate(case.steps.ranks):
        place = mesh.coords(rank)
        sign = 1 if place["dp"] else -1
        value[row] = sign * pattern * (1 if not place["pp"] else 0.5 if shared else 0.0)
    case = replace(case, found=replace(case.found, value=value))
    row = case.steps.ranks.index(
        next(r for r in range(4) if mesh.coords(r)["dp"] and not mesh.coords(r)["pp"])
    )
    assert dealt_to_its_replica(case, row) == dealt


@pytest.mark.parametrize(
    ("documents", "beyond", "cut", "dealt"),
    [
        (0.5, 0.0, False, True),
        (0.0, 0.0, False, False),
        (0.5, 5e6, False, False),  # far longer than documents make any other replica
        (0.5, 0.0, True, False),  # the others change in a step that windows cut, and in no other
    ],
)
def test_other_replicas_show_that_documents_are_dealt(tmp_path, documents, beyond, cut, dealt):
    """Both stages of one replica are longer in all steps; those of the others change together, or not."""
    mesh = grid(pp=2, dp=4)
    case = prepared(job(tmp_path, mesh, jitter=0), mesh)
    turns = np.array([[3, 3, 2, 3, 3], [-2, 1, 0, 1, -1], [1, -2, 1, 0, 1], [0, 1, -2, -1, 2]]) * 1e6
    if cut:
        turns[1:, :-1] /= 100
    noise = np.array([[0, 0, 0, 0, 0], [1, 1, -2, 0, 1], [-2, 0, 0, 1, -1], [0, 2, 1, -2, 0]]) * 1e6
    value = np.zeros((8, 5))
    for row, rank in enumerate(case.steps.ranks):
        place = mesh.coords(rank)
        later = (documents * turns + (0 if documents else 1) * noise)[place["dp"]]
        value[row] = later if place["pp"] else turns[place["dp"]]
        value[row] += 1.5e6 * (place["dp"] == 0 and not documents) + beyond * (place["dp"] == 0)
    own = np.full((8, 5), 1e8) + value
    case = replace(
        case,
        steps=replace(case.steps, own=own, cut=cut_at(case.steps, 0.5) if cut else None),
        found=replace(case.found, value=np.where(value > 0, value, 0)),
    )
    first = next(
        i for i, r in enumerate(case.steps.ranks) if mesh.coords(r) == {"tp": 0, "cp": 0, "pp": 0, "dp": 0}
    )
    assert dealt_to_its_replica(case, first) is dealt


@pytest.mark.parametrize(("few", "documents"), [(0.0, True), (1e6, False)])
def test_few_tokens_hide_no_slow_device(tmp_path, monkeypatch, few, documents):
    """Rank 2 works as long as its peers with `few` ns of work less dealt to it; its attention is hardly longer."""
    case = prepared(job(tmp_path, MESH), MESH)
    row = case.steps.ranks.index(2)
    tokens = replace(case.met.tokens, beyond=case.met.tokens.beyond.copy())
    tokens.beyond[row] = -few
    case = replace(case, met=replace(case.met, tokens=tokens))
    peer = replace(case.features(0), own=1e7, attention=3e6, matmul=5e6)
    mine = replace(peer, own=peer.own + 5e4, attention=peer.attention + 6e4)
    monkeypatch.setattr(type(case), "features", lambda case, at: mine if at == row else peer)
    assert only_attention(case, [row]) is documents


@pytest.mark.parametrize(
    ("mesh", "beyond", "other", "documents"),
    [
        (grid(dp=4), (5, 5, 5), 0, False),  # its attention is slow
        (grid(dp=4), (5, 3, 7), 0, True),  # it changes
        (grid(dp=4), (5, 5, 5), 3, True),  # that of another rank differs as well
        (grid(dp=2, cp=2), (5, 5, 5), 0, True),  # ranks hold pieces of one sequence
        (grid(tp=4), (5, 3, 7), 0, False),  # the others have the same documents
        (grid(tp=4), (5, 0, 7), 0, True),
    ],
)
def test_documents_do_not_last(tmp_path, monkeypatch, mesh, beyond, other, documents):
    """Only attention of rank 2 is `beyond` that of its peers, in ms by step; rank 1 has `other` ms more."""
    case = prepared(job(tmp_path, mesh), mesh)
    usual = replace(case.features(0), own=40e6, attention=10e6, matmul=20e6, attention_by_step=(10e6,) * 3)

    def features(_, row):
        rank = case.steps.ranks[row]
        more = np.array({2: beyond, 1: (other,) * 3}.get(rank, (0.0,) * 3)) * 1e6
        taken, longer = tuple((10e6 + more).tolist()), float(more.mean())
        found = replace(usual, own=40e6 + longer, attention=10e6 + longer, attention_by_step=taken)
        return replace(found, rank=rank)

    monkeypatch.setattr(type(case), "features", features)
    assert only_attention(case, [case.steps.ranks.index(2)]) is documents


@pytest.mark.parametrize(
    ("mesh", "longer", "documents"),
    [
        (grid(tp=2, dp=4), (2, 3), True),  # both of a tensor group, which get the same documents
        (grid(tp=2, dp=4), (2, 4), False),
        (grid(pp=2, dp=4), (2, 3), True),  # both stages of a replica
        (grid(pp=2, dp=4), (2, 5), False),
    ],
)
def test_ranks_with_the_same_documents_are_all_longer(tmp_path, monkeypatch, mesh, longer, documents):
    """Attention of two ranks is as much longer in every step: slow devices, unless both have the same documents."""
    case = prepared(job(tmp_path, mesh), mesh)
    rows = [case.steps.ranks.index(rank) for rank in longer]
    value = np.zeros_like(case.found.value)
    value[rows] = 5e6
    case = replace(case, found=replace(case.found, value=value))
    usual = replace(case.features(0), own=40e6, attention=10e6, matmul=20e6, attention_by_step=(10e6,) * 3)
    slow = replace(usual, own=45e6, attention=15e6, attention_by_step=(15e6,) * 3)
    monkeypatch.setattr(
        type(case),
        "features",
        lambda _, row: replace(slow if row in rows else usual, rank=case.steps.ranks[row]),
    )
    assert only_attention(case, rows) is documents


@pytest.mark.parametrize(
    ("pace", "cause"), [((9000.0, 6000.0), "cpu_launch"), ((6100.0, 6000.0), "host_stall")]
)
def test_few_gaps_of_a_slow_host_are_launches(tmp_path, monkeypatch, pace, cause):
    monkeypatch.setattr(suspects, "pace_beside", lambda *_: pace)
    found = analyse(job(tmp_path, grid(dp=4), idle=lambda rank, step: 800.0 * (rank == 2)))
    assert [(s.rank, s.cause) for s in found.suspects] == [(2, cause)]
