"""Wider copies of a model's weights that an optimiser steps in their place, as FP32 masters of BF16 weights."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import nn

Masters: TypeAlias = Mapping[int, torch.Tensor]
"""By the `id` of a model's parameter, the tensor that the optimiser steps in its place."""


def masters_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Masters:
    """Return the masters of a model's weights; empty unless each tensor that the optimiser steps is one.

    A master is wider than its weight and rounds to it in every bit. Of several with equal values each belongs to the
    weight at the same place among those, which holds only within a group of the optimiser: across groups none is known.
    """
    groups = [] if optimizer is None else [list(group["params"]) for group in optimizer.param_groups]
    own = {id(p) for p in model.parameters()}
    stepped = [(number, tensor) for number, group in enumerate(groups) for tensor in group]
    if any(id(tensor) in own for _, tensor in stepped):
        return {}
    free = [p for p in model.parameters() if p.requires_grad and not hasattr(p, "placements")]
    found: dict[int, torch.Tensor] = {}
    groups_of: dict[bytes, set[int]] = {}
    for number, tensor in stepped:
        weight = next((p for p in free if _rounds_to(tensor, p)), None)
        if weight is None:
            return {}
        free = [p for p in free if p is not weight]
        found[id(weight)] = tensor
        key = _bits(weight)
        if len(groups_of.setdefault(key, {number}) | {number}) > 1:
            return {}
    return found


def stepped(parameter: torch.Tensor, masters: Masters) -> torch.Tensor:
    """Return what the optimiser steps for a parameter: its master, or itself."""
    return masters.get(id(parameter), parameter)


def _rounds_to(master: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether a tensor is a weight in a wider format."""
    wider = master.dtype.is_floating_point and master.element_size() > weight.element_size()
    same = wider and master.shape == weight.shape and not hasattr(master, "placements")
    return same and torch.equal(master.detach().to(weight.device, weight.dtype), weight.detach())


def _bits(weight: torch.Tensor) -> bytes:
    """Return what weights of equal shapes and values share."""
    summed = weight.detach().double()
    return repr((tuple(weight.shape), float(summed.sum()), float(summed.square().sum()))).encode()
