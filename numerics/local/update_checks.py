"""Checks the optimiser's step of each recorded step, on the recorded parameters, gradients, state and rates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged
from numerics.local.learning_rates import rates_of_step
from numerics.local.local_check import LocalCheck
from numerics.local.optimizer_step import COUNT, Find, other_count, repeat_step
from numerics.local.recorded_step import RecordedStep


def check_update(
    state: RecordedStep, optimizer: torch.optim.Optimizer | None, unseen: set[str]
) -> list[LocalCheck]:
    """Return how parameters and state after a step stand to the optimiser's own step."""
    if optimizer is None:
        unseen.add("the optimiser's step: the function returned no optimiser beside the model")
        return []
    states: dict[str, list[str]] = {}
    for tensor in state.recorded.names(state.step, "step", "optimizer"):
        name, _, key = tensor.rpartition(".")
        states.setdefault(name, []).append(key)

    if _goes_on(state, states):
        unseen.add(
            "the optimiser's step: the run went on from moments that were not recorded before its first step"
        )
        return []

    def after(name: str, shape: tuple[int, ...] | None) -> torch.Tensor | None:
        return state.parameter(name, shape, (state.step, "step"))

    def gradient(name: str, shape: tuple[int, ...] | None) -> torch.Tensor | None:
        return None if state.parted(name.removesuffix(".grad")) else state.gradient(name, shape)

    rates = rates_of_step(state.recorded, state.step)

    def stepped(before: Find) -> list[tuple[str, Judged]]:
        return repeat_step(state.model, optimizer, before, gradient, after, rates, states)

    done = stepped(state.parameter)
    if not states and _hides_moments(state, [name for name, _ in done]):
        unseen.add(
            "the optimiser's step: it keeps moments, and none were recorded (a sharded optimiser's own)"
        )
        return []
    words = other_count(state.parameter, after, stepped, done)
    return [
        LocalCheck(state.step, None, Check(n, n.rpartition(".")[0], "step", replace(judged, relation=words)))
        for n, judged in done
    ]


def _hides_moments(state: RecordedStep, judged: Sequence[str]) -> bool:
    """Return whether the optimiser's step makes more than parameters, after a first one that left none recorded."""
    names = dict(state.model.named_parameters())
    return state.step != state.recorded.steps[0] and any(name not in names for name in judged)


def _goes_on(state: RecordedStep, states: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the optimiser had counted steps before this one, and what it held then was not recorded."""
    name = next((f"{name}.{COUNT}" for name, keys in states.items() if COUNT in keys), "")
    count = state.parameter(name, None, (state.step, "step")) if name else None
    return (
        count is not None and count.numel() == 1 and float(count) > 1 and state.parameter(name, None) is None
    )
