"""Checks the loss function: its gradient and value from the recorded output of the model and the recorded targets.

The gradient of the output may be a common factor times that of the given function (a loss scale); it is solved for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from numerics.local.bounds.bounded import Bounded, carrying, known
from numerics.local.forced_pass import ROOT, ROOT_GRADIENT, Check
from numerics.local.judgement import Judged, Standing, judge, ratio, within
from numerics.local.local_check import LocalCheck
from numerics.local.losses.common_factor import CommonFactor
from numerics.local.losses.loss_weights import LossWeights
from numerics.local.losses.padding_checks import PaddingChecks
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.recorded import Reading, same_bits
from numerics.thresholds.local import SCALE_TOLERANCE

Loss = Callable[..., torch.Tensor]
"""Maps the model's output and the targets to the loss from which a backward starts."""

LOSS = "loss"
"""The name under which a trainer records its loss."""


@dataclass
class LossChecks:
    """What was checked of the loss, what was not, factors by step, else weights; a factor of all gradients; padding.

    `positions` is what each position of the first step counts in the gradients, sorted, float64; None where unknown.
    """

    checks: list[LocalCheck] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)
    factors: dict[int, float] = field(default_factory=dict)
    weights: LossWeights = field(default_factory=LossWeights)
    common: CommonFactor = field(default_factory=CommonFactor)
    padding: PaddingChecks = field(default_factory=PaddingChecks)
    positions: torch.Tensor | None = None


@dataclass(frozen=True)
class _Made:
    """Loss and gradient of one place, in the run's format and with bounds, beside the recorded gradient."""

    place: Place
    loss: torch.Tensor
    bounded_loss: torch.Tensor
    grad: torch.Tensor
    bounded: torch.Tensor
    recorded: Reading


def check_loss(state: RecordedStep, loss: Loss, into: LossChecks) -> None:
    """Add the checks of one step."""
    made = [one for place in state.recorded.places(state.step) if (one := _made(state, loss, place))]
    if not made:
        into.unseen.add(
            "the loss function: a step lacks the model's output, its gradient, or the targets (Watcher.targets)"
        )
        return
    ratios = sorted(r for one in made if (r := ratio(one.recorded.tensor, one.grad)) is not None)
    factor = ratios[len(ratios) // 2] if ratios else 1.0
    factor = 1.0 if abs(factor - 1) <= SCALE_TOLERANCE else factor
    into.factors[state.step] = factor
    for one in made:
        judged = _gradient(one, factor)
        into.checks.append(LocalCheck(state.step, one.place, Check(ROOT_GRADIENT, "", "backward", judged)))
    into.checks += _values(state, made)


def _made(state: RecordedStep, loss: Loss, place: Place) -> _Made | None:
    """Compute loss and gradient of a place; None where something was not recorded."""
    output = state.given(place, "activation", ROOT)
    targets = state.targets(place)
    if output is None or not targets:
        return None
    recorded = state.activation_gradient(place, ROOT_GRADIENT, 0, 1, tuple(output.shape))
    if not recorded or not output.is_floating_point():
        return None
    value, grad = _run(loss, output.clone(), targets)
    with carrying(state.parts):
        bounded_value, bounded = _run(loss, known(output), targets)
    if grad is None or bounded is None:
        return None
    return _Made(place, value, bounded_value, grad, bounded, recorded[0])


def _run(
    loss: Loss, output: torch.Tensor, targets: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    output = output.requires_grad_()
    value = loss(output, *targets)
    torch.autograd.backward(value)
    return value.detach(), output.grad


def _gradient(one: _Made, factor: float) -> Judged:
    """Return the judgement of a recorded gradient by `factor` times the computed one."""
    if factor == 1 and same_bits(one.grad, one.recorded.tensor):
        return Judged(Standing.EQUAL, elements=one.grad.numel())
    if not isinstance(one.bounded, Bounded):
        return Judged(Standing.UNCHECKED, why="no bound of its rounding is known")
    judged = within(factor * one.bounded.value, abs(factor) * one.bounded.error, one.recorded.tensor)
    return replace(judged, how=one.recorded.how)


def _values(state: RecordedStep, made: list[_Made]) -> list[LocalCheck]:
    """Check recorded losses, where each rank recorded one for each micro-batch."""
    found = []
    rows = state.recorded.rows(state.step, "forward", "scalar", LOSS)
    run = state.recorded.run
    for one in made:
        own = [row for row in rows if int(run["dp"][row]) == one.place[0]]
        first = [row for row in own if run["rank"][row] == run["rank"][own[0]]]
        if len(first) != len([m for m in made if m.place[0] == one.place[0]]):
            continue
        value = state.recorded.local(first[one.place[1]])
        if value is None:
            continue
        readings = [Reading(value.reshape(one.loss.shape))]
        judged, _ = judge(one.loss, readings)
        if judged.standing != Standing.EQUAL:
            judged, _ = judge(one.bounded_loss, readings)
        found.append(LocalCheck(state.step, one.place, Check(LOSS, "", "forward", judged)))
    return found
