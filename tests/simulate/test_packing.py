"""Pairs that attend on each context rank, against counting them one by one."""

import numpy as np
import pytest

from reftrain.errors import ConfigError
from reftrain.simulate.packing import Packing, _pairs_before


@pytest.mark.parametrize(("seq_len", "mean", "cp"), [(64, 9, 4), (96, 40, 2), (32, 500, 1), (48, 2, 3)])
def test_pairs_are_those_that_counting_gives(seq_len, mean, cp):
    packing = Packing(seq_len, 1, mean, seed=3)
    rng = np.random.default_rng(1)
    for _ in range(50):
        ends = packing._ends(rng)
        keys, start = np.zeros(seq_len, int), 0
        for end in ends:
            keys[start:end] = np.arange(1, end - start + 1)
            start = end
        chunks = keys.reshape(2 * cp, -1).sum(axis=1)
        cuts = np.arange(2 * cp + 1) * (seq_len // (2 * cp))
        before = _pairs_before(cuts, np.concatenate([[0], ends[:-1]]), ends)
        assert np.diff(before).tolist() == chunks.tolist()


def test_one_long_document_is_even_with_all_causal_pairs():
    packing = Packing(128, 2, 10**9, seed=0)
    pairs = packing.pairs(0, micro_batches=1, dp=1, cp=4)
    assert pairs.sum() == packing.causal_pairs()
    assert np.ptp(pairs) == 0


def test_short_documents_cost_less_and_differ_by_step():
    packing = Packing(4096, 1, 200, seed=0)
    first, second = (packing.pairs(step, 2, 2, 2) for step in (0, 1))
    assert first.sum(axis=2).max() < 0.4 * packing.causal_pairs()
    assert not np.array_equal(first, second)
    assert np.array_equal(first, packing.pairs(0, 2, 2, 2))


def test_a_sequence_that_cannot_be_cut_is_refused():
    with pytest.raises(ConfigError, match="cannot be cut into 6 chunks"):
        Packing(64, 1, 9, seed=0).pairs(0, 1, 1, 3)
