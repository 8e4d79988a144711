"""Attention document by document, as the kernel `documents` computes it: queries in a row in one document.

A piece ends where the document ends, or where the rank's tokens jump to its other chunk. It sees the keys of its
document up to its last query.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Queries `queries` of sequence `row`, among the rank's tokens, and their keys `keys` in the whole sequence.

    `mask` (queries, keys) hides later keys; None where the piece begins its document, and is causal.
    """

    row: int
    queries: slice
    keys: slice
    mask: Tensor | None


def pieces_of(documents: Tensor, positions: Tensor) -> tuple[Piece, ...]:
    """Pieces of a micro-batch; `documents` (B, S) numbers whole sequences, `positions` (S/cp,) are the rank's."""
    found: list[Piece] = []
    places = positions.tolist()
    for row, numbers in enumerate(documents.tolist()):
        begin = 0
        for at in range(1, len(places) + 1):
            inside = at < len(places) and places[at] == places[at - 1] + 1
            if inside and numbers[places[at]] == numbers[places[begin]]:
                continue
            first, last = places[begin], places[at - 1]
            start = numbers.index(numbers[first])
            mask = None
            if start < first:
                mask = torch.arange(first, last + 1)[:, None] >= torch.arange(start, last + 1)
            found.append(Piece(row, slice(begin, at), slice(start, last + 1), mask))
            begin = at
    return tuple(found)


def attend_pieces(queries: Tensor, keys: Tensor, values: Tensor, pieces: Sequence[Piece]) -> Tensor:
    """Attention (B, H, Sq, D) of each piece to its keys, put together again."""
    rows: list[Tensor] = []
    for row in range(queries.shape[0]):
        parts = [
            F.scaled_dot_product_attention(
                queries[row : row + 1, :, p.queries],
                keys[row : row + 1, :, p.keys],
                values[row : row + 1, :, p.keys],
                attn_mask=p.mask,
                is_causal=p.mask is None,
            )
            for p in pieces
            if p.row == row
        ]
        rows.append(torch.cat(parts, dim=2))
    return torch.cat(rows)
