"""What a replay is told beside the configuration: the order of accumulation, and a hypothesis about formats."""

from dataclasses import dataclass

import torch

from reftrain.config.run import RunConfig
from reftrain.schedule.registry import SCHEMES

WHOLE_BACKWARD = frozenset(name for name, scheme in SCHEMES.items() if scheme.whole_backward)
"""Schedules in which each stage has one owner, rank after rank, and a backward is one piece."""


@dataclass(frozen=True)
class StageOrder:
    """In which order a virtual stage added its micro-batches' gradients, and after which of them it reduced."""

    backwards: tuple[int, ...]
    reduce_after: frozenset[int]


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
        """At least FP32."""
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


def local_settings(config: RunConfig) -> dict[str, str]:
    """What besides reductions decides a rank's bits: shapes of a micro-batch, formats, kernels."""
    mesh, numerics = config.mesh, config.numerics
    settings = {
        "tp": mesh.tp,
        "cp": mesh.cp,
        "sequence_parallel": mesh.sequence_parallel and mesh.tp > 1,
        "micro_batch_size": config.data.micro_batch_size,
        "policy": numerics.policy,
        "attention": numerics.attention,
        "cp_method": numerics.cp_method if mesh.cp > 1 else "all_gather",
        "optimizer": config.optimizer.implementation,
        "backward": "whole" if config.pipeline.schedule in WHOLE_BACKWARD else "other",
        "threads": config.threads,
        "backend": "gloo",
    }
    return {name: str(value) for name, value in settings.items()}
