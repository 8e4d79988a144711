"""Without marks a step is one repetition of what the device runs, the same one on every rank."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tables.rows import comm, events, gemm, group, launch, recorded, recv, row, send
from tracekit.matching.match import match
from tracekit.rank_events.operations import rank_ops
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.steps.step_numbers import Cuts, _labels
from tracekit.steps.step_patterns import with_repeating_steps
from tracekit.steps.steps import measure

PAIR = [group(0, 0, 1)]


def job(rank, *, steps=5, layers=3, skip=0, shift=0.0, drop=0):
    """A rank of a job with `layers` gathers and one reduction a step, then a pause; its first or last calls are cut."""
    rows, at = [], shift
    for number in range(steps):
        for _ in range(layers):
            rows += [gemm(at, 20), comm(at + 20, 5, 0, "_allgather_base", stream=20)]
            at += 25
        rows += [gemm(at, 20 + rank), comm(at + 20 + rank, 10 - rank, 0, "allreduce", stream=20)]
        at += 130 + 7 * (number**2 % 5)
    return recorded(rank, *rows[2 * skip : len(rows) - 2 * drop])


def busy(rank, *, windows=((0, 3),), first=0, last=0, optimizer="adam", apart=10_000):
    """A rank whose kernels differ, in windows of (first step, steps); the first and last kernels of each are cut."""
    rows, begins = [], []
    for number, (begin, steps) in enumerate(windows):
        inside, at = [], 200 * begin + apart * number
        for step in range(begin, begin + steps):
            inside += [gemm(at, 30, "forward"), gemm(at + 30, 50 + 5 * rank, "backward")]
            inside += [comm(at + 80 + 5 * rank, 10 - 5 * rank, 0, stream=20), gemm(at + 90, 10, optimizer)]
            at += 200 + 3 * (step**2 % 7)
        kept = inside[first : len(inside) - last]
        begins.append(min(r["ts"] for r in kept))
        rows += kept
    return rank_ops(rank, events(rows), [], begins if len(windows) > 1 else ())


def steps_of(ranks):
    """The steps of each rank's operations."""
    return [r.step.tolist() for r in with_repeating_steps(ranks, PAIR)]


def test_ragged_windows_have_common_steps():
    """Rank 1 began two calls later, and its clock is off: what both call step 1 is the same repetition."""
    one, two = steps_of([job(0), job(1, skip=2, shift=1e6)])
    assert one == [number for number in range(5) for _ in range(4)]
    assert two == [NO_STEP] * 2 + one[4:]


def test_whole_windows_lose_no_step():
    ranks = with_repeating_steps([busy(0), busy(1)], None)
    assert [r.step.tolist() for r in ranks] == [[0, 1, 2]] * 2
    assert ranks[0].steps[0][0] == ranks[0].begins[0]


def test_time_between_windows_is_no_steps():
    """The second capture's first step begins with its window, and its number says that others lie between."""
    captures = ((0, 2), (50, 2))
    ranks = with_repeating_steps([busy(0, windows=captures), busy(1, windows=captures)], PAIR)
    assert [r.step.tolist() for r in ranks] == [[0, 1, 3, 4]] * 2
    assert ranks[0].steps[3][0] == ranks[0].begins[1]


@pytest.mark.parametrize(("lost", "left"), [(0, [4, 5, 6]), (1, [0, 1, 2])])
def test_a_lost_window_leaves_the_others_their_steps(lost, left):
    """What rank 1 shares with rank 0 tells which of two captures it lacks, whatever their clocks say."""
    captures = ((0, 3), (51, 3))
    mine = busy(1, windows=(captures[1 - lost],))
    found = with_repeating_steps([busy(0, windows=captures), mine], PAIR)
    assert [r.step.tolist() for r in found] == [[0, 1, 2, 4, 5, 6], left]


def test_windows_of_one_step_show_the_pattern_together():
    captures = ((0, 1), (50, 1))
    assert steps_of([busy(r, windows=captures) for r in (0, 1)]) == [[0, 2]] * 2


def test_windows_without_a_pattern_are_steps():
    ranks = [busy(r, windows=((0, 1), (50, 1)), first=2 * r) for r in (0, 1)]
    odd = [replace(r, order=None) for r in ranks]
    assert steps_of(odd) == [[0, 2]] * 2


def test_ragged_steps_begin_behind_the_optimizer():
    ranks = [busy(0, windows=((0, 5),), first=1), busy(1, windows=((0, 5),), last=1)]
    found = with_repeating_steps(ranks, PAIR)
    assert [r.step.tolist() for r in found] == [[NO_STEP, 1, 2, 3, 4], [0, 1, 2, 3, NO_STEP]]


def test_the_optimizers_span_tells_its_kernels():
    rows = [launch(0, 1), launch(5, 2), gemm(10, 5, "a") | {"correlation": 1}]
    rows += [gemm(20, 5, "b") | {"correlation": 2}, row("user_annotation", "Optimizer.step#AdamW.step", 4, 3)]
    assert rank_ops(0, events(rows)).order.optimizer.tolist() == [False, True]


def test_a_rarer_reduction_makes_the_step_longer():
    """Micro-batches repeat as well, but the gradients are reduced once for two of them."""
    rows = []
    for micro in range(8):
        at = 100 * micro
        rows += [gemm(at, 30, "forward"), gemm(at + 30, 30, "backward")]
        rows += [comm(at + 60, 5, 0, "_allgather_base", stream=20)]
        rows += [comm(at + 70, 10, 0, stream=20)] if micro % 2 else []
    ranks = with_repeating_steps([recorded(r, *rows) for r in (0, 1)], PAIR)
    assert [r.step.tolist() for r in ranks] == [[0] * 3 + [1] * 3 + [2] * 3 + [3] * 3] * 2


