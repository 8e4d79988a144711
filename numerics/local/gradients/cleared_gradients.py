"""Gradients that were cleared before the update, or still hold those of the step before."""

from collections.abc import Mapping, Sequence

import torch

from numerics.local.bounds.bounded import unit
from numerics.local.gradients.parameter_gradients import Scale, Sum
from numerics.local.judgement import Standing, within
from numerics.local.local_check import Doubt
from numerics.local.recorded_step import RecordedStep
from numerics.thresholds.local import FUNCTION_ROUNDINGS


def cleared_doubts(
    state: RecordedStep, sums: Mapping[str, Sum], recorded: Mapping[str, torch.Tensor]
) -> list[Doubt]:
    """Return a doubt where the optimiser steps by zeros alone, and the backwards added finite gradients."""
    added = [sums[name].total for name in recorded]
    overflowed = any(not bool(total.isfinite().all()) for total in added)
    if any(bool(grad.any()) for grad in recorded.values()) or overflowed or not any(map(torch.any, added)):
        return []
    return [
        Doubt(
            f"the optimiser gets zeros for all gradients in step {state.step}, and the backwards added others: "
            "they were cleared before the update",
            "call `zero_grad()` behind `optimizer.step()`, or before the first backward of a step",
        )
    ]


def not_cleared(
    state: RecordedStep,
    sums: Mapping[str, Sum],
    recorded: Mapping[str, torch.Tensor],
    scales: Mapping[int, Scale],
    wrong: Sequence[str],
) -> str:
    """Return in words that all `wrong` gradients still hold those of the step before; else "".

    A stage of a pipeline, or one of several optimisers, may clear its own and no others.
    """
    before = [s for s in scales if s < state.step]
    if not before:
        return ""
    last, ranks = max(before), len({place[0] for place in state.recorded.places(state.step)})
    factor = scales[last].factor
    for held in (1.0, float(ranks)):
        fits = True
        for name in wrong:
            grad, total = recorded[name], sums[name]
            old = state.gradient(f"{name}.grad", tuple(grad.shape), state.step - last)
            if old is None:
                return ""
            due = factor * total.total + held * old.double()
            size = (
                unit(grad.dtype) * FUNCTION_ROUNDINGS * (abs(factor) * total.size + held * old.double().abs())
            )
            error = size + abs(factor) * torch.stack(list(total.error.values())).sum(0)
            fits = fits and within(due, error, grad).standing != Standing.BEYOND
        if fits:
            some = "" if len(wrong) == len(recorded) else f" of {wrong[0]} and {len(wrong) - 1} more"
            return (
                f"the gradients{some} of step {last} were not cleared: step {state.step} adds its own to them"
            )
    return ""
