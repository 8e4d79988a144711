"""A stage is not called long where one of its ranks may be the cause, and nothing false is said of its ranks."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.known import known
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.answers import imbalance_answers
from tracekit.analysis.slowrank.decision import culprits, gaps
from tracekit.analysis.slowrank.decision.decide import concluded
from tracekit.analysis.slowrank.evidence import Kind
from tracekit.analysis.slowrank.gaps.evidence_gaps import Undecided
from tracekit.analysis.slowrank.hypotheses.long_stage import long_stage
from tracekit.analysis.slowrank.price import Price
from tracekit.findings import Coverage

STAGES = grid(tp=4, pp=2)
LONG = {r: 1.3 for r in range(8) if STAGES.coords(r)["pp"] == 1}


@pytest.fixture
def case(tmp_path):
    return prepared(job(tmp_path, STAGES, slow=LONG), STAGES)


@pytest.mark.parametrize(("share", "found"), [(1.5, "inconclusive"), (0.5, "imbalance")])
def test_a_rank_that_may_cost_more_leaves_it_open(case, monkeypatch, share, found):
    stage = long_stage(case)
    rival = Undecided((stage.rows[0],), (Price.up_to(share * stage.price.best),))
    monkeypatch.setitem(vars(case), "coverage", Coverage(0.5, {}))
    evidence = known(
        case,
        stage=replace(stage, price=replace(stage.price, low=stage.price.best)),
        undecided=rival,
        dearest=Kind.STAGE,
    )
    monkeypatch.setitem(vars(case), "evidence", evidence)
    assert gaps.dearer_in_doubt(case, culprits.long_stage_is_dearest(evidence)).verdict == found


def test_a_larger_excess_in_doubt_is_no_cheaper_rank(tmp_path, monkeypatch):
    """Ranks 5 and 3 are slow. Rank 3 is not named alone while rank 5 may cost more; the smaller excess is no doubt."""
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={5: 1.4, 3: 1.2}), mesh)
    answer = concluded(case)[1]
    assert [s.rank for s in answer.suspects] == [5, 3]
    for named, other in (answer.suspects, answer.suspects[::-1]):
        open_ = Undecided((case.steps.row(other.rank),), (Price.up_to(2 * answer.gain),))
        monkeypatch.setitem(vars(case), "evidence", known(case, undecided=open_))
        left = gaps.dearer_in_doubt(case, replace(answer, suspects=(named,)))
        assert left.verdict == ("inconclusive" if other.rank == 5 else "slow_rank")
        assert [c.rank for c in left.candidates] == ([5, 3] if other.rank == 5 else [])


def test_doubts_of_a_stage_are_found_once(case, monkeypatch):
    """Not for each of its ranks, since rows of all stages are compared: 16 384 ranks took a hundred seconds."""
    asked = []
    price = imbalance_answers.stage_doubt_ns
    monkeypatch.setattr(
        imbalance_answers, "stage_doubt_ns", lambda *a, **k: asked.append(a) or price(*a, **k)
    )
    answer = imbalance_answers.blame_stage(case, long_stage(case), "")
    assert (len(answer.suspects), len(asked)) == (len(LONG), 2)


def test_a_slower_rank_of_a_long_stage_is_told(tmp_path):
    slower = max(LONG)
    case = prepared(job(tmp_path, STAGES, slow=LONG | {slower: 1.6}), STAGES)
    rows = [case.steps.ranks.index(r) for r in LONG]
    assert f"rank {slower} of it works longer" in imbalance_answers._beside_each_other(
        case, [case.steps.ranks[r] for r in rows]
    )
    assert "no rank of it" in imbalance_answers._beside_each_other(case, [r for r in LONG if r != slower])


@pytest.mark.parametrize(("extra_us", "first"), [(900, "slow_rank"), (1600, "slow_rank"), (550, "imbalance")])
@pytest.mark.quick(1)
def test_a_slow_rank_goes_before_a_long_stage(tmp_path, extra_us, first):
    """A stage is long by design; a rank that takes longer for the same work is a fault, though it costs less."""
    found = analyse(job(tmp_path, STAGES, slow=LONG, accident=(2, None, extra_us), steps=4))
    named = {s.rank for s in found.suspects}
    assert (found.verdict, named) == (first, {2} if first == "slow_rank" else set(LONG))
    told = (
        "in addition, pipeline stage 1 has"
        if first == "slow_rank"
        else "rank 2 works 0.5 ms a step longer than"
    )
    assert told in found.reason


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "healthy"), (1.05, "inconclusive"), (1.15, "imbalance")]
)
def test_a_stage_beyond_chance_is_no_health(tmp_path, factor, verdict):
    """Two noisy steps prove no long stage that costs 3 %, and do not rule it out."""
    mesh = grid(tp=2, pp=4)
    slow = dict.fromkeys((2, 3), factor)
    assert analyse(job(tmp_path, mesh, slow=slow, steps=2, jitter=0.05)).verdict == verdict
