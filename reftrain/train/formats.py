"""Number formats of the policies of a run: stored parameters, computation, gradient sums."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Formats:
    """Number formats of a policy: of stored parameters, of computation, of gradient sums."""

    parameter: torch.dtype
    compute: torch.dtype
    reduce: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        """Format of values that are always computed in FP32 or wider."""
        return torch.promote_types(self.compute, torch.float32)


POLICIES = {
    "bf16": Formats(torch.float32, torch.bfloat16, torch.float32),
    "bf16_pure": Formats(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "fp32": Formats(torch.float32, torch.float32, torch.float32),
    "fp64": Formats(torch.float64, torch.float64, torch.float64),
}
