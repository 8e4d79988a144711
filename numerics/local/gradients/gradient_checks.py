"""Checks parameters' gradients: what each backward adds, and the sum that the optimiser sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from numerics.local.bounds.bounded import known
from numerics.local.forced_pass import Check
from numerics.local.gradients.cleared_gradients import cleared_doubts, not_cleared
from numerics.local.gradients.learned_orders import LearnedOrders
from numerics.local.gradients.parameter_gradients import (
    Scale,
    Sum,
    another_gradient,
    in_format,
    judge_gradient,
    judge_in_weights,
    solve_scale,
)
from numerics.local.gradients.rank_factors import factors_by_rank, factors_of_shares, judge_copies
from numerics.local.gradients.reduced_groups import OTHERS, UNSUMMED, summed_with_others, unsummed_axis
from numerics.local.gradients.taken_gradients import (
    by_model,
    is_hooked,
    left_open,
    model_hooks,
    through_hooks,
    why_changed,
)
from numerics.local.gradients.tied_copies import lacking_terms
from numerics.local.judgement import Judged, Standing, judge
from numerics.local.local_check import Doubt, LocalCheck
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.relations import relation
from numerics.thresholds.comparison import LEAST_FITTED
from numerics.thresholds.local import NAMES_TRIED, SCALE_TOLERANCE


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
    found, hooks = list[LocalCheck](), model_hooks(state)
    for name, grad in bounded.items():
        readings = state.added_gradient(place, f"{name}.grad", tuple(grad.shape))
        total = sums.setdefault(name, Sum())
        if not readings:
            total.add(place, plain.get(name), grad)
            continue
        computed = through_hooks(plain.get(name), hooks.get(name, ()))
        judged, recorded = Judged(Standing.BEYOND, differ=readings[0].tensor.numel()), None
        if computed is not None:
            judged, recorded = judge(computed, readings)
        if judged.standing != Standing.EQUAL and not judged.lone and name not in hooks:
            judged, recorded = judge(grad, readings)
        held = readings[0].tensor if recorded is None else recorded
        own = next((r.error for r in readings if r.tensor is held), None)
        total.add(place, held, known(held, own))
        if judged.standing == Standing.BEYOND and not judged.lone and computed is not None:
            judged = replace(judged, relation=relation(held, computed))
        judged = replace(judged, pair=None)
        one = LocalCheck(
            state.step, place, Check(f"{name}.grad", name.rpartition(".")[0], "backward", judged)
        )
        found.append(by_model(one) if name in hooks else one)
    return found


def check_copies(state: RecordedStep) -> list[LocalCheck]:
    """Return a check for each parameter with equal copies that were stepped by unequal gradients."""
    unequal = "ranks hold equal copies of the weight, and each steps its own by another gradient"
    return [
        LocalCheck(
            state.step,
            None,
            Check(
                f"{name}.grad", name.rpartition(".")[0], "reduce", Judged(Standing.BEYOND, relation=unequal)
            ),
            ranks=ranks,
        )
        for name, p in state.model.named_parameters()
        if state.whole_copies(name, tuple(p.shape)) and (ranks := state.parted(name))
    ]


@dataclass
class Reduced:
    """What was found of reduced gradients: factors by step, what was not seen, doubts, and what they were in words.

    `norms` are those of all gradients together by step, as the optimiser saw them.
    """

    scales: dict[int, Scale] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    doubts: list[Doubt] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    norms: dict[int, float] = field(default_factory=dict)
    learned: LearnedOrders = field(default_factory=LearnedOrders)


def check_gradients(state: RecordedStep, sums: Mapping[str, Sum], into: Reduced) -> list[LocalCheck]:
    """Check the parameters' gradients of a step, as the optimiser saw them."""
    recorded = {
        name: grad
        for name, total in sums.items()
        if (grad := state.gradient(f"{name}.grad", tuple(total.total.shape))) is not None
    }
    if not recorded:
        skipped = sums and any(state.recorded.names(s, "reduce", "param_grad") for s in state.recorded.steps)
        into.unseen.add(
            "gradients of skipped updates: in some steps none reached the optimiser"
            if skipped
            else "gradients of parameters: none was recorded, or no module's output has a recorded gradient"
        )
        return []
    into.doubts += (
        []
        if into.doubts
        else _without_gradient(state, sums, recorded) + cleared_doubts(state, sums, recorded)
    )
    into.norms[state.step] = float(torch.stack([g.double().norm() for g in recorded.values()]).norm())
    scale = _scale_of(state, sums, recorded)
    found = _all_judged(state, sums, recorded, scale, into.learned)
    found = [left_open(one, why_changed(state, one.check.tensor.removesuffix(".grad"))) for one in found]
    if any(one.check.judged.standing == Standing.BEYOND for one in found):
        clipped = _by_value(state, sums, recorded, into)
        if clipped is not None:
            return clipped
        found = _explained(state, sums, recorded, scale, into, found)
    into.scales[state.step] = scale
    return found


