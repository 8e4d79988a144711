"""What holds of every answer of `slowrank`, whatever the job: replay, intervals, health, blame, lost evidence."""

import numpy as np
import pytest

from tests.marks import quick_first, quick_nth
from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse, explanation_of
from tracekit.analysis.slowrank.decision.decide import concluded
from tracekit.analysis.slowrank.gaps.evidence_gaps import bounds_of, most_ns
from tracekit.analysis.slowrank.price import rank_doubt_ns
from tracekit.case.cures import cured_ns
from tracekit.case.opened import opened

MESH = grid(tp=2, pp=2, dp=4)
SLACK = 1e-6  # ms: what rounding to ns may differ by
FAULTS = {
    "slow rank": {"slow": {5: 1.3}},
    "healthy": {},
    "two slow ranks": {"slow": {5: 1.3, 10: 1.2}},
    "slow link": {"link": {MESH.line(0, ["dp"]): 30.0}},
    "long stage": {"slow": {r: 1.2 for r in MESH.coordinates if MESH.coords(r)["pp"]}},
    "accident": {"accident": (3, 1, 4000.0)},
    "rank without a trace": {"slow": {5: 1.3}, "lost": {5}},
    "ranks without a trace": {"lost": {2, 9, 14}},
    "slow in turn": {"slower": lambda rank, step: 1.1 if rank == (5 * step + 2) % 16 else 1.0},
    "noisy": {"jitter": 0.1, "slow": {5: 1.05}},
    "one step": {"steps": 1, "slow": {5: 1.06}, "jitter": 0.02},
}


@pytest.fixture(scope="module", params=quick_nth(3, sorted(FAULTS)), ids=str)
def case(request, tmp_path_factory):
    """The case of a job with one of the faults, and its answer."""
    run = job(tmp_path_factory.mktemp("job"), MESH, **FAULTS[request.param])
    return concluded(opened(run, None, None, None, None)[0])


@pytest.mark.quick(2)
def test_a_replay_without_cure_is_the_recording(case):
    case, _ = case
    spread = np.nanmax(case.steps.wall, axis=0) - np.nanmedian(case.steps.wall, axis=0)
    assert abs(case.model.replayed_ns - case.step_ns) <= case.residual_ns + float(np.mean(spread)) + 1.0


@pytest.mark.quick(2)
def test_prices_are_ordered_and_bounded(case):
    """A cure takes a rank's longer parts off and leaves its shorter ones, so that noise makes it cost a little more.

    The cured rank of an answer may be as quick as any of its peers, and saves more than by the work of a typical one.
    """
    case, answer = case
    noise = 0.001 * case.step_ns / 1e6
    answered = {s.rank for s in (*answer.suspects, *answer.candidates)}
    for found in explanation_of(case, answer).considered:
        assert 0 <= found.low_ms <= found.likely_ms + SLACK
        assert found.likely_ms <= found.high_ms + SLACK
        if found.kind == "rank":
            peers = rank_doubt_ns(case, np.array([case.steps.row(found.ranks[0])])) / 1e6
            assert found.high_ms <= found.longer_ms + noise + peers * (found.ranks[0] in answered)
    for suspect in answer.suspects:
        assert 0 <= suspect.lost_ms_low <= suspect.lost_ms_per_step + SLACK
        assert suspect.lost_ms_per_step <= suspect.lost_ms_high + SLACK


def test_shorter_work_never_lengthens_a_step(case):
    """Up to what a rank varies by: a step begins with ranks as far apart as the last one left them."""
    case, _ = case
    noise = 1.0 + float(np.ptp(case.steps.own, axis=1).max()) / len(case.steps.numbers)
    for row in range(len(case.steps.ranks)):
        cured = case.steps.own.copy()
        cured[row] *= 0.9
        assert case.model.step_ns(cured) <= case.model.recorded_ns + noise


@pytest.mark.quick(2)
def test_health_and_blame_follow_from_the_intervals(case):
    case, answer = case
    working = explanation_of(case, answer)
    if answer.verdict == "healthy":
        proven = [c for c in working.considered if c.limit is None or c.significance > c.limit]
        assert not [c for c in proven if c.high_ms >= working.threshold_ms]
        assert not [g for g in working.gaps if g.could_hide_ms >= working.threshold_ms]
    elif answer.verdict != "inconclusive":
        assert answer.gain / 1e6 >= working.threshold_ms - SLACK
        if answer.suspects:
            lows = [s.lost_ms_low for s in answer.suspects]
            doubt = max(s.lost_ms_per_step - s.lost_ms_low for s in answer.suspects)
            assert max(*lows, answer.gain / 1e6 - doubt) >= working.threshold_ms - SLACK


def test_health_holds_for_all_ranks_together(case):
    """Typical work of every rank in every step costs a healthy job less than 2 %, beyond chance and an accident."""
    case, answer = case
    over = np.nan_to_num(case.found.value)
    beyond = np.where(over > 4.5 * max(case.found.sigma, 1.0), over, 0.0)
    beyond[:, [int(beyond.sum(axis=0).argmax())]] = 0.0  # one step may be an accident
    saved = case.model.recorded_ns - case.model.step_ns(case.steps.own - beyond)
    assert answer.verdict != "healthy" or saved < 0.02 * case.step_ns


def test_slowness_that_moves_is_priced(tmp_path):
    """10 % on another rank in each step: no rank reaches 2 % of the mean step, and all together cost 9 %."""
    (tmp_path / "moving").mkdir()
    found = analyse(job(tmp_path / "moving", MESH, **FAULTS["slow in turn"]))
    calm = analyse(job(tmp_path, MESH))
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "gpu_compute", ())
    assert found.what_if.slowdown == pytest.approx(found.what_if.step_ms / calm.what_if.step_ms, rel=0.01)


def test_several_cost_no_less_than_each_of_them(case):
    case, _ = case
    rows = np.argsort(-np.nan_to_num(case.found.mean))[:3]
    together = case.model.recorded_ns - cured_ns(case, case.model, rows)
    for row in rows:
        alone = case.model.recorded_ns - cured_ns(case, case.model, np.array([row]))
        assert together >= alone - 1.0
        assert most_ns(case, rows) >= most_ns(case, np.array([row])) - 1.0


@pytest.mark.parametrize("lost", quick_first(1, [{2}, {9, 14}, {0, 1, 2, 3}]), ids=str)
def test_lost_traces_only_widen_the_interval(tmp_path, lost):
    """What rank 5 costs with all traces lies between the least and the most that it costs without some."""
    (tmp_path / "all").mkdir()
    whole = analyse(job(tmp_path / "all", MESH, slow={5: 1.3})).suspects[0]
    (tmp_path / "some").mkdir()
    erased, _ = opened(job(tmp_path / "some", MESH, slow={5: 1.3}, lost=lost), None, None, None, None)
    (bounds,) = bounds_of(erased, np.array([erased.steps.row(5)])).prices
    assert bounds.low / 1e6 <= whole.lost_ms_per_step * 1.01
    assert bounds.high / 1e6 >= whole.lost_ms_per_step * 0.99
