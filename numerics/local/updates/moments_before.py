"""Which moments an optimiser's step goes on from: the update before it left them, or one before a checkpoint did."""

from collections.abc import Callable
from typing import Final

import torch

from numerics.local.judgement import Standing
from numerics.local.recorded_step import RecordedStep
from numerics.local.updates.optimizer_step import Find, Judgements
from numerics.schema import WATCHED

GOES_ON: Final = (
    "the optimiser's step: the run went on from moments that were not recorded before its first step"
)

At = tuple[int, str]
"""A step and a phase."""


def goes_on(state: RecordedStep, count: Callable[[At], torch.Tensor | None], *, keeps: bool) -> bool:
    """Return whether the optimiser had counted steps before this one, and what it held then was not recorded.

    `count` gives a recorded count of steps. `keeps` says that state without a count leaves this open too where steps
    without a record lie between this one and the last update. A recorded step without an update skipped it: the moments
    are those of the update before. A trainer that went back to a checkpoint has the moments after the step before that
    one, or none where that one was its first: both are known.
    """
    moments = state.last_update()
    left, held = _number(count((state.step, "step"))), _number(count(moments))
    gap = _unrecorded(state, moments)
    if left is None or left <= 1:
        return gap and keeps
    if held is None:
        return state.goes_on_from == state.step or _number(count((state.goes_on_from, "step"))) != 1
    return gap and left != held + 1


def _unrecorded(state: RecordedStep, then: At) -> bool:
    """Return whether steps without a record lie between an update, or the start, and what a step goes on from."""
    between = set(range(then[0] + 1, state.goes_on_from))
    counted = then[1] == "step" or state.recorded.run.capture.source == WATCHED  # `watch` counts from 0
    return counted and not between <= set(state.recorded.steps)


def moments_kept(
    state: RecordedStep, kept: Find, stepped: Callable[[Find], Judgements], done: Judgements
) -> str:
    """Return that a trainer went back without its optimiser, where that alone explains all updates; else "".

    `kept` gives parameters, and the state that the last update before this step left; `stepped` repeats the step.
    """
    if state.goes_on_from == state.step or all(one.standing != Standing.BEYOND for _, one in done):
        return ""
    if any(one.standing == Standing.BEYOND for _, one in stepped(kept)):
        return ""
    return (
        f"the trainer went back to the weights that step {state.goes_on_from} started from, and the optimiser went on "
        "from its later moments: they were not restored"
    )


def _number(value: torch.Tensor | None) -> float | None:
    return float(value) if value is not None and value.numel() == 1 else None
