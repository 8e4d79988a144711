"""First values of parameters, derived a second time: a function of seed and global name alone.

The trainer has its own derivation in `reftrain.model.parameters`; the two meet only when a capture is compared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from reftrain.config.run import RunConfig
from reftrain.layout.declaration import Declaration, Parameter


@dataclass(frozen=True)
class State:
    """State after `step` steps: whole tensors by name, of parameters and of each kind of optimiser state."""

    step: int
    parameters: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)


def first_values(parameter: Parameter, seed: int) -> torch.Tensor:
    """Return the whole tensor of first values in float32: normal with the parameter's std, or ones."""
    if not parameter.std:
        return torch.ones(parameter.shape)
    key = hashlib.blake2b(f"{seed}/{parameter.tied or parameter.name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    values = torch.empty(parameter.shape).normal_(0.0, parameter.std, generator=generator)
    if parameter.zero_columns:
        values[:, :: parameter.zero_columns] = -0.0
    return values


def local_values(parameter: Parameter, whole: torch.Tensor, tp: int, dtype: torch.dtype) -> torch.Tensor:
    """Return one tensor rank's piece of a whole tensor, `parameter.local_shape`, zeros in the padding."""
    values = whole[parameter.piece(tp)]
    local = torch.zeros(parameter.local_shape, dtype=dtype)
    local[tuple(slice(0, n) for n in values.shape)] = values.to(dtype)
    return local


def first_state(config: RunConfig) -> State:
    """Return the state of a run before its first step: first values, no optimiser state."""
    declared = Declaration(config)
    stages = (declared.in_order(stage) for stage in declared.numbers)
    return State(0, {p.name: first_values(p, config.seed) for parameters in stages for p in parameters})
