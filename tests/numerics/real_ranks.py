"""What the pooled ranks do for the replay's tests: train, and hand over every shard bit for bit."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reftrain.config.run import RunConfig
from reftrain.rank.hooks import HookList
from tests.reftrain.workers import trainer

Bits = npt.NDArray[Any]


def bits(tensor: torch.Tensor) -> Bits:
    """The tensor's bits as integers, so that only equal bits compare as equal."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().contiguous().view(kind).numpy().copy()


@dataclass
class TrainedRank:
    """One rank's loss and norm by step, gradients of every step, parameters after the last."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[dict[str, Bits]] = field(default_factory=list)
    parameters: dict[str, Bits] = field(default_factory=dict)


def trained(rank: int, world: int, store: str, config: RunConfig, steps: int) -> TrainedRank:
    """Train some steps on one rank."""
    out = TrainedRank()
    with trainer(rank, world, store, config, HookList()) as made:
        for step in range(steps):
            got = made.compute_gradients(step)
            out.losses.append(got.loss)
            out.norms.append(float(got.norm))
            out.gradients.append({name: bits(g) for name, g in made.local_gradients().items()})
            made.apply_gradients(step, got.norm)
        out.parameters = {name: bits(p) for name, p in made.local_parameters().items()}
    return out


def same(one: Bits, other: Bits) -> bool:
    """Whether two tensors have the same bits."""
    return one.shape == other.shape and np.array_equal(one, other)