def _scale_of(state: RecordedStep, sums: Mapping[str, Sum], recorded: Mapping[str, torch.Tensor]) -> Scale:
    """Return the factor from sums to recorded gradients; those of experts follow other ranks' tokens."""
    places = state.recorded.places(state.step)
    dp, micro = len({p[0] for p in places}), len({p[1] for p in places})
    sizes = {"dp": dp, "micro-batches": micro, "dp times micro-batches": dp * micro}
    plain = {n: g for n, g in recorded.items() if not is_hooked(state, n)} or recorded
    common = {n: g for n, g in plain.items() if not state.of_expert(n)} or plain
    return solve_scale(sums, common, {n: s for n, s in sizes.items() if s > 1})


def _all_judged(
    state: RecordedStep,
    sums: Mapping[str, Sum],
    recorded: Mapping[str, torch.Tensor],
    scale: Scale,
    learned: LearnedOrders,
) -> list[LocalCheck]:
    """Return the judgement of each gradient against the scaled sum of what the backwards added."""
    found: list[LocalCheck] = []
    tried = 0
    for name, grad in recorded.items():
        judged, ranks = _judged(state, name, grad, sums[name], scale, learned)
        if judged.standing == Standing.BEYOND and tried < NAMES_TRIED and not (ranks or judged.format):
            tried += 1
            judged = replace(judged, relation=another_gradient(grad, name, sums, scale))
            words, ends = ("", ()) if judged.relation else lacking_terms(state, name, grad, sums[name], scale)
            if words:
                judged, ranks = replace(judged, how=words, factors=None), ends
        check = Check(f"{name}.grad", name.rpartition(".")[0], "reduce", judged)
        found.append(LocalCheck(state.step, None, check, ranks=ranks))
    return found


def _without_gradient(
    state: RecordedStep, sums: Mapping[str, Sum], recorded: Mapping[str, torch.Tensor]
) -> list[Doubt]:
    """Return a doubt where a trainable parameter's gradient never reaches the optimiser, and others' do."""
    frozen = {name for name, p in state.model.named_parameters() if not p.requires_grad}
    missing = [n for n in sums if n not in recorded and n not in frozen and bool(sums[n].total.any())]
    steps = state.recorded.steps if missing else []
    own = {name for step in steps for name in state.recorded.names(step, "reduce", "param_grad")}
    lost = [name for name in missing if f"{name}.grad" not in own]
    if not lost:
        return []
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return [
        Doubt(
            f"{lost[0]}{more} gets a gradient from the loss, and none reached the optimiser in any step: frozen",
            "if that is intended, freeze it in the function given by --model as well (`requires_grad_(False)`)",
        )
    ]


