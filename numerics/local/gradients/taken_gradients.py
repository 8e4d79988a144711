"""Gradients that a trainer takes or differentiates itself, so that a backward alone does not give the recorded ones."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Final

import torch

from numerics.local.judgement import Standing
from numerics.local.local_check import LocalCheck
from numerics.local.recorded_step import Place, RecordedStep
from numerics.schema import HOOKED, TAKEN, TWICE

_TWICE: Final = (
    "the trainer differentiates gradients (`create_graph=True`, as gradient penalties do): no record holds what that "
    "adds"
)
_TAKEN: Final = (
    "the trainer takes gradients with `torch.autograd.grad`: no record holds what it makes of those"
)
_HOOKED: Final = (
    "a hook that the trainer registers after `watch` may change this gradient: no record holds what it makes "
    "of it"
)
_BY_MODEL: Final = (
    "a hook of the given model changes this gradient, and what it makes of it has no bound of its rounding"
)


def model_hooks(state: RecordedStep) -> dict[str, list[Callable[[torch.Tensor], torch.Tensor | None]]]:
    """Return the hooks that the given model has on its parameters' gradients, by name of the parameter."""
    found = {n: p._backward_hooks or {} for n, p in state.model.named_parameters()}  # noqa: SLF001 - as in torch
    return {name: list(hooks.values()) for name, hooks in found.items() if hooks}


def through_hooks(
    grad: torch.Tensor | None, hooks: Sequence[Callable[[torch.Tensor], torch.Tensor | None]]
) -> torch.Tensor | None:
    """Return a gradient after `hooks`, called in their order as torch does; None where one of them fails."""
    try:
        for hook in hooks:
            changed = None if grad is None else hook(grad.clone())
            grad = grad if changed is None else changed
    except Exception:  # noqa: BLE001 - a user's code, which may ask for other ranks
        return None
    return grad


def by_model(found: LocalCheck) -> LocalCheck:
    """Return a check of a gradient that a hook of the given model changes, open unless every bit is equal."""
    return left_open(found, _BY_MODEL)


def is_hooked(state: RecordedStep, name: str) -> bool:
    """Return whether a hook of the trainer may change a parameter's gradient after it was recorded."""
    return _hooks(state, state.step, name) > 0


def why_changed(state: RecordedStep, name: str) -> str:
    """Return in words why a reduced gradient may be other than the sum of what backwards add; else "".

    Hooks that grow by step are no excuse: a trainer registers its hook in every step, and never removes it.
    """
    counts = [_hooks(state, step, name) for step in state.recorded.steps]
    grow = len(counts) > 1 and counts[0] > 0 and all(a < b for a, b in pairwise(counts))
    return why_unknown(state) or ("" if grow or not is_hooked(state, name) else _HOOKED)


def _hooks(state: RecordedStep, step: int, name: str) -> int:
    """Return how many hooks of the trainer run after the recorder's on a parameter in a step."""
    rows = state.recorded.rows
    return next(n for n in count() if not rows(step, "backward", "input", f"{HOOKED}{n}.{name}"))


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
