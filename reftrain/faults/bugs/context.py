"""Bugs of context parallelism."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from reftrain.config.run import RunConfig
from reftrain.data.batches import IGNORED, MicroBatch
from reftrain.execute import pipeline
from reftrain.execute.loss import global_loss, step_loss
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.model import batch as batch_module
from reftrain.model.batch import Cutter, LocalBatch, rope_table
from reftrain.parallel import ring
from reftrain.train import trainer


def _scaled_loss(patches: Patches, factor: int) -> None:
    """Multiply the logged loss."""

    def planted(*arguments: Any, **named: Any) -> float:
        return global_loss(*arguments, **named) * factor

    patches.set(trainer, "global_loss", planted)


@bug("P21", "cp", "loss times cp: each context rank divides by its own share", "loss", needs.axis("cp"))
def divisor_of_one_share(patches: Patches, place: Place, values: Values) -> None:
    """Divide by the count of valid tokens over cp."""
    del values
    cp = place.config.mesh.cp

    def planted(token_sum: torch.Tensor, valid_tokens: int) -> torch.Tensor:
        return step_loss(token_sum, valid_tokens) * cp

    patches.set(pipeline, "step_loss", planted)
    _scaled_loss(patches, cp)


def _cut_otherwise(patches: Patches, change: Callable[[Cutter, LocalBatch], LocalBatch]) -> None:
    """Change every micro-batch after it was cut."""
    original = Cutter.cut

    def planted(self: Cutter, batch: MicroBatch) -> LocalBatch:
        return change(self, original(self, batch))

    patches.set(Cutter, "cut", planted)


def _rolled(cutter: Cutter, batch: LocalBatch) -> LocalBatch:
    """Return the batch with each chunk's last target replaced by the next token on the same rank."""
    del cutter
    rolled = torch.roll(batch.tokens, -1, dims=1)
    targets = batch.targets.clone()
    for last in (targets.shape[1] // 2 - 1, targets.shape[1] - 1):
        valid = targets[:, last] != IGNORED
        targets[:, last] = torch.where(valid, rolled[:, last], targets[:, last])
    return replace(batch, targets=targets)


def _restarted(cutter: Cutter, batch: LocalBatch) -> LocalBatch:
    """Positions for RoPE count from 0 on every rank."""
    table = rope_table(torch.arange(len(batch.positions)), cutter.head_dim, cutter.rope_base, cutter.wide)
    return replace(batch, rope=table.to(cutter.device))


@bug("P22", "cp", "labels rolled after the sequence was split", "loss at the chunks' ends", needs.axis("cp"))
def roll_after_split(patches: Patches, place: Place, values: Values) -> None:
    """Make targets from the rank's own tokens."""
    del place, values
    _cut_otherwise(patches, _rolled)


@bug(
    "P23", "cp", "position ids restart on each context rank", "queries and keys after RoPE", needs.axis("cp")
)
def restart_positions(patches: Patches, place: Place, values: Values) -> None:
    """Count positions locally."""
    del place, values
    _cut_otherwise(patches, _restarted)


@bug(
    "P25",
    "cp",
    "causal mask offset by one block on the later context ranks",
    "attention output on context rank 1 and above",
    needs.axis("cp"),
    fields={"by": BugField("tokens that a query sees beyond its own; 0 means a whole chunk", 0)},
    magnitudes=({"by": 0}, {"by": 1}),
)
def offset_mask(patches: Patches, place: Place, values: Values) -> None:
    """Let queries see keys that come after them."""
    config = place.config
    by = int(values["by"]) or config.data.seq_len // (2 * config.mesh.cp)
    if not place.coords["cp"]:
        return

    def planted(
        queries_at: torch.Tensor, keys_at: torch.Tensor, documents: torch.Tensor, *, document_mask: bool
    ) -> torch.Tensor:
        causal = queries_at.unsqueeze(1) + by >= keys_at.unsqueeze(0)
        if not document_mask:
            return causal.expand(len(documents), -1, -1)
        return causal & (documents[:, queries_at].unsqueeze(2) == documents[:, keys_at].unsqueeze(1))

    patches.set(batch_module, "allowed_keys", planted)


@bug("P27", "cp", "metrics summed over cp", "the logged loss only (reporting)", needs.axis("cp"))
def sum_metrics(patches: Patches, place: Place, values: Values) -> None:
    """Log the loss times cp."""
    del values
    _scaled_loss(patches, place.config.mesh.cp)


def _ring(config: RunConfig, values: Values) -> str | None:
    del values
    return None if config.numerics.cp_method == "ring" else "it needs numerics.cp_method = ring"


@bug(
    "P28",
    "cp",
    "the merge of a ring's blocks rescales by the wrong maximum",
    "attention output",
    needs.axis("cp"),
    _ring,
)
def wrong_maximum(patches: Patches, place: Place, values: Values) -> None:
    """Rescale what was summed before by the greater of the two LSEs instead of their sum's."""
    del place, values

    def planted(
        out: torch.Tensor, lse: torch.Tensor, block_out: torch.Tensor, block_lse: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.logaddexp(lse, block_lse)
        safe = total.masked_fill(total == -torch.inf, 0.0)
        greater = torch.maximum(lse, block_lse)
        greater = greater.masked_fill(greater == -torch.inf, 0.0)
        return out * torch.exp(lse - greater) + block_out * torch.exp(block_lse - safe), total

    patches.set(ring, "merge", planted)
