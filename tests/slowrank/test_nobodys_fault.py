"""What makes a step long and is nobody's fault blames nobody; what recurs is found."""

import numpy as np
import pytest

from tests.accuracy.score import answer_case, mark
from tests.breakdown.runs import made
from tests.generator import generate
from tests.generator.mesh import Mesh
from tests.generator.spec import NOBODYS_KINDS
from tests.marks import quick_first
from tests.slowrank.jobs import grid, job, prepared
from tests.tables import gloo
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.long_stage import _levels
from tracekit.expected.excess import recurs, without_longest
from tracekit.thresholds.slowrank import PROVING_STEPS


@pytest.mark.parametrize("kind", sorted({*NOBODYS_KINDS} - {"long_step", "long_operation"}))
@pytest.mark.parametrize("seed", quick_first(1, [2, 1, 4]))
@pytest.mark.quick(1)
def test_one_long_step_among_five_is_nobodys_fault(kind, seed):
    found = mark(seed, kind=kind, world=8, steps=5)
    assert found.outcome == "right", found.answer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["long_step", "long_operation"])
@pytest.mark.parametrize("steps", [5, pytest.param(12, marks=pytest.mark.slow)])
def test_one_long_step_of_five_is_open(kind, steps):
    """All kernels of a rank are longer in it, or its host pauses: that proves no health, and blames nobody."""
    finding = answer_case(generate(1, kind=kind, world=8, steps=steps))
    assert finding.suspects == ()
    assert finding.verdict == ("inconclusive" if steps < PROVING_STEPS else "healthy")


@pytest.mark.slow
def test_a_start_up_needs_two_other_steps():
    assert mark(1, kind="start_up", world=8, steps=3).outcome == "right"


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.slow
def test_one_long_operation_among_few_steps_leaves_it_open(steps):
    case = generate(3, kind="long_operation", world=8, steps=steps)
    finding = answer_case(case)
    assert (finding.verdict, finding.suspects) == ("inconclusive", ())
    (candidate,) = finding.candidates
    assert candidate.lost_ms_low == 0.0
    assert candidate.steps == (100 + finding.steps.analysed.index(candidate.steps[0]) + case.captured[0],)
    assert finding.to_decide == "record more steps: a fault recurs"


@pytest.mark.parametrize("seed", quick_first(1, [3, 5]))
@pytest.mark.slow
def test_an_intermittent_fault_recurs_and_is_found(seed):
    found = mark(seed, kind="intermittent", world=8, steps=6)
    assert found.outcome == "right", found.answer


def test_the_longest_step_counts_for_nothing():
    value = np.array([[1.0, 1.0, 10.0], [4.0, 4.0, 4.0], [np.nan, 5.0, np.nan], [np.nan] * 3])
    assert without_longest(value).tolist() == [1.0, 4.0, 0.0, 0.0]


def test_two_long_steps_recur_though_others_are_shorter():
    """Of three steps two lose 4 % each, less what the rank gains in the third; one that loses 8 % is an accident."""
    value = np.array([[-0.8, 2.7, 2.7], [-0.8, 5.4, 0.1], [-1.5, 1.4, 1.4], [np.nan, 2.7, 2.7]])
    assert recurs(value, 64.0).tolist() == [True, False, False, True]


FEW = [(1, 6, "is slow: no other rank"), (2, 2, "are both slow: two ranks that")]


@pytest.mark.parametrize(("ranks", "seed", "words"), FEW)
@pytest.mark.quick(1)
def test_a_stage_of_few_ranks_says_both(ranks, seed, words):
    mesh = Mesh(("tp", "cp", "pp", "dp"), {"tp": ranks, "cp": 1, "pp": 4, "dp": 1})
    finding = answer_case(generate(seed, kind="long_stage", mesh=mesh, steps=4))
    assert (finding.verdict, len(finding.suspects)) == ("imbalance", ranks)
    assert words in finding.reason


