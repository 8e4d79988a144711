"""Work behind the last communication of a step delays the next step, and counts in as many steps as it delays."""

import pytest

import tracekit
from tests.slowrank.events import Timeline, write_run
from tracekit.case.opened import opened

WORLD, STEPS = 4, 4


def recorded(folder, tails, skipped=0):
    """Ranks that work for 400 µs, reduce for 100 µs, and then work for `tails` (µs, by rank) behind that.

    Marks and events of the first `skipped` steps are left out, as of a profiler that starts later.
    """
    lines = [Timeline(rank) for rank in range(WORLD)]
    for step in range(STEPS + skipped):
        begins = [line.at for line in lines]
        for _ in range(3):
            for line in lines:
                line.compute(400)
            handles = [line.post(0) for line in lines]
            end = max(line.at for line in lines) + 100
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, tail in zip(lines, tails, strict=True):
            line.compute(tail)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
        if step < skipped:
            for line in lines:
                line.rows.clear()
    return write_run(folder, lines, {0: tuple(range(WORLD))}, {0: "DATA_PARALLEL_GROUP"}, WORLD)


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_tail_costs_what_it_takes(tmp_path, skipped):
    found = tracekit.slowrank(recorded(tmp_path, (50, 50, 350, 50), skipped))
    (suspect,) = found.suspects
    assert (found.verdict, suspect.rank) == ("slow_rank", 2)
    assert suspect.lost_ms_per_step == pytest.approx(0.3, rel=0.02)
    assert suspect.lost_ms_low <= 0.3 <= suspect.lost_ms_high


def test_every_step_has_one_tail(tmp_path):
    case, _ = opened(recorded(tmp_path, (50, 50, 350, 50)), None, None, None, None)
    for row, tail in enumerate((50, 50, 350, 50)):
        assert case.steps.own[row].tolist() == pytest.approx([(1200 + tail) * 1000] * STEPS)


def test_chosen_steps_have_the_tail_before_them(tmp_path):
    case, _ = opened(recorded(tmp_path, (50, 50, 350, 50)), None, None, [(1, 3)], None)
    assert not case.steps.tail.any()
    assert case.steps.own[2].tolist() == pytest.approx([1_550_000] * 2)
