"""Work that follows the documents: the kernel that computes only what attends, and the fault that joins documents."""

import numpy as np
import pytest
import torch

from reftrain.config.file import load
from reftrain.faults.longer_documents import attending_pairs, join_documents
from reftrain.faults.registry import fault_hooks, read_faults
from reftrain.model.batch import allowed_keys
from reftrain.model.document_attention import attend_documents, stretches
from reftrain.parallel.context import chunk_positions
from reftrain.rank.hooks import HookList
from tests.reftrain import workers

EOS = 99


@pytest.mark.parametrize(("cp", "index"), [(1, 0), (2, 0), (2, 1), (4, 3)])
def test_document_kernel_equals_the_mask(cp, index):
    torch.manual_seed(cp)
    documents = torch.cumsum(torch.rand(2, 64) < 0.1, 1)
    positions = chunk_positions(64, cp, index)
    q, k, v = (
        torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (len(positions), 64, 64)
    )
    mask = allowed_keys(positions, torch.arange(64), documents, document_mask=True).unsqueeze(1)
    found = stretches(documents, positions)
    outs = (
        torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        attend_documents(q, k, v, found),
    )
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs]
    for a, b in zip((outs[0], *grads[0]), (outs[1], *grads[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    computed = sum((s.end - s.first) * (s.key_end - s.key) for s in found)
    assert int(mask.sum()) <= computed < 2 * 64 // cp * 64, "less than every pair"


def test_a_step_is_the_same_with_either_kernel(ranks):
    got = {}
    for kernel in ("sdpa", "documents"):
        tables = {"mesh": {"cp": 2, "dp": 2}, "model": {"layers": 2}, "data": {"batch_size": 4}}
        config = load(None, {**tables, "numerics": {"policy": "fp64", "attention": kernel}})
        got[kernel] = workers.assemble(ranks.run(workers.gradients, 4, config))
    for name, values in got["sdpa"].items():
        np.testing.assert_allclose(got["documents"][name], values, rtol=1e-5, atol=1e-9, err_msg=name)


def sequence(*sizes):
    tokens = np.concatenate([np.r_[np.arange(1, n), EOS] for n in sizes])
    return tokens.astype(np.int64)


def test_pairs_of_a_sequence_are_those_of_its_documents():
    assert attending_pairs(np.array([2, 6]), 7) == 6 + 10
    assert attending_pairs(np.array([], dtype=np.int64), 4) == 10


def test_documents_are_joined_backwards_until_there_is_enough():
    tokens = sequence(4, 4, 4, 4)
    joined = join_documents(tokens, EOS, 0.75, 1.4)
    assert np.flatnonzero(joined == EOS).tolist() == [3, 7, 15], "the third with what follows its place"
    more = join_documents(tokens, EOS, 0.74, 2.0)
    assert np.flatnonzero(more == EOS).tolist() == [3, 15]
    assert attending_pairs(np.array([3]), 16) >= 2.0 * attending_pairs(np.array([3, 7, 11]), 16)
    whole = join_documents(tokens, EOS, 0.5, 100.0)
    assert EOS not in whole
    assert (whole != tokens).sum() == 4, "nothing but the ends of documents has changed"


def test_a_sequence_of_one_document_stays():
    tokens = np.arange(1, 9)
    assert join_documents(tokens, EOS, 0.5, 3.0).tolist() == tokens.tolist()


def attention_work(rank, world, store, config):
    """Forward work of this rank's attention in two steps, as the faults leave it."""
    notes = workers.Diary()
    hooks = HookList([*fault_hooks(read_faults(config)), notes])
    with workers.trainer(rank, world, store, config, hooks) as made:
        for step in range(2):
            made.apply_gradients(step, made.compute_gradients(step).norm)
    return sum(n[4] for n in notes.notes if n[:2] == ("segment_begin", "attention") and n[3] == "forward")


def config_with(*faults, **run):
    return load(
        None,
        {
            "mesh": {"cp": 2, "dp": 2},
            "model": {"layers": 1},
            "data": {"batch_size": 8, "seq_len": 256, "mean_document": 16, "padding": 0.0},
            "numerics": {"attention": "documents"},
            "evidence": {"faults": list(faults)},
            "run": {"steps": 2, **run},
        },
    )


@pytest.mark.slow
def test_the_replica_that_is_meant_has_more_to_do(ranks):
    usual = ranks.run(attention_work, 4, config_with())
    struck = ranks.run(attention_work, 4, config_with("doc_imbalance:rank=3,factor=4"))
    assert struck[:2] == usual[:2], "the other replica"
    assert struck[3] > 2 * usual[3]
    assert struck[3] > 1.3 * struck[2], "documents grow in the later chunk of the rank"
    once = ranks.run(attention_work, 4, config_with("doc_imbalance:rank=3,factor=4,steps=1"))
    assert usual[3] < once[3] < struck[3]


@pytest.mark.slow
def test_without_a_rank_it_moves(ranks):
    config = config_with("doc_imbalance:factor=4")
    rng = [int(np.random.default_rng((config.data.seed, step)).integers(2)) for step in range(8)]
    assert set(rng) == {0, 1}
    assert ranks.run(attention_work, 4, config) != ranks.run(attention_work, 4, config_with())


def test_it_is_refused_where_it_would_show_nothing(ranks):
    config = load(None, {"evidence": {"faults": ["doc_imbalance:factor=4"]}})
    with pytest.raises(AssertionError, match="doc_imbalance shows nothing where attention \\(sdpa\\)"):
        ranks.run(attention_work, 1, config)
