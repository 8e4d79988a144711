"""Whether the values at positions of padding reach a model's other outputs: they are changed, and the model runs again.

The change is made to the embeddings of words, not to their ids, from which models make masks of their own.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from numerics.local.losses.padding import Padding
from numerics.local.model_inputs import model_inputs
from numerics.local.recorded_step import Place, RecordedStep
from numerics.record.wrapped_models import first_tensor


def reaches_others(state: RecordedStep, place: Place, padding: Padding) -> bool | None:
    """Return whether an output beside padding changes with it; of outputs without positions, whether any does.

    None where no layer `nn.Embedding` looks the ids up, or the model cannot run so.
    """
    before, _ = _output(state, place, padding, change=False)
    after, changed = _output(state, place, padding, change=True)
    if not changed or before is None or after is None or before.shape != after.shape:
        return None
    if before.shape[:2] != padding.at.shape:
        return not torch.equal(before, after)
    return not torch.equal(before[~padding.at], after[~padding.at])


def _output(
    state: RecordedStep, place: Place, padding: Padding, *, change: bool
) -> tuple[torch.Tensor | None, bool]:
    """Return the model's output on recorded weights and inputs, and whether embeddings of padding were changed.

    The output is None where the model cannot run so.
    """
    shapes = {name: tuple(p.shape) for name, p in state.model.named_parameters()}
    held = {name: state.computed_with(name, shape) for name, shape in shapes.items()}
    weights = {name: weight for name, weight in held.items() if weight is not None}
    drawn, done = state.random_state(place), []

    def changed(_layer: nn.Module, given: tuple[Any, ...], out: torch.Tensor) -> torch.Tensor | None:
        if not given or given[0].shape != padding.ids.shape or not torch.equal(given[0], padding.ids):
            return None
        done.append(True)
        other = out.flip(-1) * -2 + torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
        return out.where(~padding.at[..., None], other)

    args, kwargs = model_inputs(state, place)
    with ExitStack() as around:
        around.enter_context(torch.no_grad())
        around.enter_context(torch.random.fork_rng(devices=[]))
        around.enter_context(state.casting(place))
        around.enter_context(state.modes(place))
        if drawn is not None:
            torch.set_rng_state(drawn)
        for layer in state.model.modules() if change else ():
            if isinstance(layer, nn.Embedding):
                around.callback(layer.register_forward_hook(changed).remove)
        try:
            out = torch.func.functional_call(state.model, weights, tuple(args), kwargs)
        except Exception:  # noqa: BLE001 - the user's model may raise anything; the proof says if it cannot run
            return None, False
    return first_tensor(out), bool(done)
