"""A step in which the program does something more than in the others is left out of the comparison."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS, ODD = 4, 5, 2
SAVED = "save"


def reduced(lines):
    """All ranks wait for each other."""
    handles = [line.post(0) for line in lines]
    end = max(h[0] for h in handles) + TRANSFER_US
    for line, handle in zip(lines, handles, strict=True):
        line.finish(handle, end)


def saving(folder, *, slow=(), inside=0.0, before=0.0, extra=True, steps=STEPS, often=(ODD,)):
    """A job that saves `often`: rank 0 works `before` µs ahead of an `extra` collective, `inside` µs earlier."""
    lines = [Timeline(r) for r in range(RANKS)]
    for step in range(steps):
        begins = [line.at for line in lines]
        for layer in range(3):
            for line in lines:
                noise = 1 + 0.005 * (((line.rank * 7 + step * 5 + layer * 3) % 11) / 5 - 1)
                line.compute(LAYER_US * noise * (1.2 if line.rank in slow else 1))
            if step in often and layer == 1 and inside:
                lines[0].compute(inside)
            reduced(lines)
        if step in often:
            if before:
                lines[0].compute(before, SAVED)
            if extra:
                reduced(lines)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)


def logging(folder, *, pauses, late, numbers=(0, 1, 2), paused=(0,)):
    """A job of three steps in which `paused` ranks halt for ms before each step, by `pauses`.

    Recorded are the steps `numbers`; with `late` the halt before the first one of each window is not.
    """
    lines = [Timeline(r) for r in range(RANKS)]
    for place, (step, ms) in enumerate(zip(numbers, pauses, strict=True)):
        pause = ms * 1000.0
        if late and (place == 0 or numbers[place - 1] != step - 1):
            for rank in paused:
                lines[rank].at += pause
            pause = 0.0
        begins = [line.at for line in lines]
        for layer in range(3):
            for line in lines:
                noise = 1 + 0.005 * (((line.rank * 7 + step * 5 + layer * 3) % 11) / 5 - 1)
                line.at += pause if line.rank in paused and layer == 0 else 0.0
                line.compute(LAYER_US * noise)
            reduced(lines)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)


def odd(finding):
    """What the finding tells of steps that it left out."""
    return [q.detail for q in finding.quality if q.kind == "odd_steps"]


@pytest.mark.parametrize(("slow", "verdict"), [((), "healthy"), ((1,), "slow_rank")])
def test_a_checkpoint_is_priced_into_nobody(tmp_path, slow, verdict):
    finding = analyse(saving(tmp_path, slow=slow, before=10_000.0))
    assert finding.verdict == verdict
    assert [s.rank for s in finding.suspects] == list(slow)
    assert finding.steps.analysed == (0, 1, 3, 4)
    assert odd(finding)[0].endswith(f": {ODD}")
    assert finding.what_if.step_ms == pytest.approx(3.15 if not slow else 3.75, rel=0.02)


@pytest.mark.parametrize(("often", "verdict"), [((2, 6), "healthy"), ((1, 3, 5, 7), "slow_rank")])
def test_what_recurs_belongs_to_the_training(tmp_path, often, verdict):
    finding = analyse(saving(tmp_path, before=10_000.0, steps=8, often=often))
    assert finding.verdict == verdict
    assert [s.rank for s in finding.suspects] == ([0] if verdict == "slow_rank" else [])
    assert bool(odd(finding)) == (verdict == "healthy")


@pytest.mark.parametrize(
    "how", [{"inside": 10_000.0}, {"before": 10_000.0, "extra": False}, {"before": 300.0}]
)
def test_a_step_is_odd_by_what_it_adds(tmp_path, how):
    """The time lies elsewhere; nothing was added; it is hardly longer."""
    finding = analyse(saving(tmp_path, **how))
    assert finding.steps.analysed == tuple(range(STEPS))
    assert odd(finding) == []


def test_steps_that_the_user_names_are_kept(tmp_path):
    finding = analyse(saving(tmp_path, before=10_000.0), steps=[(0, STEPS)])
    assert finding.steps.analysed == tuple(range(STEPS))


@pytest.mark.parametrize(
    ("pauses", "late", "counted"),
    [
        ((6.0, 6.0, 6.0), True, True),
        ((6.0, 6.0, 6.0), False, False),
        ((0.05, 6.0, 6.0), True, False),
        ((6.0, 6.0), True, True),
        ((0.1, 0.1, 0.1), True, True),
    ],
)
def test_a_delay_before_the_recording_counts_where_it_recurs(tmp_path, pauses, late, counted):
    """A host that pauses before each step was late for the first one, in which its peers wait for nothing recorded.

    The shortest pause is 3 % of the step.
    """
    finding = analyse(logging(tmp_path, pauses=pauses, late=late, numbers=range(len(pauses))))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [0])
    assert finding.steps.analysed == tuple(range(len(pauses)))
    assert [q.detail.split(",")[0] for q in finding.quality if q.kind == "late_begin"] == (
        ["rank 0 began step 0 late"] if counted else []
    )
    assert finding.suspects[0].lost_ms_per_step == pytest.approx(sum(pauses) / len(pauses), rel=0.1)


def test_the_begin_of_each_window_may_be_late(tmp_path):
    """Two of four ranks pause before each step; in half of the steps, the first ones of windows, it is not recorded."""
    numbers, late = (0, 1, 10, 11), (0, 1)
    finding = analyse(logging(tmp_path, pauses=[6.0] * 4, late=True, numbers=numbers, paused=late))
    assert (finding.verdict, sorted(s.rank for s in finding.suspects)) == ("slow_rank", list(late))
    assert finding.steps.analysed == numbers
    assert [q.detail.split(",")[0] for q in finding.quality if q.kind == "late_begin"] == ["ranks 0"]
    assert finding.what_if.step_ms - finding.what_if.without_suspects_ms == pytest.approx(6.0, rel=0.1)
