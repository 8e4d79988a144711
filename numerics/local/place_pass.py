"""The modules of one data-parallel rank and micro-batch, judged twice: in the run's formats, and with bounds."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from numerics.local.bounded import Bounded, carrying, known
from numerics.local.dropout_masks import DropoutMasks, Dropped
from numerics.local.forced_pass import ROOT_GRADIENT, Check, ForcedPass
from numerics.local.generator_use import GeneratorUse
from numerics.local.judgement import Standing
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.relations import relation
from numerics.thresholds.local import ERROR_SHOWN, OTHER_SEED
from tracekit.errors import InputError

Tensors = dict[str, torch.Tensor]
"""Tensors by the names of parameters."""

_OTHER_DRAWS = "it holds random numbers that the recorded state of the generator does not give"


@dataclass(frozen=True)
class PlacePass:
    """What was judged of a place: its checks, and the parameters' gradients in the run's formats and with bounds.

    `unbounded` are outputs of which no bound is known, `unseen` is what could not be judged, in words. `dropped` are
    the masks of dropout layers. `draws` says that the forward drew, in code beside these, the numbers that the recorded
    state of the generator gives: None where unasked.
    """

    checks: list[Check]
    plain: Tensors
    grads: Tensors
    unbounded: set[str]
    unseen: set[str] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)
    draws: bool | None = None


@dataclass(frozen=True)
class _Walk:
    """One forward and backward: checks, gradients, masks, and the modules whose own code drew random numbers."""

    checks: list[Check]
    grads: Tensors
    dropped: list[Dropped]
    drawing: set[str]


def judged_place(state: RecordedStep, place: Place, held: Tensors, *, repeated: bool) -> PlacePass:
    """Return what is judged of a place with the weights `held`; `repeated` asks what it drew, though nothing is wrong.

    What code beside dropout layers drew is left open where no output shows that the recorded generator gave it.
    """
    drawn = state.random_state(place)
    exact = _plainly(state, place, held, drawn)
    found = _with_bounds(state, place, held, exact, draws=drawn is not None)
    wrong = {c.tensor for c in found.checks if c.judged.standing == Standing.BEYOND}
    unshown = exact.drawing - {one.module for one in exact.dropped}
    if drawn is None or not unshown or not (repeated or wrong):
        return found
    blind = _with_bounds(state, place, held, exact, draws=False)
    touched = blind.unbounded - found.unbounded
    if touched & _right(found.checks) or _changed(state, place, held, exact):
        return replace(found, draws=True)
    others = (other for other in state.recorded.places(state.step) if other != place)
    if not touched or any(_draws_as_recorded(state, other, held, touched) for other in others):
        return replace(found, draws=False)
    told = [
        replace(c, judged=replace(c.judged, why=_OTHER_DRAWS))
        if c.tensor in wrong and c.judged.standing == Standing.UNCHECKED
        else c
        for c in blind.checks
    ]
    return replace(blind, checks=told, draws=False)


def _right(checks: list[Check]) -> set[str]:
    """Return the outputs that are what was computed, in bits or within their bound."""
    return {c.tensor for c in checks if c.phase == "forward" and c.judged.standing <= Standing.WITHIN}


def _changed(state: RecordedStep, place: Place, held: Tensors, exact: _Walk) -> bool:
    """Return whether an output that is right in bits is so no longer where the generator starts from another state."""
    equal = {c.tensor for c in exact.checks if c.judged.standing == Standing.EQUAL}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(OTHER_SEED)
        other = torch.get_rng_state()
    checks = _plainly(state, place, held, other).checks
    return any(
        c.phase == "forward" and c.tensor in equal and c.judged.standing == Standing.BEYOND for c in checks
    )


def _draws_as_recorded(state: RecordedStep, place: Place, held: Tensors, touched: set[str]) -> bool:
    """Return whether a place's recorded state of the generator gives one of its `touched` outputs in every bit."""
    drawn = state.random_state(place)
    if drawn is None:
        return False
    checks = _plainly(state, place, held, drawn).checks
    return any(c.tensor in touched and c.judged.standing == Standing.EQUAL for c in checks)


