"""A step that one rank spends on work of its own is no accident and no fault."""

import pytest

from tests.slowrank.test_mechanisms import KERNELS, RANKS, SLOW, grid, job, prepared, span
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.suspect_work import lone_work

STRUCK = 3


def evaluation(line, step):
    for _ in range(2):
        for name, us in KERNELS.items():
            line.compute(us, name)


def numbered(line, step):
    """A span around each step with the step's number; the host pauses in one of them."""
    span(f"iteration {step}", "user_annotation", 3_000.0 if step == STRUCK else 30.0)(line, step)


def once(pause):
    return lambda line, step: pause(line, step) if step == STRUCK else None


@pytest.mark.parametrize(
    ("pause", "work"),
    [
        (once(span("save_checkpoint", "user_annotation", 3_000.0)), "save_checkpoint, which its other steps"),
        (once(evaluation), "more kernels than in its other steps"),
        (once(span("Python GC", "user_annotation", 3_000.0)), ""),
        (once(span("next_batch", "user_annotation", 3_000.0)), ""),
        (span("save_checkpoint", "user_annotation", 3_000.0), ""),
        (numbered, ""),
    ],
    ids=["checkpoint", "evaluation", "garbage", "loader", "in every step", "numbered"],
)
def test_work_of_one_step_is_named(tmp_path, pause, work):
    case = prepared(job(tmp_path, pause=pause), grid(dp=RANKS))
    found = lone_work(case, case.steps.row(SLOW), STRUCK)
    assert found.startswith(work)
    assert bool(found) == bool(work)


def test_a_checkpoint_of_one_rank_is_healthy(tmp_path):
    finding = analyse(job(tmp_path, pause=once(span("save_checkpoint", "user_annotation", 3_000.0))))
    assert finding.verdict == "healthy"
    assert f"in step {STRUCK} only, in save_checkpoint, which" in finding.reason


def test_a_checkpoint_of_half_the_ranks_is_healthy(tmp_path):
    """Those that save with a rank are no peers that lack its work."""
    saves = once(span("save_checkpoint", "user_annotation", 3_000.0))
    finding = analyse(
        job(tmp_path, pause=saves, beside=lambda line, step: line.rank == 3 and saves(line, step))
    )
    assert finding.verdict == "healthy"
    assert f"in step {STRUCK} only, in save_checkpoint, which their other steps" in finding.reason


def test_a_wait_that_all_share_is_said(tmp_path):
    """All loaders are late in one step, one of them most."""
    waits = once(span("next_batch", "user_annotation", 9_000.0))
    peers = once(span("next_batch", "user_annotation", 3_000.0))
    finding = analyse(job(tmp_path, pause=waits, beside=peers))
    assert (finding.verdict, finding.suspects) == ("inconclusive", ())
    assert "in next_batch, which fills 9.0 ms of it and 3.0 ms of its peers'" in finding.reason
