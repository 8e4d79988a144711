"""How a run's loss weighs its positions if no loss function is given: reported, or doubted if it is not a mean."""

from dataclasses import dataclass, field, replace
from typing import Final

import torch

from numerics.local.gradients.parameter_gradients import Scale
from numerics.local.local_check import Doubt
from numerics.local.losses.loss_input import loss_input
from numerics.local.losses.padding import Inputs, several_sequences
from numerics.local.losses.token_weights import (
    Part,
    Weights,
    divisor,
    masked_positions,
    unequal_shares,
    weights_of,
)
from numerics.local.model_inputs import model_inputs
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.recorded import RecordedRun
from numerics.record.call_arguments import named_tensors
from tracekit.errors import InputError

ATTENTION_MASK: Final = "in.attention_mask"
"""What models of Hugging Face's manner are called with: 1 for words, 0 for padding."""

SETTLED: Final = (
    "if that is intended, let the function given by --model return the loss function too (model, optimiser, loss), and "
    "call `watcher.targets(...)` where the loss is computed: the loss is then repeated"
)


@dataclass
class LossWeights:
    """What was read from the positions' weights, in words, and the doubts about it; the first step with each."""

    remarks: list[str] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)


def weights_by_place(state: RecordedStep) -> dict[Place, Weights]:
    """Return what positions count in the loss by place, where that is a cross entropy of the output."""
    places = state.recorded.places(state.step)
    return {place: one for place in places if (one := _of_place(state, place)) is not None}


def read_weights(
    state: RecordedStep, scale: Scale | None, read: dict[Place, Weights], into: LossWeights
) -> None:
    """Add how much the positions of a step count in its loss, if that is a cross entropy of the model's output.

    `read` are their weights by place, `scale` is the factor from the sums of gradients to the gradients at the
    optimiser; None if it is not known.
    """
    places = state.recorded.places(state.step)
    counted = {place: one for place, one in read.items() if one.count}
    if not counted or len(read) < len(places):
        return
    doubts = [_masked(state, counted)]
    held = (parts_of(state.recorded, state.step, place, one) for place, one in counted.items())
    parts = dict(part for own in held for part in own)
    alike = all(one.alike for one in parts.values())
    if alike:
        unequal = unequal_shares(parts)
        doubts += [divisor(read, _factors(state, scale)) if unequal is None else unequal.text]
    if not into.remarks:
        into.remarks.append(_in_words(state.step, read, alike=alike))
    if not into.doubts:
        into.doubts += [
            Doubt(f"in step {state.step}, {text}", SETTLED, of_loss=True) for text in doubts if text
        ]


def weights_of_positions(
    state: RecordedStep, scale: Scale | None, read: dict[Place, Weights]
) -> torch.Tensor | None:
    """Return how much each position that counts does so in the gradients that the optimiser saw, sorted, float64.

    `scale` is the factor from the sums of gradients to these. None where it may be that of clipping, or where some
    weights are not known.
    """
    if scale is None or scale.fitted or len(read) < len(state.recorded.places(state.step)):
        return None
    counted = [one.rows[one.rows != 0] for one in read.values()]
    found = torch.cat(counted) * scale.factor
    return found.sort().values if bool(found.isfinite().all()) else None


def parts_of(recorded: RecordedRun, step: int, place: Place, weights: Weights) -> list[tuple[Part, Weights]]:
    """Return the weights of the positions that each rank holds of a place's sequences, where ranks hold pieces."""
    cut = recorded.sequence_cut(step, place)
    if cut is None or weights.rows.dim() <= cut.dim or weights.rows.shape[cut.dim] != cut.length:
        return [((*place, 0), weights)]
    pieces = {tuple(held.tolist()): held for _, held in sorted(cut.pieces.items())}
    parts = [weights.rows.index_select(cut.dim, held) for held in pieces.values()]
    counted = [((*place, n), replace(weights, rows=rows)) for n, rows in enumerate(parts)]
    return [(part, one) for part, one in counted if one.count]


def _of_place(state: RecordedStep, place: Place) -> Weights | None:
    name = loss_input(state.recorded, state.step)
    logits = state.given(place, "activation", name)
    if logits is None:
        return None
    readings = state.activation_gradient(place, f"{name}.grad", 0, 1, tuple(logits.shape))
    return weights_of(logits, readings[0].tensor) if readings else None


def _factors(state: RecordedStep, scale: Scale | None) -> list[float]:
    """Return the factors from the sums of gradients to the optimiser's: the one solved for, or where clipped, any."""
    if scale is None:
        return []
    if not scale.fitted:
        return [scale.factor]
    places = state.recorded.places(state.step)
    ranks, micro_batches = len({p[0] for p in places}), len({p[1] for p in places})
    return [1.0, 1 / ranks, 1 / micro_batches, 1 / (ranks * micro_batches)]


def _masked(state: RecordedStep, counted: dict[Place, Weights]) -> str:
    """Return in words that positions count which the attention mask leaves out; else ""."""
    alone = [place for place in counted if not several_sequences(inputs_of(state, place))]
    masks = {place: state.given(place, "input", ATTENTION_MASK) for place in alone}
    found = {p: masked_positions(counted[p], mask) for p, mask in masks.items() if mask is not None}
    number = sum(found.values())
    word = ATTENTION_MASK.removeprefix("in.")
    return f"{number} positions that {word} leaves out count in the loss" if number else ""


def inputs_of(state: RecordedStep, place: Place) -> Inputs:
    """Return the tensors that a place's model was called with; none where that was not recorded."""
    try:
        args, kwargs = model_inputs(state, place)
    except InputError:
        return {}
    return named_tensors(args, kwargs)


def _in_words(step: int, read: dict[Place, Weights], *, alike: bool) -> str:
    counted, every = sum(one.count for one in read.values()), sum(one.rows.numel() for one in read.values())
    how = (
        "equally in their micro-batch"
        if alike
        else "unequally in their micro-batch (weights, or means of means)"
    )
    return f"the loss: a cross entropy; in step {step} {counted} of {every} positions count, {how}"