def test_an_unmatched_long_stage_is_priced():
    """A rank was cut off, and others may wait for it; a model in which it is typical gives the recorded waits."""
    mesh = Mesh(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 1, "pp": 4, "dp": 1})
    case = generate(3, kind="long_stage", mesh=mesh, steps=4)
    finding = answer_case(case)
    assert (finding.cause, [s.rank for s in finding.suspects]) == ("stage_imbalance", [6, 7])
    first = finding.suspects[0]
    assert first.lost_ms_low is not None
    assert first.lost_ms_high is not None
    lost = finding.what_if.step_ms * (1 - 1 / case.truth.slowdown)
    assert first.lost_ms_low < lost < first.lost_ms_high


def test_a_missing_culprit_is_the_candidate(tmp_path):
    finding = analyse(job(tmp_path, grid(tp=2, dp=4), slow={5: 1.5}, lost={5}))
    assert (finding.verdict, finding.candidates[0].rank) == ("inconclusive", 5)
    assert finding.candidates[0].lost_ms_high > 0


def test_one_rank_of_a_stage_tells_no_long_stage(tmp_path):
    mesh = grid(pp=2, dp=4)
    kept = set(mesh.line(0, ["pp"]))
    run = job(tmp_path, mesh, slow={max(kept): 1.3}, lost=set(range(8)) - kept)
    found = analyse(run)
    assert (found.verdict, found.suspects) == ("inconclusive", ())


def test_a_missing_rank_makes_no_stage_longer(tmp_path):
    """Odd replicas were dealt longer documents; without rank 1 most of the second stage that is left has them."""
    mesh = grid(pp=2, dp=4)
    dealt = {rank: 1.3 for rank in mesh.coordinates if mesh.coords(rank)["dp"] % 2}
    case = prepared(job(tmp_path, mesh, slow=dealt, lost=[1]), mesh)
    first, second = _levels(case, case.steps.own)
    assert second == pytest.approx(first, rel=0.02)


def test_one_step_tells_documents_from_a_slow_device(tmp_path, monkeypatch):
    """Uneven attention suffices; a rank whose other kernels are longer as well may be slow."""
    monkeypatch.setattr("tracekit.analysis.slowrank.evidence.uneven_data", lambda case: case.step_ns)
    assert answer_case(generate(4, kind="doc_imbalance", world=8, steps=1)).verdict == "imbalance"
    assert analyse(job(tmp_path, grid(dp=4), slow={3: 1.4}, steps=1)).verdict == "inconclusive"


@pytest.mark.parametrize("ranks", [(2, 3), (3,)])
def test_a_replica_without_common_communication_is_open(tmp_path, ranks):
    """Two replicas of a serving engine share no communication; a tensor rank is waited for by its own replica."""
    slow = dict.fromkeys(ranks, 1.4)
    finding = analyse(job(tmp_path, grid(tp=2, dp=2), slow=slow, silent=("dp",), layers=6, steps=6))
    if len(ranks) == 1:
        assert [s.rank for s in finding.suspects] == [3]
        return
    assert finding.verdict == "inconclusive"
    assert "no communication joins them with another rank" in finding.reason
    assert sorted(s.rank for s in finding.candidates) == [2, 3]


STEP = 10_000
"""Length of a step, us."""


def test_no_rank_is_blamed_for_messages_without_peers(tmp_path):
    """Two of four ranks work longer in each step, and no message says for whom another rank waits."""
    ranks = {}
    for rank in range(4):
        begin = 8000 if rank in (0, 1) else 5000
        ranks[rank] = gloo.steps(*((n * STEP, STEP) for n in range(5)))
        for at in range(0, 5 * STEP, STEP):
            ranks[rank].append(
                gloo.operator("aten::mm", at + 10, begin + 17 * ((rank * 7 + at * 3 // STEP) % 5))
            )
            ranks[rank] += gloo.message("send", at + begin + 200, at + 9900, None)
            ranks[rank] += gloo.message("recv", at + begin + 300, at + 9950, None)
    found = analyse(made(tmp_path, ranks, groups={0: tuple(range(4))}, axis="dp", world=4))
    assert (found.verdict, found.suspects, found.coverage.matched) == ("inconclusive", (), 0)
    assert found.to_decide.startswith(
        "if these messages go between pipeline stages, give --mesh with pp; or record"
    )
    pipeline = analyse(made(tmp_path, ranks, groups={0: tuple(range(4))}, axis="pp", world=4))
    assert (pipeline.verdict, "--mesh" in str(pipeline.to_decide)) == ("inconclusive", False)
