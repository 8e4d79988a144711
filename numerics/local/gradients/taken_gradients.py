"""Gradients that a trainer takes or differentiates itself, so that a backward alone does not give the recorded ones."""

from dataclasses import replace
from typing import Final

from numerics.local.judgement import Standing
from numerics.local.local_check import LocalCheck
from numerics.local.recorded_step import Place, RecordedStep
from numerics.schema import TAKEN, TWICE

_TWICE: Final = (
    "the trainer differentiates gradients (`create_graph=True`, as gradient penalties do): no record holds what that "
    "adds"
)
_TAKEN: Final = (
    "the trainer takes gradients with `torch.autograd.grad`: no record holds what it makes of those"
)


def why_unknown(state: RecordedStep, place: Place | None = None) -> str:
    """Return in words why the gradients of a place, or of the step, may be other than a backward's; else ""."""
    twice = state.recorded.rows(state.step, "backward", "input", TWICE)
    if twice if place is None else state.recorded.of_place(twice, place):
        return _TWICE
    return _TAKEN if state.recorded.rows(state.step, "backward", "input", TAKEN) else ""


def left_open(found: LocalCheck, why: str) -> LocalCheck:
    """Return a check of a gradient, open where it is wrong only for a trainer that does nothing else to it."""
    judged = found.check.judged
    if not why or judged.standing != Standing.BEYOND:
        return found
    judged = replace(judged, standing=Standing.UNCHECKED, why=why, relation="", lone="", factors=None)
    return replace(found, check=replace(found.check, judged=judged))
