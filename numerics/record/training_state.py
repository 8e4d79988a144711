"""What a watched trainer holds around a step, tensor by tensor: parameters, gradients, moments, random numbers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from numerics.record.batch_place import Layout
from numerics.record.placement import Placed
from numerics.record.wrapped_models import clean_name

Named = Iterator[tuple[str, Placed]]
"""Names of tensors, and where each lies."""


def parameters(model: nn.Module, layout: Layout) -> Named:
    """Yield the parameters."""
    for name, parameter in model.named_parameters():
        yield clean_name(name), layout.shared(parameter)


def gradients(model: nn.Module, layout: Layout) -> Named:
    """Yield the parameters' gradients, under the parameters' names."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield clean_name(name), layout.shared(parameter.grad)


def moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout
) -> Iterator[tuple[str, str, Placed]]:
    """Yield the optimiser's tensors: the parameter's name, the name of the state, and its place."""
    for name, parameter in model.named_parameters():
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor) and (value.dim() or value.numel() == 1):
                yield clean_name(name), key, layout.shared(value)


def on_added_gradients(model: nn.Module, layout: Layout, tell: Callable[[str, Placed], None]) -> list[Any]:
    """Let `tell` know what each backward adds to the gradient of each plain parameter; return the hooks' handles."""

    def hook_of(name: str) -> Callable[[torch.Tensor], None]:
        def hook(grad: torch.Tensor) -> None:
            at, own = layout.shared(grad), f"dp={layout.dp[0]}"
            tell(name, replace(at, partial=own if at.partial is None else f"{at.partial},{own}"))

        return hook

    return [
        parameter.register_hook(hook_of(clean_name(name)))  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not hasattr(parameter, "placements")
    ]


def random_states() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the states of this process's generators of random numbers, (bytes,) uint8: the CPU's and its device's."""
    yield "cpu", torch.get_rng_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield "cuda", torch.cuda.get_rng_state()