def _with_bounds(state: RecordedStep, place: Place, held: Tensors, exact: _Walk, *, draws: bool) -> PlacePass:
    """Return the better of the checks in the run's formats and of those with bounds."""
    unseen: set[str] = set()
    with carrying(state.parts, draws=draws) as carried:
        try:
            walk = _walked(state, place, held, state.random_state(place), bounds=True)
            bounds, grads = walk.checks, walk.grads
        except Exception as error:  # noqa: BLE001 - the model ran on plain tensors: the bounds cannot follow it
            told = f"{type(error).__name__}: {str(error)[:ERROR_SHOWN]}"
            unseen.add(f"rounding: no bound follows this model ({told})")
            bounds, grads = _without_bounds(exact)
    unseen |= {f"an operator without a bound: {name}" for name in carried.without_rule}
    best = (
        [_related(_better(a, b), a) for a, b in zip(exact.checks, bounds, strict=True)]
        if len(exact.checks) == len(bounds)
        else bounds
    )
    unbounded = {c.tensor for c in bounds if c.phase == "forward" and c.judged.standing == Standing.UNCHECKED}
    return PlacePass(best, exact.grads, grads, unbounded, unseen, exact.dropped)


def _without_bounds(exact: _Walk) -> tuple[list[Check], Tensors]:
    """Return checks and gradients of which no bound is known: what is not equal in bits may be rounding or not."""
    why = "no bound of its rounding is known"
    judged = [
        replace(c, judged=replace(c.judged, standing=Standing.UNCHECKED, why=why))
        if c.judged.standing == Standing.BEYOND
        else c
        for c in exact.checks
    ]
    return judged, {
        name: Bounded(g, torch.full_like(g.double(), torch.inf), g.dtype) for name, g in exact.grads.items()
    }


def _better(exact: Check, bound: Check) -> Check:
    """Return the check that says more; a lone element is never rounding, whatever its bound allows."""
    if exact.judged.standing in {Standing.EQUAL, Standing.UNCHECKED} or exact.judged.lone:
        return exact
    return bound


def _related(found: Check, exact: Check) -> Check:
    """Return a check beyond its bound with the relation of the recorded tensor to the one computed in its format."""
    pair = exact.judged.pair
    told = found.judged.standing == Standing.BEYOND and pair is not None and not found.judged.lone
    words = relation(*pair) if told and pair is not None else ""
    return replace(found, judged=replace(found.judged, relation=words, pair=None))


def _walked(
    state: RecordedStep, place: Place, held: Tensors, drawn: torch.Tensor | None, *, bounds: bool
) -> _Walk:
    """Run forward and backward of one place on recorded values.

    `drawn` is the state of the generator of random numbers from which the run's forward drew.
    """
    values = {
        name: (known(v) if bounds else v.clone()).requires_grad_(v.is_floating_point())
        for name, v in held.items()
    }
    asked = partial(state.activation, place)
    walk = ForcedPass(asked, partial(state.activation_gradient, place), bounds=bounds)
    masks, use = DropoutMasks(lambda name, call, shape: asked(name, call, call + 1, shape)), GeneratorUse()
    args, kwargs = state.inputs(place)
    with ExitStack() as around:
        around.enter_context(torch.random.fork_rng(devices=[]))
        around.enter_context(state.casting(place))
        if drawn is not None:
            torch.set_rng_state(drawn)
        if not bounds:
            around.enter_context(use.on(state.model))
        around.enter_context(masks.on(state.model))
        walk.run(state.model, values, args, kwargs)
    grads = {name: v.grad for name, v in values.items() if v.grad is not None}
    checks = [c for c in walk.checks if c.tensor != ROOT_GRADIENT]
    return _Walk(checks, grads, masks.found, use.drawing)


def _plainly(state: RecordedStep, place: Place, held: Tensors, drawn: torch.Tensor | None) -> _Walk:
    """Run one place in the run's formats. InputError where the model cannot run on what was recorded."""
    try:
        return _walked(state, place, held, drawn, bounds=False)
    except InputError:
        raise
    except Exception as error:  # the user's model may raise anything
        told = f"{type(error).__name__}: {str(error)[:ERROR_SHOWN]}"
        raise InputError(
            f"{state.recorded.run.capture.folder}: the built model cannot run on what step {state.step} recorded "
            f"({told}); build it as it is trained: the same modules and names, formats of weights, and arguments"
        ) from error
