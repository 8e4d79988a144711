"""Tensors that a forward leaves beside the model's output: a second tower's features, auxiliary losses of experts.

A trainer that adds them to its loss sends gradients into the model that the gradient of the first output does not show.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from numerics.record.wrapped_models import clean_name, first_tensor
from numerics.schema import BESIDE

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


def losses_beside(beside: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return by name the values that a loss of this forward is likely made of: returned ones, and single numbers kept.

    Larger attributes may be caches with autograd graphs that reach into earlier forwards.
    """
    likely = {name: v for name, v in beside.items() if name.startswith(_OUTPUT) or v.numel() == 1}
    found = {id(value): (name, value) for name, value in reversed(likely.items())}
    return dict(reversed(found.values()))


def recorded_name(name: str) -> str:
    """Return the name under which a tensor beside the output is recorded; its gradient's has `.grad` behind."""
    return f"{BESIDE}{name}"


def ends(first: torch.Tensor, beside: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the names of those tensors that no other one is computed from: a loss alone sends them gradients."""
    inner: set[Any] = set()
    todo = [(value.grad_fn, True) for value in (first, *beside.values())]
    while todo:
        node, start = todo.pop()
        if node is None or (not start and node in inner):
            continue
        if not start:
            inner.add(node)
        todo += [(before, False) for before, _ in node.next_functions]
    return {name for name, value in beside.items() if value.grad_fn not in inner}


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
