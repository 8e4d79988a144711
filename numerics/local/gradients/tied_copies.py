"""Tied weights with a copy on each end of a pipeline: copies that begin unequal, gradients that lack an end's terms."""

import torch

from numerics.local.bounds.bounded import unit
from numerics.local.forced_pass import Check
from numerics.local.gradients.parameter_gradients import Scale, Sum
from numerics.local.judgement import Judged, Standing, within
from numerics.local.local_check import LocalCheck
from numerics.local.recorded_step import Place, RecordedStep
from numerics.thresholds.local import FUNCTION_ROUNDINGS


def check_ties(state: RecordedStep) -> list[LocalCheck]:
    """Return a check for each copy of a tied weight that begins the first step apart from the weight.

    Later steps follow from gradients and updates, which are checked for each copy.
    """
    found = []
    for name, p in state.model.named_parameters() if state.step == state.recorded.steps[0] else ():
        for other in state.ties.get(name, ()):
            weight, copy = (state.parameter(one, tuple(p.shape)) for one in (name, other))
            if weight is None or copy is None:
                continue
            error = FUNCTION_ROUNDINGS * unit(weight.dtype) * weight.double().abs()
            if within(weight.double(), error, copy).standing != Standing.BEYOND:
                continue
            words = f"the model shares this weight with {name}, and the run begins with unequal copies of it"
            rows = state.recorded.rows(*state.before, "param", other)
            ranks = tuple(sorted({int(state.recorded.run["rank"][row]) for row in rows}))
            judged = Judged(Standing.BEYOND, relation=words)
            check = Check(other, other.rpartition(".")[0], "forward", judged)
            found.append(LocalCheck(state.step, None, check, ranks=ranks))
    return found


def lacking_terms(
    state: RecordedStep, name: str, grad: torch.Tensor, total: Sum, scale: Scale
) -> tuple[str, tuple[int, ...]]:
    """Return in words that a tied weight's reduced gradient holds the terms of one of its copies alone; else "".

    The ranks that hold it follow if others hold the other copy, as the ends of a pipeline do; else none.
    """
    names, shape = (name, *state.ties.get(name, ())), tuple(grad.shape)
    for own in names if len(names) > 1 else ():
        each = [_added(state, place, f"{own}.grad", shape) for place in total.value]
        terms = [one.double() for one in each if one is not None]
        size = torch.stack(terms).abs().sum(0) if len(terms) == len(each) else torch.zeros(shape)
        due = scale.factor * torch.stack(terms).sum(0) if bool(size.any()) else None
        error = abs(scale.factor) * (len(each) + FUNCTION_ROUNDINGS) * unit(grad.dtype) * size
        if due is None or within(due, error, grad).standing == Standing.BEYOND:
            continue
        other = next(one for one in names if one != own)
        held, elsewhere = (_ranks(state, one) for one in (name, other if own == name else own))
        at = ", ".join(map(str, sorted(elsewhere)))
        words = f"it holds the terms of {own} alone, and its copy {other} (rank {at}) has others: they were not summed"
        return words, () if held & elsewhere else tuple(sorted(held))
    return "", ()


def _ranks(state: RecordedStep, name: str) -> set[int]:
    rows = state.recorded.rows(state.step, "reduce", "param_grad", f"{name}.grad")
    return {int(state.recorded.run["rank"][row]) for row in rows}


def _added(state: RecordedStep, place: Place, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return what a place's backward added to a gradient under one name; None if it was not recorded."""
    rows = state.recorded.of_place(
        state.recorded.rows(state.step, "backward", "param_grad_local", name), place
    )
    found = state.recorded.whole(rows, shape, batch=False)
    return found[0].tensor if found else None
