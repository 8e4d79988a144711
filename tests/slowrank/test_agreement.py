"""A suspect is named only if its excess, its price and its cause agree; else it is a candidate of an open answer."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.decision.decide import decide
from tracekit.analysis.slowrank.hypotheses import suspect_work
from tracekit.analysis.slowrank.hypotheses.excess_parts import Explained
from tracekit.analysis.slowrank.suspects import agrees, explain_rank
from tracekit.findings import Evidence, Suspect
from tracekit.steps.features import Features, Work
from tracekit.steps.host_need import FREE, MOSTLY

EXPLAIN = "tracekit.analysis.slowrank.suspects.explain_rank"


def suspect(lost, cause, own, busy, gaps):
    """A suspect that costs `lost` ms a step, with its own time, compute and gaps beyond its peers', ms."""
    shown = [Evidence(q, 10.0 + v, 10.0, "ms", q) for q, v in (("own", own), ("busy", busy), ("gap", gaps))]
    return Suspect(11, None, {}, lost, 0.999, (0,), cause, tuple(shown))


AGREEING = [
    (4, "gpu_compute", 4, 4, 0, True),
    (4, "gpu_compute", 0, 0, 0, False),  # rank 11 of the published job: its compute equals its peers'
    (4, "gpu_compute", 4, 1, 3, False),
    (4, "cpu_launch", 4, 1, 3, True),
    (9, "host_stall", 4, 0, 4, False),
    (4, "unknown", 4, 1, 1, True),
    (4, "unknown", -1, 0, 0, False),
]


@pytest.mark.parametrize(("lost", "cause", "own", "busy", "gaps", "agreed"), AGREEING)
def test_cause_and_excess_carry_the_price(lost, cause, own, busy, gaps, agreed):
    assert agrees(suspect(lost, cause, own, busy, gaps)) == agreed


def test_nobody_to_compare_with_disagrees_with_nothing():
    alone = (Evidence("own time a step", 10.0, None, "ms", "own"),)
    assert agrees(Suspect(0, None, {}, 4.0, 0.999, (0,), "unknown", alone))


def answer(folder, monkeypatch, slow, disagreeing, **options):
    """The answer about a job with slow ranks, some of which show no more own time than their peers."""

    def told(case, row, suspects, **options):
        found = explain_rank(case, row, suspects, **options)
        if case.steps.ranks[row] in disagreeing:
            evidence = tuple(replace(e, value=e.peers_median) for e in found.evidence)
            return found._replace(evidence=evidence)
        return found

    monkeypatch.setattr(EXPLAIN, told)
    mesh = grid(dp=8)
    return decide(prepared(job(folder, mesh, slow=slow, **options), mesh))


def test_a_price_without_excess_leaves_it_open(tmp_path, monkeypatch):
    found = answer(tmp_path, monkeypatch, {3: 1.5}, {3})
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    (candidate,) = found.candidates
    assert (candidate.rank, candidate.confidence, candidate.lost_ms_low) == (3, 0.0, 0.0)
    assert "disagree" in found.reason
    assert found.to_decide


@pytest.mark.parametrize(("factor", "named"), [(1.3, [3]), (1.5, [])])
def test_those_who_agree_are_priced_alone(tmp_path, monkeypatch, factor, named):
    """Rank 3 costs what the others wait for it alone: nothing, if rank 5 is as slow."""
    found = answer(tmp_path, monkeypatch, {3: 1.5, 5: factor}, {5})
    assert [s.rank for s in found.suspects] == named
    assert {c.rank for c in found.candidates} == (set() if named else {3, 5})


@pytest.mark.parametrize(("doubted", "named"), [(0, []), (4, [0]), (None, [0, 4])])
def test_no_cheaper_rank_beside_a_dearer_doubt(tmp_path, monkeypatch, doubted, named):
    """Rank 0 stands still before the first layer, rank 4 is slow in all; each costs something alone, rank 0 more."""
    still = {"idle": lambda rank, _step: 1500.0 if rank == 0 else 0.0}
    found = answer(tmp_path, monkeypatch, {4: 1.3}, {doubted}, **still)
    assert [s.rank for s in found.suspects] == named
    assert [c.rank for c in found.candidates] == ([] if named else [0, 4])


@pytest.mark.parametrize(("pace", "named"), [(130.0, ()), (200.0, (3,)), (None, (3,))])
def test_a_host_that_launches_as_fast_is_not_slow(tmp_path, monkeypatch, pace, named):
    """Where hosts are hardly quicker than devices, one of them is always the last to launch."""
    monkeypatch.setattr(suspect_work, "launch_pace", lambda _, rank, *__: pace if rank == 3 else 120.0)
    shown = tuple(Evidence(q, 2.0, 0.5, "ms", q) for q in ("own", "busy", "gap"))
    monkeypatch.setattr(EXPLAIN, lambda *_: Explained("cpu_launch", shown))
    mesh = grid(dp=8)
    found = decide(prepared(job(tmp_path, mesh, slow={3: 1.5}), mesh))
    assert tuple(s.rank for s in found.suspects) == named
    assert tuple(c.rank for c in found.candidates) == (() if named else (3,))


@pytest.mark.parametrize(
    ("paces", "alike"),
    [
        ({FREE: (200.0, 600.0), MOSTLY: (2700.0, 1300.0)}, False),
        ({FREE: (200.0, 600.0), MOSTLY: (1300.0, 1300.0)}, True),
        ({FREE: (30.0, 10.0), MOSTLY: (1300.0, 1300.0)}, False),
        ({FREE: None, MOSTLY: None}, False),
    ],
    ids=["peers are held up and quicker", "alike", "slow where free", "unknown"],
)
def test_peers_held_up_and_quicker_show_it(monkeypatch, paces, alike):
    monkeypatch.setattr(suspect_work, "pace_among", lambda *args: paces[args[-1]])
    assert suspect_work.launches_alike(None, (3,), (1, 2)) == alike


@pytest.mark.parametrize(("matched", "spared"), [(0.7, -3e6), (1.0, 0.0)])
def test_kernels_may_wait_for_unmatched_messages_in_between(monkeypatch, matched, spared):
    """Two kernels of 10 ms take 13 ms together on the peers; here the second one begins when its input comes."""

    def rank(busy):
        each = {name: Work(1.0, 10e6) for name in ("gemm", "next_gemm")}
        return Features(0, True, busy, busy, 0.0, np.zeros(0, np.int64), *[0.0] * 7, (), (), work=each)

    case = SimpleNamespace(
        coverage=SimpleNamespace(matched=matched),
        steps=SimpleNamespace(mean=np.mean),
        met=SimpleNamespace(beside=np.zeros((2, 1)), chance=np.zeros((2, 1)), by_idle=()),
        features=lambda row: rank(16e6),
    )
    monkeypatch.setattr(suspect_work, "peers_of", lambda *_: [rank(13e6)] * 3)
    assert suspect_work.compute_spared(case, 1, (1,)) == spared
