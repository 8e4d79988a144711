"""A price just below the threshold proves no health where its cause lasts longer than the threshold."""

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.known import known
from tracekit.analysis.slowrank.decision import no_culprit
from tracekit.analysis.slowrank.decision.decide import first_of
from tracekit.analysis.slowrank.gaps import evidence_gaps
from tracekit.analysis.slowrank.hypotheses import slow_link
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen

NONE = Unseen(0.0, 0.0, ())


@pytest.mark.parametrize(
    ("share", "factor", "verdict"), [(0.015, 1.1, "inconclusive"), (0.008, 1.03, "healthy")]
)
def test_a_slow_rank_of_doubtful_price_is_open(tmp_path, monkeypatch, share, factor, verdict):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={3: factor}), mesh)
    for module in (no_culprit, evidence_gaps):
        monkeypatch.setattr(module, "most_ns", lambda *_: share * case.step_ns)
    monkeypatch.setattr(evidence_gaps, "least_ns", lambda *_: 0.0)
    answer = first_of(known(case, dearest=None, unseen=NONE, stage=None, link=None))
    assert answer.verdict == verdict
    if verdict == "inconclusive":
        (candidate,) = answer.candidates
        assert candidate.rank == 3
        assert candidate.lost_ms_high == pytest.approx(2 * share * case.step_ns / 1e6)


@pytest.mark.parametrize(("share", "verdict"), [(0.015, "inconclusive"), (0.008, None)])
def test_a_slow_link_of_doubtful_price_is_open(tmp_path, monkeypatch, share, verdict):
    mesh = grid(tp=4, dp=2)
    case = prepared(job(tmp_path, mesh, link={(1, 5): 12}), mesh)
    monkeypatch.setattr(slow_link, "price_of", lambda *_: Price(*(share * case.step_ns,) * 3))
    link = slow_link.slow_link(case)
    link = link if link and link.may_cost(0.02 * case.step_ns) else None
    assert (
        link and first_of(known(case, dearest=None, unseen=NONE, stage=None, link=link)).verdict
    ) == verdict


def test_nothing_costs_more_than_it_lasts(tmp_path, monkeypatch):
    """The rank works 1.5 % longer, so no error of the model makes that 2 %."""
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={3: 1.015}, jitter=0), mesh)
    assert no_culprit.nearly_costly(case) is None


@pytest.mark.parametrize(
    ("awaited", "verdict"), [(0.09, "inconclusive"), (0.03, "slow_rank"), (0.0, "slow_rank")]
)
def test_a_rank_is_not_named_before_an_unseen_one(tmp_path, awaited, verdict):
    """The other ranks wait for an unrecorded rank, which may come later than the rank that works longest.

    That rank costs a tenth of the step: it is named while 2 % are left, and costs at least so much less.
    """
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={3: 1.1}), mesh)
    unseen = Unseen(0.2 * case.step_ns, awaited * case.step_ns, (7,))
    answer = first_of(known(case, unseen=unseen))
    assert answer.verdict == verdict
    (first, *_) = answer.suspects or answer.candidates
    assert first.rank == 3
    if answer.suspects:
        assert first.lost_ms_per_step - first.lost_ms_low >= awaited * case.step_ns / 1e6
