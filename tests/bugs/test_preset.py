"""The preset `sensitive` has what bugs need to show."""

import pytest
import torch

from reftrain.config.file import load
from reftrain.data.batches import IGNORED, Loader
from reftrain.errors import ConfigError

CONFIG = load(None, {"model": {"preset": "sensitive"}})


def batches(dp, rank):
    return Loader(CONFIG.data, CONFIG.model.vocab_size, dp, rank).step(0)


@pytest.mark.parametrize("dp", [2, 3, 4])
def test_counts_of_valid_tokens_are_uneven(dp):
    counts = [[batch.valid for batch in batches(dp, rank)] for rank in range(dp)]
    assert len({sum(of_rank) for of_rank in counts}) == dp
    assert all(len(of_rank) > 1 and len(set(of_rank)) > 1 for of_rank in counts)


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_documents_span_chunk_ends_and_chunks_are_uneven(cp):
    documents = torch.cat([batch.documents for batch in batches(1, 0)])
    targets = torch.cat([batch.targets for batch in batches(1, 0)])
    ends = torch.arange(1, 2 * cp) * (CONFIG.data.seq_len // (2 * cp))
    assert (documents[:, ends - 1] == documents[:, ends]).any(dim=0).all()
    assert (documents.amax(dim=1) > 0).any()
    chunks = (targets != IGNORED).view(len(targets), 2 * cp, -1).sum(dim=(0, 2))
    assert len(set(chunks.tolist())) > 1


@pytest.mark.parametrize("tp", [2, 4])
def test_the_vocabulary_is_padded_and_every_shard_is_used(tp):
    config = load(None, {"model": {"preset": "sensitive"}, "mesh": {"tp": tp, "cp": 2}})
    assert config.model.vocab_size % tp
    tokens = torch.cat([batch.tokens for batch in batches(1, 0)])
    rows = -(-config.model.vocab_size // tp)
    assert set((tokens // rows).unique().tolist()) == set(range(tp))
    assert int(tokens.max()) == config.model.vocab_size - 1


def test_its_data_serve_other_models():
    config = load(None, {"model": {"preset": "tiny"}, "data": {"preset": "sensitive"}})
    assert (config.model.dim, config.data.padding) == (64, 0.5)
    with pytest.raises(ConfigError, match="unknown"):
        load(None, {"data": {"preset": "sensible"}})
