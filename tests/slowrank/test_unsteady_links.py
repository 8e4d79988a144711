"""A few transfers that take much longer than the same calls of their group leave the job open, and accuse nobody."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.test_link_cure import pipeline
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.answers.unsteady_links import unsteady_link
from tracekit.analysis.slowrank.decision.gaps import dearer_in_doubt
from tracekit.analysis.slowrank.suspects import imbalance
from tracekit.case.opened import opened

STEPS, CALLS = 6, 8
SIZED = {"dtype": "BFloat16", "in_nelems": 1 << 24, "out_nelems": 1 << 24}
ONE = ((0, 1, 2, 3),)
TWO = ((0, 2, 4, 6), (1, 3, 5, 7))
AT_TIMES = {(2, 1), (2, 6), (4, 3), (4, 4)}
"""Step and number of the calls that are late."""


def job(folder, groups, late, *, beside=False, number=lambda step: step):
    """Each step: eight times 500 µs of compute and an all-reduce of 100 µs, or of 1100 µs where (step, call) is `late`.

    `late` is by group. With `beside` 2 ms are computed while the collective runs.
    """
    lines = {r: Timeline(r) for group in groups for r in group}
    for step in range(STEPS):
        begin = {r: line.at for r, line in lines.items()}
        for call in range(CALLS):
            for n, group in enumerate(groups):
                for r in group:
                    lines[r].compute(500 + (r * 7 + step * 5 + call * 3) % 11)
                handles = {r: lines[r].post(n) for r in group}
                end = max(h[0] for h in handles.values()) + (1100 if (step, call) in late[n] else 100)
                for r in group:
                    line, start = lines[r], lines[r].at
                    line.finish(handles[r], end, **SIZED, stream=20 if beside else 7)
                    if beside:
                        line.at = start
                        line.compute(2000)
        for r, line in lines.items():
            line.step(number(step), begin[r])
    made = dict(enumerate(groups))
    return write_run(folder, list(lines.values()), made, dict.fromkeys(made, "dp"), len(lines))


def test_calls_late_at_times_leave_the_job_open(tmp_path):
    found = analyse(job(tmp_path, ONE, [AT_TIMES]))
    assert (found.verdict, found.suspects, found.candidates) == ("inconclusive", (), ())
    assert "rank 0, 1, 2, 3 along dp are irregular: 4 of 48 take much longer" in found.reason
    assert "4.0 ms in total in step 2, 4" in found.reason
    assert "no other group along dp was recorded that would show which link is slow" in found.reason
    assert "dropped and resent packets" in found.to_decide


@pytest.mark.parametrize(
    "late",
    [
        set(),
        {(0, call) for call in range(1, CALLS)},
        {(3, 5)},
        {(step, 3) for step in range(STEPS)},
    ],
    ids=["never", "while the capture warms up", "once", "at one place of every step"],
)
def test_regular_calls_and_accidents_are_healthy(tmp_path, late):
    assert analyse(job(tmp_path, ONE, [late])).verdict == "healthy"


def test_first_steps_of_two_captures_tell_nothing(tmp_path):
    def number(step):
        return step if step < STEPS / 2 else step + 10

    late = {(step, call) for step in (0, STEPS // 2) for call in (1, 4, 6)}
    assert analyse(job(tmp_path, ONE, [late], number=number)).verdict == "healthy"


def test_late_calls_behind_compute_cost_nothing(tmp_path):
    assert analyse(job(tmp_path, ONE, [AT_TIMES], beside=True)).verdict == "healthy"


def test_other_groups_tell_whose_calls_are_late(tmp_path):
    found = analyse(job(tmp_path, TWO, [set(), AT_TIMES]))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert [c.rank for c in found.candidates] == [1, 3, 5, 7]
    assert all(c.steps == (2, 4) and c.lost_ms_low == 0 for c in found.candidates)
    assert "none of 1 other groups along dp is as late" in found.reason


def test_calls_late_in_all_groups_name_none(tmp_path):
    found = analyse(job(tmp_path, TWO, [AT_TIMES, AT_TIMES]))
    assert (found.verdict, found.candidates) == ("inconclusive", ())
    assert "1 of 1 other groups along dp are as late in these steps" in found.reason


def test_messages_late_at_times_name_their_ends(tmp_path):
    found = analyse(pipeline(tmp_path, late=2000.0, times={(1, 0), (1, 2), (3, 1)}))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert [c.rank for c in found.candidates] == [1, 5]
    assert "messages between rank 1, 5 along pp are irregular: 3 of 16" in found.reason
    assert "none of 3 other groups along pp is as late" in found.reason


def test_an_imbalance_gives_way_only_to_dearer_calls(tmp_path):
    case, _ = opened(job(tmp_path, ONE, [AT_TIMES]), None, None, None, None)
    found = unsteady_link(case)
    cheaper, dearer = (imbalance("work is uneven", share * found.gain) for share in (0.5, 1.5))
    assert dearer_in_doubt(case, cheaper).verdict == "inconclusive"
    assert dearer_in_doubt(case, dearer) is dearer
