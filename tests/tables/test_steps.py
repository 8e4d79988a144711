"""Steps that every rank has whole, with own and wall time in each."""

import numpy as np
import pytest

from tests.tables.rows import bare, comm, gemm, group, matched, step
from tracekit.rank_events.step_marks import NO_STEP, captures, issue_times, label
from tracekit.steps.steps import measure

PAIR = group(0, 0, 1)


def steady(steps, us=100, wait=20, calls=2):
    """Rows of steps of `calls` × (compute, collective), back to back from time 0."""
    rows, at = [], 0.0
    for number in steps:
        begin = at
        for _ in range(calls):
            rows += [gemm(at, us), comm(at + us, wait, 0)]
            at += us + wait
        rows.append(step(number, begin, at - begin))
    return rows


def test_own_and_wall_time_of_each_step():
    ops = matched({0: steady(range(4)), 1: steady(range(4), us=110, wait=10)}, PAIR)
    found = measure(ops)
    assert (found.ranks, found.numbers, found.partial, found.labelled) == ((0, 1), (0, 1, 2, 3), (), True)
    assert found.wall == pytest.approx(np.full((2, 4), 240_000))
    assert found.own == pytest.approx(np.array([[200_000] * 4, [220_000] * 4]))
    assert found.begin[0] == pytest.approx([0, 200_000, 400_000, 600_000])


def test_a_step_without_a_ranks_head_is_skipped():
    late = [r for r in steady(range(5)) if r["ts"] + r["dur"] > 130_000 and not r["name"].endswith("#0")]
    found = measure(matched({0: steady(range(5)), 1: [*late, step(0, 130, 110)]}, PAIR))
    assert found.numbers == (1, 2, 3, 4)
    assert found.partial == (0,)


def test_a_step_some_rank_never_recorded_is_skipped():
    found = measure(matched({0: steady(range(5)), 1: steady(range(4))}, PAIR))
    assert (found.numbers, found.partial) == ((0, 1, 2, 3), (4,))


@pytest.mark.parametrize(
    ("messages", "numbers"),
    [(slice(None), (0, 1, 2)), (slice(0), (0, 1, 2, 3)), (slice(-1, None), (0, 1, 2, 3))],
)
def test_messages_without_peers_show_a_cut_step(messages, numbers):
    """All recordings end before the last collective of step 3; without messages in a step it may have fewer."""
    rows = [*steady(range(4), calls=3)[:-2], step(3, 1080, 340)]
    sent = [bare(r["ts"] / 1000 + 40, 10, n) for n, r in enumerate(rows) if r["name"] == "gemm"]
    sent.append(bare(1500, 10, len(rows)))  # behind the last step
    found = measure(matched(dict.fromkeys((0, 1), rows + sent[messages]), PAIR))
    assert found.numbers == numbers


@pytest.mark.parametrize(("lost", "whole"), [([4], True), ([], False)])
def test_a_call_without_its_group_is_not_missing(lost, whole):
    """Rank 1 lacks a known call in every step; it has one of an unknown group in its place, or none."""
    rows = {r: steady(range(3), calls=3) for r in (0, 1)}
    rows[1] = [
        ({**e, "group": None} if lost else None) if e["ts"] % 360_000 == 340_000 else e for e in rows[1]
    ]
    ops = matched({r: [e for e in found if e is not None] for r, found in rows.items()}, PAIR)
    assert np.isfinite(measure(ops).own).tolist() == [[True] * 3, [whole] * 3]


def test_one_cut_rank_does_not_cost_others_their_steps():
    whole = group(0, *range(6))
    rows = {r: steady(range(4)) for r in range(6)} | {5: steady(range(1))}
    found = measure(matched(rows, whole))
    assert found.numbers == (0, 1, 2, 3)
    assert np.isfinite(found.own[:5]).all()
    assert np.isfinite(found.own[5]).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("short", "numbers"), [((), (1, 2)), ((2, 3), (0, 1, 2, 3))])
