"""Inputs of a replay beside the configuration: the order of accumulation, and the number formats to assume."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StageOrder:
    """Order in which a virtual stage added its micro-batches' gradients, and those after which it reduced."""

    backwards: tuple[int, ...]
    reduce_after: frozenset[int]


Place = tuple[int, int]
"""A virtual stage and a pipeline rank that holds it."""
Orders = Mapping[Place, StageOrder]
"""Orders of all stages on all the pipeline ranks that compute them."""


@dataclass(frozen=True)
class Formats:
    """Number formats: of stored parameters, computation, accumulation over micro-batches, and reduction.

    `rope` is the format in which the rotary table is rounded before use.
    """

    parameter: torch.dtype
    compute: torch.dtype
    accumulate: torch.dtype
    reduce: torch.dtype
    rope: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        """Compute format, at least FP32."""
        return torch.promote_types(self.compute, torch.float32)


def formats_of(policy: str) -> Formats:
    """Formats that a policy declares: bf16 keeps masters, sums and reductions in FP32."""
    f64, f32, b16 = torch.float64, torch.float32, torch.bfloat16
    return {
        "bf16": Formats(f32, b16, f32, f32, f32),
        "bf16_pure": Formats(b16, b16, b16, b16, f32),
        "fp32": Formats(f32, f32, f32, f32, f32),
        "fp64": Formats(f64, f64, f64, f64, f64),
    }[policy]
