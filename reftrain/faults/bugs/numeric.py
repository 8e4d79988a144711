"""Bugs of the optimiser and of arithmetic."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.config.run import OptimizerConfig, RunConfig
from reftrain.execute import gradients
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.model import attention
from reftrain.model import batch as batch_module
from reftrain.model.batch import rope_table
from reftrain.model.layers import RMSNorm
from reftrain.model.parameters import Spec
from reftrain.parallel import ring
from reftrain.rank.events import CopyListener
from reftrain.train import trainer
from reftrain.train.optimizer import AdamW


@bug(
    "P46",
    "optimizer",
    "the gradient norm counts replicated parameters on every tensor rank",
    "gradient norm and clip coefficient",
    needs.axis("tp"),
)
def norm_counts_copies(patches: Patches, place: Place, values: Values) -> None:
    """Let every tensor rank count the parameters that all hold."""
    del place, values

    def planted(spec: Spec, tp_index: int) -> bool:
        del tp_index
        return spec.tied_to is None and (spec.split is None or spec.first_copy)

    patches.set(gradients, "counts_in_norm", planted)


def _decay(config: RunConfig, values: Values) -> str | None:
    if not config.optimizer.weight_decay:
        return "there is no weight decay: it needs optimizer.weight_decay above 0"
    if int(values["rank"]) >= config.mesh.world_size:
        return f"rank {values['rank']} does not exist"
    return None


@bug(
    "P49",
    "optimizer",
    "one rank applies weight decay to norms",
    "norms' weights after step 0",
    needs.parallel,
    _decay,
    fields={"rank": BugField("rank that decays its norms", 0)},
    magnitudes=({"rank": 0}, {"rank": 1}),
)
def decay_norms(patches: Patches, place: Place, values: Values) -> None:
    """Decay everything on that rank."""
    if place.rank != values["rank"]:
        return

    def planted(
        config: OptimizerConfig,
        shards: Mapping[str, torch.Tensor],
        decays: Mapping[str, bool],
        copies: CopyListener,
    ) -> AdamW:
        return AdamW(config, shards, dict.fromkeys(decays, True), copies)

    patches.set(trainer, "AdamW", planted)


@bug(
    "P52",
    "numerics",
    "the norms' epsilon differs in the parallel path",
    "output of layers.0.attention_norm",
    needs.parallel,
    fields={"factor": BugField("factor of the epsilon", 1.01)},
    magnitudes=({"factor": 2.0}, {"factor": 1.01}),
)
def other_epsilon(patches: Patches, place: Place, values: Values) -> None:
    """Scale the epsilon of all norms."""
    del place
    original, factor = RMSNorm.__init__, float(values["factor"])

    def planted(self: RMSNorm, width: int, eps: float, *rest: Any) -> None:
        original(self, width, eps * factor, *rest)

    patches.set(RMSNorm, "__init__", planted)


class _Functions:
    """torch's functions, attention scaled by another factor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)

    def scaled_dot_product_attention(self, queries: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        """Attention with the factor on its scale."""
        named["scale"] = self._factor * queries.shape[-1] ** -0.5
        return F.scaled_dot_product_attention(queries, *rest, **named)


@bug(
    "P53",
    "numerics",
    "attention scaled by a slightly wrong factor",
    "output of layers.0.attention's core",
    needs.parallel,
    fields={"factor": BugField("factor of the scale", 1.001)},
    magnitudes=({"factor": 1.1}, {"factor": 1.001}),
)
def other_scale(patches: Patches, place: Place, values: Values) -> None:
    """Scale the scores."""
    del place
    factor, scores = float(values["factor"]), ring.block_scores

    def planted(queries: torch.Tensor, keys: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        return scores(queries, keys, allowed) * factor

    patches.set(attention, "F", _Functions(factor))
    patches.set(ring, "block_scores", planted)


@bug(
    "P56",
    "numerics",
    "RoPE's cosines and sines cached in BF16",
    "queries and keys after RoPE (precision)",
    needs.parallel,
)
def narrow_rope(patches: Patches, place: Place, values: Values) -> None:
    """Round the table."""
    del place, values

    def planted(positions: torch.Tensor, head_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return rope_table(positions, head_dim, base, torch.bfloat16).to(dtype)

    patches.set(batch_module, "rope_table", planted)