def _by_value(
    state: RecordedStep, sums: Mapping[str, Sum], recorded: Mapping[str, torch.Tensor], into: Reduced
) -> list[LocalCheck] | None:
    """Return the checks of gradients that were clipped by value; None where no one limit explains them all.

    Elements at the limit must have been at least as large, with the same sign; the rest is judged as usual.
    """
    limit = max(float(grad.abs().max()) for grad in recorded.values() if grad.numel())
    at = {name: grad.abs() == limit for name, grad in recorded.items()}
    if sum(int(mask.sum()) for mask in at.values()) < LEAST_FITTED:
        return None
    free = {name: total.without(at[name]) for name, total in sums.items() if name in recorded}
    rest = {name: grad.masked_fill(at[name], 0) for name, grad in recorded.items()}
    scale = _scale_of(state, free, rest)
    for name, mask in at.items():
        right = scale.factor * sums[name].total[mask] * recorded[name][mask].sign()
        if bool((right < limit * (1 - SCALE_TOLERANCE)).any()) or state.gradient_copies(
            f"{name}.grad", tuple(mask.shape)
        ):
            return None
    found = _all_judged(state, free, rest, scale, into.learned)
    if any(one.check.judged.standing == Standing.BEYOND for one in found):
        return None
    into.scales[state.step] = scale
    into.remarks.append(f"gradients: clipped by value, at {limit:.6g} in step {state.step}")
    return found


def _explained(
    state: RecordedStep,
    sums: Mapping[str, Sum],
    recorded: Mapping[str, torch.Tensor],
    scale: Scale,
    into: Reduced,
    found: list[LocalCheck],
) -> list[LocalCheck]:
    """Return the checks with one relation for all that are wrong: factors of ranks, or a step that was not cleared."""
    wrong = [n for n, one in enumerate(found) if one.check.judged.standing == Standing.BEYOND]
    names = [found[n].check.tensor.removesuffix(".grad") for n in wrong]
    words, axis = _wrong_group(state, sums, recorded, scale, [found[n] for n in wrong])
    if not words and len(wrong) == 1 and len(found) > 1:
        return found
    words, ranks = (words, ()) if words else factors_by_rank(state, sums)
    if not words:
        words = not_cleared(state, sums, recorded, into.scales, names) or factors_of_shares(
            recorded, sums, scale
        )
    if not words:
        return found
    made = list(found)
    for n in wrong:
        judged = replace(found[n].check.judged, how=words, factors=None, relation="", lone="")
        made[n] = replace(found[n], check=replace(found[n].check, judged=judged), ranks=ranks, axis=axis)
    return made


def _wrong_group(
    state: RecordedStep,
    sums: Mapping[str, Sum],
    recorded: Mapping[str, torch.Tensor],
    scale: Scale,
    wrong: Sequence[LocalCheck],
) -> tuple[str, str | None]:
    """Return in words over which wrong group of ranks gradients were summed, and its axis; "", None else."""
    if any(one.check.judged.relation for one in wrong):
        return "", None
    names = [one.check.tensor.removesuffix(".grad") for one in wrong]
    axis = unsummed_axis(state, {name: recorded[name] for name in names})
    if axis is not None:
        return UNSUMMED.format(axis), axis
    if any(one.check.judged.how for one in wrong):  # by the shares of data-parallel ranks
        return "", None
    return (OTHERS, "dp") if summed_with_others(state, recorded, sums, scale, names) else ("", None)


def _judged(
    state: RecordedStep, name: str, grad: torch.Tensor, total: Sum, scale: Scale, learned: LearnedOrders
) -> tuple[Judged, tuple[int, ...]]:
    """Return the judgement of one reduced gradient, and the ranks with wrong copies if copies are unequal."""
    copies = state.gradient_copies(f"{name}.grad", tuple(grad.shape))
    if copies:
        return judge_copies(copies, total, scale, learned)
    weight = state.parameter(name, tuple(grad.shape))
    judged = judge_gradient(grad, total, scale, learned)
    if judged.standing == Standing.BEYOND and weight is not None:
        judged = judge_in_weights(judged, grad, total, scale, learned, weight.dtype)
    narrow = state.narrow_format if judged.standing == Standing.BEYOND else None
    return (judged if narrow is None else in_format(judged, grad, total, scale, narrow)), ()
