"""A rank's inputs for one micro-batch: its tokens, targets, positions and attention mask.

The loader gives whole sequences; here they are cut for the context axis. Document masks are computed from
the whole sequence, so that a document that spans chunks is one document.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from reftrain.data.batches import MicroBatch
from reftrain.model.document_attention import stretches
from reftrain.parallel.context import chunk_positions
from reftrain.rank.comm import Axis


class KeyValues(Protocol):
    """Keys and values of earlier tokens, by the name of an attention."""

    def extend(
        self, name: str, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep those of new tokens, (B, H, S, D), and return those of all tokens so far, (B, H, L, D)."""


@dataclass(frozen=True)
class LocalBatch:
    """This rank's share of a micro-batch; S is the whole sequence, Sc = S/cp the rank's part.

    `tokens` and `targets` are (B, Sc), `positions` (Sc,) in the whole sequence, `rope` the cosines and sines,
    (2, Sc, head_dim/2). `allowed` says which keys a query may see: (B, 1, Sc, S) with keys in the
    sequence's order, or (cp, B, 1, 1, Sc, Sc) by source rank for a ring; None where a causal kernel needs
    no mask. `blocks` is the same in the form of the Flex or the document kernel. `pairs` counts the
    (query, key) pairs that attend, over the micro-batch's sequences, `pairs_by_source` those with keys of each context
    rank (empty without a ring). `images` are the image tokens (B, I, D) of the micro-batch, which collect the
    gradient of all cross-attention layers of this pipeline rank; None for a text model. `cache` holds keys and values
    of earlier tokens where an engine decodes; `tokens` are the new ones then.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    rope: torch.Tensor
    allowed: torch.Tensor | None
    blocks: Any
    pairs: int
    pairs_by_source: tuple[int, ...] = ()
    images: torch.Tensor | None = None
    cache: KeyValues | None = None


def rope_table(positions: torch.Tensor, head_dim: int, base: float, dtype: torch.dtype) -> torch.Tensor:
    """Cosines and sines of the rotary embedding, (2, S, head_dim/2), computed in float64.

    Source: Su et al. 2021, "RoFormer", equation 34.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = positions.double().unsqueeze(1) * base**-exponents
    return torch.stack([angles.cos(), angles.sin()]).to(dtype)


def allowed_keys(
    queries_at: torch.Tensor, keys_at: torch.Tensor, documents: torch.Tensor, *, document_mask: bool
) -> torch.Tensor:
    """Which keys each query may see, (B, Sq, Sk): those not after it and, with the mask, of its document.

    `documents` is (B, S) over the whole sequence; `queries_at` and `keys_at` are positions in it.
    """
    causal = queries_at.unsqueeze(1) >= keys_at.unsqueeze(0)
    if not document_mask:
        return causal.expand(len(documents), -1, -1)
    return causal & (documents[:, queries_at].unsqueeze(2) == documents[:, keys_at].unsqueeze(1))


def attended_pairs(
    queries_at: torch.Tensor, keys_at: torch.Tensor, documents: torch.Tensor, *, document_mask: bool
) -> int:
    """Count the (query, key) pairs that `allowed_keys` of the same arguments lets attend, without their mask.

    A mask of 8 192 tokens has 67 million entries, and counting them on the host takes longer than the layers compute.
    """
    length = documents.shape[1]
    owner = documents.long() if document_mask else torch.zeros_like(documents, dtype=torch.int64)
    first = owner * length  # positions of a document lie between its first and the next document's
    keys = (first[:, keys_at] + keys_at).sort(dim=1).values
    here = first[:, queries_at].contiguous()
    until = torch.searchsorted(keys, here + queries_at, right=True)
    return int((until - torch.searchsorted(keys, here)).sum())


class Cutter:
    """Cuts micro-batches for one rank; the same settings for the whole run."""

    def __init__(
        self,
        *,
        cp: Axis,
        ring: bool,
        document_mask: bool,
        attention: str,
        head_dim: int,
        rope_base: float,
        wide: torch.dtype,
        device: torch.device,
    ) -> None:
        self.cp = cp
        self.ring = ring and cp.size > 1
        self.document_mask = document_mask
        self.attention = attention
        self.head_dim = head_dim
        self.rope_base = rope_base
        self.wide = wide
        self.device = device
        self._ropes: dict[int, torch.Tensor] = {}

    def cut(self, batch: MicroBatch) -> LocalBatch:
        """Cut one micro-batch and build its mask, on the device."""
        length = batch.tokens.shape[1]
        positions = chunk_positions(length, self.cp.size, self.cp.index)
        documents = batch.documents.to(self.device)
        here = positions.to(self.device)
        by_source = self._pairs_by_source(batch.documents, positions)
        return LocalBatch(
            tokens=batch.tokens[:, positions].to(self.device),
            targets=batch.targets[:, positions].to(self.device),
            positions=here,
            rope=self._rope(length, positions),
            allowed=self._allowed(documents, here),
            blocks=self._by_kernel(batch.documents, positions),
            pairs=sum(by_source),
            pairs_by_source=by_source if self.ring else (),
        )

    def _rope(self, length: int, positions: torch.Tensor) -> torch.Tensor:
        """Rotary table of this rank's positions, made once for each length."""
        if length not in self._ropes:
            table = rope_table(positions, self.head_dim, self.rope_base, self.wide)
            self._ropes[length] = table.to(self.device)
        return self._ropes[length]

    def _sources(self, length: int) -> list[torch.Tensor]:
        """Key positions that each step of attention reads: those of each context rank in turn, or all at once."""
        if not self.ring:
            return [torch.arange(length)]
        return [chunk_positions(length, self.cp.size, i) for i in range(self.cp.size)]

    def _pairs_by_source(self, documents: torch.Tensor, positions: torch.Tensor) -> tuple[int, ...]:
        return tuple(
            attended_pairs(positions, keys_at, documents, document_mask=self.document_mask)
            for keys_at in self._sources(documents.shape[1])
        )

    def _allowed(self, documents: torch.Tensor, here: torch.Tensor) -> torch.Tensor | None:
        if not self.ring and self.attention in {"flash", "flex", "documents"}:
            return None
        masks = [
            allowed_keys(here, keys_at.to(self.device), documents, document_mask=self.document_mask)
            for keys_at in self._sources(documents.shape[1])
        ]
        return torch.stack(masks).unsqueeze(2).unsqueeze(2) if self.ring else masks[0].unsqueeze(1)

    def _by_kernel(self, documents: torch.Tensor, positions: torch.Tensor) -> Any:
        """Mask in the form of a kernel that takes no tensor."""
        if self.attention == "flex":
            return self._blocks(documents.to(self.device), positions.to(self.device))
        if self.attention == "documents":
            return stretches(documents if self.document_mask else torch.zeros_like(documents), positions)
        return None

    def _blocks(self, documents: torch.Tensor, here: torch.Tensor) -> Any:
        """Block mask of the Flex kernel (CUDA only)."""
        from torch.nn.attention.flex_attention import create_block_mask

        document_mask = self.document_mask

        def visible(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            del h
            causal = here[q] >= k
            return causal & (documents[b, here[q]] == documents[b, k]) if document_mask else causal

        batch, length = documents.shape
        return create_block_mask(visible, batch, None, len(here), length, device=str(self.device))
