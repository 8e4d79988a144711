"""Attention document by document: each stretch of a document's queries sees only that document's keys.

A mask tensor makes the kernel compute every pair and throw most away, so that documents cost all ranks the same.
Here the work is that of the pairs which attend, as with Flex on a GPU: long documents cost more than short ones.
"""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit


@dataclass(frozen=True)
class Stretch:
    """Neighbouring queries of one document: rows `first` to `end` of sequence `row`, keys from `key` to `key_end`.

    Queries are counted among this rank's, keys in the whole sequence; `corner` (queries, keys) masks the keys after
    each query, and is None where the stretch begins its document and a causal kernel does it.
    """

    row: int
    first: int
    end: int
    key: int
    key_end: int
    corner: torch.Tensor | None


def stretches(documents: torch.Tensor, positions: torch.Tensor) -> list[Stretch]:
    """Stretches of a micro-batch: `documents` (B, S) over whole sequences, `positions` (Sc,) of this rank's queries."""
    found = []
    for row, numbers in enumerate(documents):
        own = numbers[positions]
        breaks = (own[1:] != own[:-1]) | (positions[1:] != positions[:-1] + 1)
        cuts = [0, *(torch.nonzero(breaks).flatten() + 1).tolist(), len(own)]
        starts = torch.searchsorted(numbers, own)  # documents are numbered upwards
        for first, end in itertools.pairwise(cuts):
            key, at = int(starts[first]), positions[first:end]
            key_end = int(at[-1]) + 1
            corner = None if key == int(at[0]) else at.unsqueeze(1) >= torch.arange(key, key_end)
            found.append(Stretch(row, first, end, key, key_end, corner))
    return found


def attend_documents(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, found: list[Stretch]
) -> torch.Tensor:
    """Attention output (B, H, Sq, D) of queries to keys and values (B, H, Sk, D), stretch by stretch."""
    rows: list[list[torch.Tensor]] = [[] for _ in range(queries.shape[0])]
    for s in found:
        query = queries[s.row : s.row + 1, :, s.first : s.end]
        key, value = (t[s.row : s.row + 1, :, s.key : s.key_end] for t in (keys, values))
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=s.corner, is_causal=s.corner is None
        )
        rows[s.row].append(out)
    return torch.cat([torch.cat(parts, dim=2) for parts in rows])