def test_a_pause_tells_where_a_step_begins():
    """Nothing is named like an optimizer, and the windows are ragged."""
    ranks = [
        busy(0, first=1, optimizer="other", windows=((0, 5),)),
        busy(1, last=1, optimizer="other", windows=((0, 5),)),
    ]
    assert steps_of(ranks) == [[NO_STEP, 1, 2, 3, 4], [0, 1, 2, 3, NO_STEP]]


def test_operations_launched_before_the_window_belong_to_no_step():
    """A device that runs behind its host still works off the step before the recording."""
    rows = [gemm(5, 10, "adam"), comm(16, 3, 0, stream=20)]
    for number in range(3):
        at = 100 * number + 20
        for i, kernel in enumerate(
            (gemm(at, 30, "forward"), comm(at + 30, 5, 0, stream=20), gemm(at + 40, 10, "adam"))
        ):
            ids = {"correlation": 10 * number + i + 1}
            rows += [kernel | ids, launch(at - 19 + i, ids["correlation"])]
    assert steps_of([recorded(r, *rows) for r in (0, 1)]) == [[NO_STEP, 0, 1, 2]] * 2


def test_ranks_that_share_nothing_count_alike():
    apart = [replace(job(r, skip=1), group=np.full_like(job(r, skip=1).group, r // 2)) for r in range(4)]
    pairs = [group(0, 0, 1), group(1, 2, 3)]
    ranks = with_repeating_steps(apart, pairs)
    assert [set(r.step.tolist()) for r in ranks] == [{NO_STEP, *range(4)}] * 4
    shorter = [replace(job(r, steps=4, skip=1), group=np.ones(15, np.int32)) for r in (2, 3)]
    assert with_repeating_steps([*apart[:2], *shorter], pairs) is None


def test_marks_or_no_pattern_leave_everything_as_it_is():
    assert with_repeating_steps([job(0, steps=1), job(1, steps=1)], PAIR) is None
    assert with_repeating_steps([job(0, drop=1), job(1, drop=1)], None) is None
    assert with_repeating_steps([], PAIR) is None


def told(rows, at, *kernels):
    """Adds kernels to `rows`, in order; each is launched 5 µs before its own `at` + n µs."""
    for i, kernel in enumerate(kernels):
        number = len(rows) + 1
        rows += [kernel | {"correlation": number}, launch(at + i, number)]


def test_the_wait_before_a_window_is_no_step():
    """The host stands for the step before: only on rank 1 an operation of that step is recorded as well."""

    def rank(number):
        rows = [row("cuda_runtime", "cudaStreamSynchronize", 0, 500, pid=1, tid=1)]
        rows += [comm(480, 10, 0, stream=20)] if number else []
        for step in range(3):
            at = 520 + 100 * step
            kernels = gemm(at + 5, 30, "forward"), comm(at + 35, 5, 0, stream=20), gemm(at + 45, 10, "adam")
            told(rows, at, *kernels)
        return recorded(number, *rows)

    found = with_repeating_steps([rank(0), rank(1)], PAIR)
    assert [r.steps[0][0] for r in found] == [500_000] * 2
    lasted = measure(match(found, PAIR)).wall
    assert lasted[0] == pytest.approx(lasted[1], abs=100_000)


@pytest.mark.parametrize("logged", [1, 2])
def test_a_loss_reduced_in_one_step_moves_no_other(logged):
    """Collectives run on the compute stream; the step that logs has one more of them."""

    def rank(number):
        rows = []
        for step in range(3):
            at = 200 * step
            kernels = [gemm(at + 5, 30, "forward"), comm(at + 35, 5, 0), gemm(at + 45, 10, "adam")]
            told(rows, at, *kernels, *([comm(at + 60, 5, 0)] if step == logged else []))
        return recorded(number, *rows)

    found = with_repeating_steps([rank(0), rank(1)], PAIR)
    assert [r.step.tolist() for r in found] == [sorted([0, 1, 2, logged])] * 2


def test_repeating_operations_begin_within_their_window():
    """No kernel computes; the two first operations were launched before the window, and no step of it holds them."""

    def rank(number):
        rows = [comm(3, 3, 0, "_allgather_base", stream=24), comm(7, 3, 0, stream=20)]
        for step in range(4):
            at = 20 + 100 * step
            told(rows, at - 19, comm(at, 5, 0, "_allgather_base", stream=24), comm(at + 20, 5, 0, stream=20))
        return recorded(number, *rows)

    steps = steps_of([rank(0), rank(1)])
    assert steps == [[NO_STEP, NO_STEP, *(n for n in range(4) for _ in range(2))]] * 2


@pytest.mark.parametrize(("early", "expected"), [(0, [0, 1, 1, 2, 2]), (30, [0, 0, 1, 1, 2])])
def test_a_receive_waits_for_its_step_to_begin(early, expected):
    """Each step of 200 µs begins by a receive posted 40 µs ahead, the first of which began before the window.

    What is done 30 µs before the border is of the step before.
    """
    rows = []
    for number in range(3):
        at = 200 * number
        first = [recv(at - 40, 40 - early, 1, 0, stream=28)] if number else []
        rows += [*first, gemm(at, 100), send(at + 110, 5, 0, 1, stream=28)]
    rank = recorded(0, *rows)
    begin = 1000 * np.array([0, 200, 400])
    labels = _labels(rank, Cuts(begin, begin + 200_000, np.zeros(3, np.int64), (True,)))
    assert labels.tolist() == expected
