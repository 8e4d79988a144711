"""Stages that nothing ends together begin as far apart as a slow one put them: the price is that of a steady run."""

import numpy as np
import pytest

from tracekit.step_graph.rank_timeline import NEED, POST, RankTimeline
from tracekit.step_graph.replay import StepModel

STEPS, FIRST, SLOW, SENT = 4, 100.0, 300.0, 10.0


def timeline(row, work, lead, start):
    """A rank that works `work` a step and waits for one message in each, behind `lead` of the step's work; µs."""
    at = np.repeat(work * np.arange(STEPS) + lead, 2)
    knots = work * np.arange(STEPS + 1)
    kinds, events = np.tile([POST, NEED], STEPS), np.repeat(np.arange(STEPS) + row * STEPS, 2)
    return RankTimeline(row, kinds.astype(np.int8), at, events.astype(np.int32), knots, knots, (), start)


def model(apart):
    """Rank 0 sends behind its work, rank 1 receives before it and is slow; a message waits for both of its ends."""
    lines = timeline(0, FIRST, FIRST, 0.0), timeline(1, SLOW, 0.0, apart)
    own = np.array([[FIRST] * STEPS, [SLOW] * STEPS])
    alone, nothing = np.full(2 * STEPS, -1.0), np.full(STEPS, -1)
    runs = ((tuple(range(STEPS)), lines),)
    message = np.tile(np.arange(STEPS), 2)
    caused = np.zeros((2, 0), np.int64)
    sent, later = np.full(STEPS, SENT), np.zeros(2 * STEPS)
    return StepModel(own, runs, message, alone, sent, nothing, later, caused, np.ones(STEPS))


def test_a_cured_stage_is_no_longer_behind():
    made = model(apart=SLOW)
    assert made.recorded_ns == pytest.approx(SLOW + SENT)
    assert made.step_ns(np.full((2, STEPS), FIRST)) == pytest.approx(FIRST + SENT)


def test_ranks_that_no_wait_joins_keep_their_recorded_steps():
    made = model(apart=SLOW)
    alone, none = np.full(2 * STEPS, -1), np.zeros(0, np.int64)
    apart = StepModel(
        made.own,
        made.runs,
        alone,
        np.zeros(2 * STEPS),
        none.astype(float),
        none,
        made.later,
        made.caused,
        made.shares,
    )
    assert apart.step_ns(np.full((2, STEPS), FIRST)) == pytest.approx(FIRST)
    assert apart.recorded_ns == pytest.approx((FIRST + SLOW) / 2)
