"""One forward and backward of a data-parallel rank and micro-batch on recorded values, and what it leaves behind."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from numerics.local.bounds.bounded import known
from numerics.local.draws.dropout_masks import DropoutMasks, Dropped
from numerics.local.draws.generator_use import GeneratorUse
from numerics.local.forced_pass import ROOT_GRADIENT, Check, ForcedPass
from numerics.local.model_inputs import model_inputs
from numerics.local.places.rank_positions import LocalPositions
from numerics.local.places.recomputation import without_recomputation
from numerics.local.recorded_step import Place, RecordedStep
from numerics.record.training_state import whole
from numerics.thresholds.local import ERROR_SHOWN
from tracekit.errors import InputError

Tensors = dict[str, torch.Tensor]
"""Tensors by the names of parameters."""


@dataclass(frozen=True)
class PlaceWalk:
    """One forward and backward: checks, gradients, masks, and the unjudged modules that drew in their own code.

    `chance` is the decimal logarithm of the chance that another state of the generator gives these the same.
    """

    checks: list[Check]
    grads: Tensors
    dropped: list[Dropped]
    drawing: set[str]
    chance: float


def walked(
    state: RecordedStep,
    place: Place,
    held: Tensors,
    drawn: torch.Tensor | None,
    *,
    bounds: bool,
    counts: bool = False,
    positions: LocalPositions | None = None,
) -> PlaceWalk:
    """Run forward and backward of one place on recorded values.

    `drawn` is the state of the generator of random numbers from which the run's forward drew. `positions` gives the
    model positions that begin again on each rank.
    """
    values = {
        name: (known(v) if bounds else v.clone()).requires_grad_(v.is_floating_point())
        for name, v in held.items()
    }
    asked = partial(state.activation, place)
    walk = ForcedPass(asked, partial(state.activation_gradient, place), bounds=bounds)
    masks = DropoutMasks(lambda name, call, shape: asked(name, call, call + 1, shape))
    use = GeneratorUse(counts=counts)
    args, kwargs = model_inputs(state, place)
    with ExitStack() as around:
        around.enter_context(torch.random.fork_rng(devices=[]))
        around.enter_context(state.casting(place))
        around.enter_context(state.modes(place))
        around.enter_context(without_recomputation())
        if drawn is not None:
            torch.set_rng_state(drawn)
        if not bounds:
            around.enter_context(use.on(state.model))
        around.enter_context(masks.on(state.model))
        buffers = state.buffers(place)
        if positions is not None:
            buffers = positions.tables(buffers)
            around.enter_context(positions.within({**values, **buffers}))
        walk.run(state.model, {**values, **buffers}, args, kwargs)
    return _walk_of(walk, values, masks, use)


def _walk_of(walk: ForcedPass, values: Tensors, masks: DropoutMasks, use: GeneratorUse) -> PlaceWalk:
    """Return what a forced pass with these weights left behind."""
    grads = {name: whole(v.grad) for name, v in values.items() if v.grad is not None}
    checks = [c for c in walk.checks if c.tensor != ROOT_GRADIENT]
    drawing = use.drawing - masks.judged
    return PlaceWalk(
        checks, grads, masks.found, drawing, sum(use.chances.get(name, 0.0) for name in sorted(drawing))
    )


def plainly(
    state: RecordedStep, place: Place, held: Tensors, drawn: torch.Tensor | None, *, counts: bool = False
) -> PlaceWalk:
    """Run one place in the run's formats. InputError where the model cannot run on what was recorded."""
    try:
        return walked(state, place, held, drawn, bounds=False, counts=counts)
    except InputError:
        raise
    except Exception as error:  # the user's model may raise anything
        error_text = f"{type(error).__name__}: {str(error)[:ERROR_SHOWN]}"
        raise InputError(
            f"{state.recorded.run.capture.folder}: the built model cannot run on what step {state.step} recorded "
            f"({error_text}); build it as it is trained: the same modules and names, formats of weights, and arguments"
        ) from error
