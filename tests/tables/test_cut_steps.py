"""A step that the ends of windows cut counts as far as all ranks recorded it."""

import numpy as np
import pytest

from tests.tables.rows import group, matched
from tests.tables.test_steps import PAIR, steady
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.steps.step_ends import with_cut, with_cut_step
from tracekit.steps.steps import measure


def windows(*cut, steps=2, us=(100, 130)):
    """Two ranks with `steps` steps of ten collectives; of the last each lacks as many as `cut` says."""
    rows = {}
    for rank, (lost, work) in enumerate(zip(cut, us, strict=True)):
        kernels = steady(range(steps), us=work, wait=150 - work, calls=10)
        end = 1000 * 150 * (10 * steps - lost)
        rows[rank] = [r for r in kernels if r["ts"] < end]
    return matched(rows, PAIR)


def counts(ops):
    return {r: int((ops.step[ops.of(r)] == 1).sum()) for r in ops.ranks}


@pytest.mark.parametrize("left", [7, 4])
def test_a_cut_step_ends_alike_for_all(left):
    ops, number = with_cut_step(windows(0, 10 - left), [(0, 1)])
    assert (number, counts(ops)) == (1, {0: left, 1: left})
    found = measure(ops)
    assert (found.numbers, found.partial) == ((0, 1), ())
    assert found.own[:, 1] == pytest.approx([left * 100_000, left * 130_000])


def test_whole_steps_show_what_a_cut_one_lacks():
    """Windows cut the second of two equal steps behind seven of ten collectives; then a rank has no whole step."""
    ops, number = with_cut_step(windows(0, 3), [(0, 1)])
    found = with_cut(ops, measure(ops), number)
    assert found.shares.tolist() == pytest.approx([1.0, 0.7])
    assert (found.count, found.mean(found.wall[0])) == pytest.approx((1.7, 1_500_000))
    assert found.cut.own[:, 0] == pytest.approx([300_000, 390_000])
    assert found.whole == pytest.approx(np.full((2, 2), 1_500_000))
    found.own[1, 0] = np.nan
    alone = with_cut(ops, found, number)
    assert alone.completed(alone.own, alone.cut.own)[1, 1] == pytest.approx(1_300_000)


@pytest.mark.parametrize(("cut", "steps"), [((0, 0), 2), ((0, 8), 2), ((0, 10), 2), ((0, 3), 4)])
def test_whole_or_nearly_empty_steps_stay(cut, steps):
    """All are whole, one rank has hardly any of the step, or enough other steps are whole."""
    before = windows(*cut, steps=steps)
    after, number = with_cut_step(before, [(0, 1)])
    assert number is None
    assert np.array_equal(after.step, before.step)


def test_ranks_that_run_alike_are_cut_alike():
    """Rank 2 has a group of its own with rank 3; that one's window ends earlier, and ranks 0 and 2 run the same."""
    pairs = (group(0, 0, 1), group(1, 2, 3))
    rows = {
        rank: [r | {"group": rank // 2} if r.get("group") == 0 else r for r in steady(range(2), calls=10)]
        for rank in range(4)
    }
    rows[3] = [r for r in rows[3] if r["ts"] < 1000 * 120 * 18]
    ops, number = with_cut_step(matched(rows, *pairs), [(0, 2), (1, 3)])
    assert (number, counts(ops)) == (1, {0: 8, 1: 8, 2: 8, 3: 8})


def test_nothing_behind_a_cut_step_counts():
    """Windows end within the third step, and within the second."""
    rows = {r: steady(range(3), calls=10) for r in (0, 1)}
    rows = {rank: [r for r in rows[rank] if r["ts"] < 1000 * 120 * end] for rank, end in ((0, 27), (1, 17))}
    ops, number = with_cut_step(matched(rows, PAIR), [(0, 1)])
    assert number == 1
    assert sorted(set(ops.step.tolist())) == [NO_STEP, 0, 1]
