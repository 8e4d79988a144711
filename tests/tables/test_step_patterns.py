"""Without marks a step is one repetition of the operations, the same one on every rank."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tables.rows import comm, gemm, group, recorded
from tracekit.tables.step_marks import NO_STEP
from tracekit.tables.step_patterns import period, repetitions, with_repeating_steps

PAIR = [group(0, 0, 1)]


def job(rank, *, steps=5, layers=3, skip=0, shift=0.0):
    """A rank of a job with `layers` gathers and one reduction a step, then a pause; its first calls are cut off."""
    rows, at = [], shift
    for number in range(steps):
        for _ in range(layers):
            rows += [gemm(at, 20), comm(at + 20, 5, 0, "_allgather_base", stream=20)]
            at += 25
        rows += [gemm(at, 20 + rank), comm(at + 20 + rank, 10 - rank, 0, "allreduce", stream=20)]
        at += 130 + 7 * (number**2 % 5)
    return recorded(rank, *rows[2 * skip :])


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([0, 0, 1] * 4, (3, 12)),
        ([7, 8] + [0, 0, 1] * 4, (3, 12)),
        ([0, 1] + [0, 0, 1] * 4 + [0], (3, 15)),
        ([0] * 9, (1, 9)),
        ([0, 0, 1] * 2, (3, 6)),
        ([0, 0, 1, 0, 2], (0, 0)),
        ([0, 1, 2, 3, 4, 5, 6, 7], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_the_shortest_repetition(kinds, found):
    assert period(kinds) == found


def test_a_step_begins_after_the_widest_pause():
    steps = repetitions(job(0, skip=2))
    assert steps.tolist() == [NO_STEP] * 2 + [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_ragged_windows_have_common_steps():
    """Rank 1 began two calls later, and its clock is off: what both call step 1 is the same repetition."""
    ranks = with_repeating_steps([job(0), job(1, skip=2, shift=1e6)], PAIR)
    ends = [[int(s) for s in r.step] for r in ranks]
    assert ends[0][2:] == ends[1]
    assert set(ends[1]) == {NO_STEP, 0, 1, 2, 3}


def test_ranks_that_share_nothing_count_alike():
    apart = [replace(job(r), group=np.full_like(job(r).group, r // 2)) for r in range(4)]
    pairs = [group(0, 0, 1), group(1, 2, 3)]
    ranks = with_repeating_steps(apart, pairs)
    assert [set(r.step.tolist()) for r in ranks] == [{NO_STEP, 0, 1, 2, 3}] * 4
    shorter = [*apart[:2], *(replace(job(r, steps=4), group=np.ones(16, np.int32)) for r in (2, 3))]
    assert with_repeating_steps(shorter, pairs) is None


def test_marks_or_no_pattern_leave_everything_as_it_is():
    assert with_repeating_steps([job(0, steps=1), job(1, steps=1)], PAIR) is None
    assert with_repeating_steps([job(0), job(1, steps=1)], PAIR) is None
