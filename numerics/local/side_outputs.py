"""Tensors that a forward leaves beside the model's output: auxiliary losses of experts, logits kept for another loss.

A trainer that adds them to its loss sends gradients into the model which no recorded gradient of an output shows.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from numerics.record.wrapped_models import clean_name, first_tensor

_OUTPUT: Final = "an output"
"""Start of the name of what a model returns."""


def tensors_beside(model: nn.Module, output: Any) -> dict[str, torch.Tensor]:
    """Return by name the tensors with a gradient that modules keep as attributes or return beside the first one."""
    found = dict(_tensors(_OUTPUT, output))
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        found.update(_tensors(clean_name(name) or "the model", own))
    first = first_tensor(output)
    return {name: value for name, value in found.items() if value is not first and value.grad_fn is not None}


def losses_beside(beside: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the values of this forward that a loss is likely made of: returned values, and single numbers kept.

    Larger attributes may be caches with autograd graphs that reach into earlier forwards.
    """
    found = {id(v): v for name, v in beside.items() if name.startswith(_OUTPUT) or v.numel() == 1}
    return list(found.values())


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a value, which may be a list or mapping of them, with their names."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors(f"{name}.{number}", item)


def depends_on(beside: Mapping[str, torch.Tensor], nodes: Mapping[Any, str]) -> dict[str, str]:
    """Return the recorded tensors with gradients that a loss of other tensors would change, with the first such tensor.

    `nodes` names the recorded tensors by the nodes of autograd behind them; what lies before such a node gets its
    recorded gradient, whatever else was added there.
    """
    found: dict[str, str] = {}
    for name, value in beside.items():
        seen: set[Any] = set()
        todo = [value.grad_fn]
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in nodes:
                found.setdefault(nodes[node], name)
            else:
                todo += [before for before, _ in node.next_functions]
    return found
