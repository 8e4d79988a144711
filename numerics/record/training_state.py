"""What a watched trainer holds around a step: parameters, gradients, moments, random numbers, casts by itself."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from numerics.record.batch_place import Layout
from numerics.record.masters.stepped import Masters
from numerics.record.placement import Placed, local
from numerics.record.values_writer import stores
from numerics.record.wrapped_models import clean_name
from numerics.schema import AUTOCAST, BUFFER, EVALUATION, RANDOM

Named = Iterator[tuple[str, Placed]]
"""Names of tensors, and where each lies."""

_NUMBERS: Final[dict[type, torch.dtype]] = {int: torch.int64, float: torch.float64}
"""Formats of an optimiser's plain numbers: its tensors of one element are of others."""

_WHOLE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by the bytes of a format's elements."""


def parameters(model: nn.Module, layout: Layout, masters: Masters) -> Named:
    """Yield the parameters, masters in their place."""
    for name, parameter in model.named_parameters():
        own = masters.of(parameter)
        if own is not None:
            yield clean_name(name), own.place(own.tensor, parameter, layout)


def bit_sums(model: nn.Module) -> dict[str, int]:
    """Return the sums of this rank's parameters' bits as whole numbers, which a change of values changes."""
    found = {}
    for name, parameter in model.named_parameters():
        held = local(parameter)
        whole = _WHOLE.get(held.element_size())
        if held.layout == torch.strided and whole is not None and held.numel():
            found[name] = int(held.contiguous().view(whole).sum(dtype=torch.int64))
    return found


def whole(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all its rows: an embedding's gradient may name the rows that it read, some of them twice."""
    return value.coalesce().to_dense() if value.layout == torch.sparse_coo else value


def gradients(model: nn.Module, layout: Layout, masters: Masters) -> Named:
    """Yield the gradients by which parameters are stepped, under the parameters' names."""
    for name, parameter in model.named_parameters():
        own = masters.of(parameter)
        if own is not None and own.tensor.grad is not None:
            yield clean_name(name), own.place(own.tensor.grad, parameter, layout)


def moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, layout: Layout, masters: Masters
) -> Iterator[tuple[str, str, Placed]]:
    """Yield the optimiser's tensors: the parameter's name, the name of the state, and its place."""
    for name, parameter in model.named_parameters():
        own = masters.of(parameter)
        if own is None:
            continue
        for key, value in sorted(optimizer.state.get(own.tensor, {}).items()):
            held = torch.tensor(value, dtype=_NUMBERS[type(value)]) if type(value) in _NUMBERS else value
            if isinstance(held, torch.Tensor) and (held.dim() or held.numel() == 1):
                yield clean_name(name), key, own.place(held, parameter, layout)


def settings(model: nn.Module, optimizer: torch.optim.Optimizer, masters: Masters) -> torch.Tensor:
    """Return the settings of an optimiser, (bytes,) uint8: JSON of its class, groups and the gradient scaler's values.

    A group holds the names of its parameters and its hyperparameters; "others" counts parameters that are not the
    model's. `scale` divides the gradients within the step, and `skipped` says that it changes nothing.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters():
        held = masters.of(parameter)
        if held is not None:
            names.setdefault(id(held.tensor), []).append(clean_name(name))
    groups = []
    for group in optimizer.param_groups:
        own = [name for p in group["params"] for name in names.get(id(p), ())]
        options = {key: _plain(value) for key, value in group.items() if key != "params"}
        others = sum(id(p) not in names for p in group["params"])
        groups.append({**options, "params": own, "others": others})
    kind, scale = type(optimizer), getattr(optimizer, "grad_scale", None)
    found: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}", "groups": groups}
    if isinstance(scale, torch.Tensor):
        overflow = getattr(optimizer, "found_inf", None)
        found |= {"scale": float(scale), "skipped": isinstance(overflow, torch.Tensor) and bool(overflow)}
    return _json(found)


def _json(options: Mapping[str, Any]) -> torch.Tensor:
    """Return JSON as a tensor, (bytes,) uint8."""
    return torch.frombuffer(bytearray(json.dumps(options).encode()), dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """Return a hyperparameter as JSON can hold it; None for what is not a number, truth, text, or tuple of these."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def surroundings(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a forward depends on beside its arguments, as inputs.

    The states of this process's generators of random numbers, (bytes,) uint8: the CPU's and its device's; a one for
    each device on which autocast is on; and the names of modules in evaluation mode, where any is.
    """
    names, _ = _in_evaluation(model, "")
    if names:
        lines = "".join(f"{clean_name(name)}\n" for name in names)
        yield EVALUATION, torch.frombuffer(bytearray(lines.encode()), dtype=torch.uint8)
    yield f"{RANDOM}cpu", torch.get_rng_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield f"{RANDOM}cuda", torch.cuda.get_rng_state()
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            yield f"{AUTOCAST}{device}.{dtype}", torch.ones(())


def _in_evaluation(module: nn.Module, name: str) -> tuple[list[str], bool]:
    """Return the largest modules that are in evaluation mode with all that they hold, and whether `module` is one."""
    inner = [_in_evaluation(child, f"{name}.{key}") for key, child in module.named_children()]
    if not module.training and all(whole for _, whole in inner):
        return [name], True
    return [own for names, _ in inner for own in names], False


def buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that a checkpoint of the model holds, as inputs: running statistics, codebooks, counters."""
    for prefix, module in model.named_modules():
        passing = module._non_persistent_buffers_set  # noqa: SLF001 - a state dict would let wrappers communicate
        for name, value in module.named_buffers(recurse=False):
            if name not in passing and stores(value) and not hasattr(value, "placements"):
                yield f"{BUFFER}{clean_name(f'{prefix}.{name}')}", value


def holds_gradients(model: nn.Module) -> bool:
    """Return whether any gradient is left on the model, other than zeros."""
    found = (p.grad for p in model.parameters())
    return any(bool(local(grad).any()) for grad in found if grad is not None)


def steps_any(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Return whether an optimiser steps parameters of a model, not shards or copies that a trainer keeps."""
    own = {id(p) for p in model.parameters()}
    return any(id(p) in own for group in optimizer.param_groups for p in group["params"])
