"""Finds the masters of a model's weights: wide copies that an optimiser steps, which are rounded into the weights."""

import torch
from torch import nn

from numerics.record.masters.flat import flat_masters
from numerics.record.masters.stepped import NONE, Masters, Stepped, direction
from numerics.record.placement import local


def masters_of(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, dp: tuple[int, int] = (0, 1)
) -> Masters:
    """Return the masters of a model's weights; empty unless each tensor that the optimiser steps is one.

    `dp` is this rank's index among the ranks with shares of the update, and their number.
    """
    groups = [] if optimizer is None else [list(group["params"]) for group in optimizer.param_groups]
    own = {id(p) for p in model.parameters()}
    stepped = [(number, tensor) for number, group in enumerate(groups) for tensor in group]
    if any(id(tensor) in own for _, tensor in stepped):
        return NONE
    free = [p for p in model.parameters() if p.requires_grad]
    return _whole_masters(free, stepped) or flat_masters(free, stepped, dp)


def _whole_masters(free: list[nn.Parameter], stepped: list[tuple[int, torch.Tensor]]) -> Masters:
    """Return masters of the weights' own shapes.

    A master is wider than its weight and rounds to it in every bit, or the shard of one does to the other's. Masters
    with equal values are of one group of the optimiser, and follow the weights in the direction in which its others do:
    elsewhere none is known.
    """
    alike: dict[bytes, list[int]] = {}
    for number, weight in enumerate(free):
        alike.setdefault(_bits(weight, weight.dtype), []).append(number)
    held: dict[bytes, list[tuple[int, torch.Tensor]]] = {}
    for group, tensor in stepped:
        keys = (_bits(tensor, dtype) for dtype in dict.fromkeys(p.dtype for p in free))
        key = next((key for key in keys if key in alike), None)
        if key is None:
            return NONE
        held.setdefault(key, []).append((group, tensor))
    order = {id(held[key][0][1]): alike[key][0] for key in held if len(held[key]) == len(alike[key]) == 1}
    ways = direction([(group, order.get(id(tensor))) for group, tensor in stepped])
    found: dict[int, Stepped] = {}
    for key, own in held.items():
        several = len(alike[key]) > 1
        if len(own) != len(alike[key]) or (several and (not ways or len({group for group, _ in own}) > 1)):
            return NONE
        weights = [free[number] for number in alike[key]][:: ways or 1]
        if not all(_rounds_to(tensor, weight) for (_, tensor), weight in zip(own, weights, strict=True)):
            return NONE
        found |= {id(weight): Stepped(tensor) for (_, tensor), weight in zip(own, weights, strict=True)}
    return Masters(found)


def _rounds_to(master: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether a tensor is a weight in a wider format; shards of both are cut alike."""
    wider = master.dtype.is_floating_point and master.element_size() > weight.element_size()
    same = wider and master.shape == weight.shape
    same &= getattr(master, "placements", None) == getattr(weight, "placements", None)
    held, own = local(master), local(weight)
    return same and torch.equal(held.to(own.device, own.dtype), own)


def _bits(tensor: torch.Tensor, dtype: torch.dtype) -> bytes:
    """Return what tensors of equal shapes and values in a format share."""
    summed = local(tensor).to(dtype).double()
    return repr((tuple(tensor.shape), dtype, float(summed.sum()), float(summed.square().sum()))).encode()
