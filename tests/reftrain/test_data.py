"""Documents are the same whatever the mesh; masks and positions follow the chunks."""

import pytest
import torch

from reftrain.config.run import DataConfig
from reftrain.data.batches import IGNORED, Loader
from reftrain.data.sequences import BYTE_EOS, TextSource
from reftrain.errors import ConfigError
from reftrain.model.batch import allowed_keys, attended_pairs
from reftrain.parallel.context import chunk_positions, in_rank_order, in_sequence_order


def test_data_parallel_ranks_split_the_same_step():
    config = DataConfig(seq_len=32, batch_size=12, micro_batch_size=2)
    whole = torch.cat([b.tokens for b in Loader(config, 260, 1, 0).step(3)])
    parts = [b.tokens for rank in range(3) for b in Loader(config, 260, 3, rank).step(3)]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, torch.cat([b.tokens for b in Loader(config, 260, 1, 0).step(4)]))


def test_targets_skip_document_ends_and_padding():
    config = DataConfig(seq_len=64, batch_size=8)
    eos, pad = 258, 259
    for batch in Loader(config, 260, 1, 0).step(0):
        tokens, targets = batch.tokens[0].tolist(), batch.targets[0].tolist()
        for at in range(63):
            expected = tokens[at + 1] if tokens[at] not in {eos, pad} and tokens[at + 1] != pad else IGNORED
            assert targets[at] == expected
        changes = batch.documents[0, 1:] != batch.documents[0, :-1]
        assert changes.tolist() == [token == eos for token in tokens[:-1]]


def test_text_is_bytes_with_an_end_of_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"hello ")
    (tmp_path / "b.txt").write_bytes(b"world, again")
    names = (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    source = TextSource(DataConfig(source="text", files=names, seq_len=4), 260)
    seen = sorted(tuple(source.sequence(n)[:4]) for n in range(5))
    stream = [*b"hello ", BYTE_EOS, *b"world, again", BYTE_EOS]
    assert seen == sorted(tuple(stream[i : i + 4]) for i in range(0, 20, 4))


def test_text_too_short_or_missing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("hi")
    with pytest.raises(ConfigError, match="do not fill one sequence"):
        TextSource(DataConfig(source="text", files=(str(path),)), 260)
    with pytest.raises(ConfigError, match="No such file"):
        TextSource(DataConfig(source="text", files=(str(tmp_path / "no"),)), 260)
    with pytest.raises(ConfigError, match="258 or more"):
        TextSource(DataConfig(source="text", files=(str(path),)), 200)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_chunks_balance_causal_work_and_come_back_in_order(size):
    whole = torch.arange(16.0).view(1, 16, 1)
    parts = torch.stack([whole[:, chunk_positions(16, size, i)] for i in range(size)])
    assert torch.equal(in_sequence_order(parts), whole)
    assert torch.equal(in_rank_order(whole, size) if size > 1 else parts, parts)
    work = {int(chunk_positions(16, size, i).sum()) for i in range(size)}
    assert len(work) == 1


def test_document_mask_spans_chunks():
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    here = chunk_positions(8, 2, 1)
    assert here.tolist() == [2, 3, 4, 5]
    allowed = allowed_keys(here, torch.arange(8), documents, document_mask=True)[0]
    assert allowed.int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0, 0],
    ]
    assert allowed_keys(here, torch.arange(8), documents, document_mask=False)[0].sum() == 3 + 4 + 5 + 6


@pytest.mark.parametrize("document_mask", [True, False])
def test_pairs_are_those_of_the_mask(document_mask):
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [4, 4, 4, 4, 4, -1, -1, -1]])
    for at in range(2):
        here, keys = chunk_positions(8, 2, at), chunk_positions(8, 2, 1)
        for seen in (keys, torch.arange(8)):
            mask = allowed_keys(here, seen, documents, document_mask=document_mask)
            assert attended_pairs(here, seen, documents, document_mask=document_mask) == mask.sum()