def test_steps_that_many_ranks_lack_are_the_last_resort(short, numbers):
    """Of six ranks two record no step 0 and two no step 3; `short` ranks record no step 1, so that one is whole."""
    lack = {0: (0,), 1: (0,), 4: (3,), 5: (3,)} | dict.fromkeys(short, (1,))
    rows = {r: _without(steady(range(4)), lack.get(r, ())) for r in range(6)}
    assert measure(matched(rows, group(0, *range(6)))).numbers == numbers


def _without(rows, numbers):
    """The rows but those of the steps `numbers`, of 240 µs each."""
    return [r for r in rows if r["ts"] // 240_000 not in numbers]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ([(1, 3)], (1, 2)),
        ([(None, 2)], (0, 1)),
        ([(3, None)], (3, 4)),
        ([(0, 1), (4, None)], (0, 4)),
        ([(9, 12)], ()),
        (None, (0, 1, 2, 3, 4)),
    ],
)
def test_only_wanted_steps_are_measured(wanted, numbers):
    ops = matched({r: steady(range(5)) for r in (0, 1)}, PAIR)
    assert measure(ops, wanted).numbers == numbers


def test_without_marks_everything_is_one_step():
    rows = [r for r in steady(range(3)) if r["cat"] == "kernel"]
    found = measure(matched({0: rows, 1: rows}, PAIR))
    assert (found.numbers, found.labelled) == ((0,), False)
    assert found.own == pytest.approx(np.full((2, 1), 500_000))  # from the first post on


def test_a_step_without_a_known_group_is_whole():
    """What a rank calls belongs to no group, while others' groups are known: its steps are no shorter for that."""
    unnamed = [r | {"group": None} for r in steady(range(3))]
    found = measure(matched({0: steady(range(3)), 1: steady(range(3)), 2: unnamed}, PAIR))
    assert found.numbers == (0, 1, 2)
    assert np.isfinite(found.own).all()


def test_steps_need_not_count_from_zero():
    found = measure(matched({r: steady(range(100, 103)) for r in (0, 1)}, PAIR))
    assert found.numbers == (100, 101, 102)


def test_backlog_of_an_earlier_step_belongs_to_no_step():
    begin = np.array([5, 15, 30, 40, 12, 50])
    stream = np.array([1, 1, 1, 1, 2, 3])
    start = np.array([1, 2, 3])  # the trace: two launches at 2 and 3
    launch = np.array([-1, -1, 1, -1, 2, -1])
    issued = issue_times(launch, stream, begin, start, [1])
    assert issued.tolist() == [-1, 0, 2, 40, 3, 50]
    assert label(issued, {7: (1, 60)}).tolist() == [NO_STEP, NO_STEP, 7, 7, 7, 7]


def test_time_between_two_captures_belongs_to_no_step():
    """Steps 0 to 2 and 50 to 52 were recorded: step 50 lasts no longer than the others."""
    late = [r | {"ts": r["ts"] + 10_000_000} for r in steady(range(50, 53))]
    found = measure(matched({0: [*steady(range(3)), *late], 1: [*steady(range(3)), *late]}, PAIR))
    assert found.numbers == (0, 1, 2, 50, 51, 52)
    assert found.wall == pytest.approx(np.full((2, 6), 240_000))
    assert found.own == pytest.approx(np.full((2, 6), 200_000))


def test_calls_between_captures_belong_to_no_step():
    spans = {3: (0, 10), 4: (10, 20), 50: (100, 110)}
    times = np.array([5, 15, 21, 99, 105, 111])
    assert label(times, spans).tolist() == [3, 4, NO_STEP, NO_STEP, 50, NO_STEP]


def test_each_window_has_a_backlog_of_its_own():
    steps = {10: (0, 9), 11: (10, 19), 50: (100, 109)}
    start = np.array([0, 5, 101, 103])
    begin = np.array([4, 8, 102, 110, 120])  # the second window works off two kernels of steps before it
    launch = np.array([-1, 1, -1, -1, 3])
    windows = captures(steps, start)
    assert windows == [0, 100]
    issued = issue_times(launch, np.zeros(5, np.int64), begin, start, windows)
    assert issued.tolist() == [-1, 5, 98, 99, 103]
    assert label(issued, steps).tolist() == [NO_STEP, 10, NO_STEP, NO_STEP, 50]
