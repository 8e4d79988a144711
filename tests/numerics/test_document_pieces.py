"""Pieces of documents in the replay attend as a mask of documents would."""

import torch
from torch.nn import functional

from reftrain.replay.batch import positions_of, visible
from reftrain.replay.document_pieces import attend_pieces, pieces_of

DOCUMENTS = torch.tensor([[0] * 5 + [1] * 3 + [2] * 8, [0] * 16])


def test_pieces_attend_like_a_mask():
    drawn = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, 16, 8, generator=drawn, dtype=torch.float64) for _ in range(3))
    for index in range(2):
        here = positions_of(16, 2, index)
        seen = visible(here, torch.arange(16), DOCUMENTS, by_document=True)[:, None]
        whole = functional.scaled_dot_product_attention(q[:, :, here], k, v, attn_mask=seen)
        parts = attend_pieces(q[:, :, here], k, v, pieces_of(DOCUMENTS, here))
        torch.testing.assert_close(parts, whole)


def test_pieces_end_at_documents_and_at_jumps():
    found = pieces_of(DOCUMENTS, positions_of(16, 2, 0))
    assert [(p.row, p.queries.start, p.queries.stop, p.keys.start, p.keys.stop) for p in found] == [
        (0, 0, 4, 0, 4), (0, 4, 8, 8, 16), (1, 0, 4, 0, 4), (1, 4, 8, 0, 16),
    ]  # fmt: skip
    assert [p.mask is None for p in found] == [True, False, True, False]
