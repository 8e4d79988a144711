"""Checks parameters' gradients: what each backward adds, and the sum that the optimiser sees."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from numerics.local.bounded import known
from numerics.local.forced_pass import Check
from numerics.local.gradient_copies import judge_copies
from numerics.local.judgement import Judged, Standing, judge
from numerics.local.learned_orders import LearnedOrders
from numerics.local.local_check import LocalCheck
from numerics.local.parameter_gradients import Scale, Sum, in_format, judge_gradient, solve_scale
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.relations import relation
from numerics.thresholds.comparison import LEAST_FITTED
from numerics.thresholds.local import NAMES_TRIED


def check_added(
    state: RecordedStep,
    place: Place,
    plain: Mapping[str, torch.Tensor],
    bounded: Mapping[str, torch.Tensor],
    sums: dict[str, Sum],
) -> list[LocalCheck]:
    """Check what one backward adds to each gradient, and put it into `sums`: as recorded, else as computed.

    `plain` and `bounded` are the gradients computed in the run's format, and with their bounds.
    """
    found = []
    for name, grad in bounded.items():
        readings = state.added_gradient(place, f"{name}.grad", tuple(grad.shape))
        total = sums.setdefault(name, Sum())
        if not readings:
            total.add(place, plain.get(name), grad)
            continue
        judged, recorded = Judged(Standing.BEYOND), None
        if name in plain:
            judged, recorded = judge(plain[name], readings)
        if judged.standing != Standing.EQUAL and not judged.lone:
            judged, recorded = judge(grad, readings)
        held = readings[0].tensor if recorded is None else recorded
        own = next((r.error for r in readings if r.tensor is held), None)
        total.add(place, held, known(held, own))
        if judged.standing == Standing.BEYOND and not judged.lone and name in plain:
            judged = replace(judged, relation=relation(held, plain[name]))
        judged = replace(judged, pair=None)
        found.append(
            LocalCheck(state.step, place, Check(f"{name}.grad", name.rpartition(".")[0], "backward", judged))
        )
    return found


def check_copies(state: RecordedStep) -> list[LocalCheck]:
    """Return a check for each parameter whose copies were equal, and were stepped by unequal gradients."""
    told = "ranks hold equal copies of the weight, and each steps its own by another gradient"
    return [
        LocalCheck(
            state.step,
            None,
            Check(f"{name}.grad", name.rpartition(".")[0], "reduce", Judged(Standing.BEYOND, relation=told)),
            ranks=ranks,
        )
        for name, p in state.model.named_parameters()
        if state.whole_copies(name, tuple(p.shape)) and (ranks := state.parted(name))
    ]


def check_gradients(
    state: RecordedStep,
    sums: Mapping[str, Sum],
    scales: dict[int, Scale],
    unseen: set[str],
    learned: LearnedOrders,
) -> list[LocalCheck]:
    """Check the parameters' gradients of a step, as the optimiser saw them."""
    recorded = {
        name: grad
        for name, total in sums.items()
        if (grad := state.gradient(f"{name}.grad", tuple(total.total.shape))) is not None
    }
    if not recorded:
        unseen.add(
            "gradients of parameters: none was recorded, or no module's output has a recorded gradient"
        )
        return []
    places = state.recorded.places(state.step)
    dp, micro = len({p[0] for p in places}), len({p[1] for p in places})
    sizes = {"dp": dp, "micro-batches": micro, "dp times micro-batches": dp * micro}
    common = {n: g for n, g in recorded.items() if not state.of_expert(n)} or recorded
    scale = solve_scale(sums, common, {n: s for n, s in sizes.items() if s > 1})
    scales[state.step] = scale
    found: list[LocalCheck] = []
    tried = 0
    for name, grad in recorded.items():
        judged, ranks = _judged(state, name, grad, sums[name], scale, learned)
        if judged.standing == Standing.BEYOND and tried < NAMES_TRIED and not (ranks or judged.format):
            tried += 1
            judged = replace(judged, relation=_another(grad, name, sums, scale))
        check = Check(f"{name}.grad", name.rpartition(".")[0], "reduce", judged)
        found.append(LocalCheck(state.step, None, check, ranks=ranks))
    return found


def _judged(
    state: RecordedStep, name: str, grad: torch.Tensor, total: Sum, scale: Scale, learned: LearnedOrders
) -> tuple[Judged, tuple[int, ...]]:
    """Return how one reduced gradient stands, and the ranks whose copies are wrong where copies are unequal."""
    copies = state.gradient_copies(f"{name}.grad", tuple(grad.shape))
    if copies:
        return judge_copies(copies, total, scale, learned)
    judged = judge_gradient(grad, total, scale, learned)
    narrow = state.narrow_format if judged.standing == Standing.BEYOND else None
    return (judged if narrow is None else in_format(judged, grad, total, scale, narrow)), ()


def _another(grad: torch.Tensor, name: str, sums: Mapping[str, Sum], scale: Scale) -> str:
    """Return which other parameter's gradient a wrong one is; empty where none or several fit."""
    if grad.numel() < LEAST_FITTED:
        return ""
    fits = [
        other
        for other, total in sums.items()
        if other != name
        and total.total.shape == grad.shape
        and judge_gradient(grad, total, scale, LearnedOrders()).standing in {Standing.EQUAL, Standing.WITHIN}
    ]
    return f"equals the gradient of {fits[0]}" if len(fits) == 1 else ""
