"""Documents' pairs against the trainer's own masks; what is fitted and what is predicted."""

import numpy as np
import pytest
import torch

from reftrain.cost.hardware import load_hardware
from reftrain.model.batch import allowed_keys
from reftrain.papers.document_imbalance import DocumentModel
from reftrain.papers.llama3 import PREDICTED, job_of_row
from reftrain.parallel.context import chunk_positions
from reftrain.plan.attention_pairs import (
    document_ends,
    pairs_of_ranks,
    sample_pairs,
    slowest_pairs,
)


@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_those_of_the_trainers_mask(cp, seed):
    length = 64
    ends = document_ends(np.random.default_rng(seed), 9.0, length)
    documents = torch.from_numpy(np.searchsorted(ends, np.arange(length), side="right")).unsqueeze(0)
    for rank, pairs in enumerate(pairs_of_ranks(ends, length, cp)):
        mine = chunk_positions(length, cp, rank)
        allowed = allowed_keys(mine, torch.arange(length), documents, document_mask=True)
        assert pairs == int(allowed.sum())


def test_one_document_balances_over_the_chunks():
    pairs = pairs_of_ranks(np.array([4096.0]), 4096, 8)
    assert pairs.sum() == 4096 * 4097 / 2
    assert pairs.max() / pairs.min() == pytest.approx(1, abs=1e-3)


def test_documents_have_the_mean_length():
    ends = document_ends(np.random.default_rng(0), 50.0, 1_000_000)
    assert np.diff(ends[:-1]).mean() == pytest.approx(50.5, rel=0.02)
    assert ends[-1] == 1_000_000


def test_samples_of_two_means_share_their_random_numbers():
    near = np.abs(sample_pairs(100.0, 4096, 4, 20) / sample_pairs(100.1, 4096, 4, 20) - 1).max()
    assert near < 0.05


def test_the_slowest_rank_has_more_than_the_mean():
    assert slowest_pairs(500.0, 8192, 4) > sample_pairs(500.0, 8192, 4, 64).sum(axis=1).mean()
    assert slowest_pairs(1e9, 8192, 4) == pytest.approx(8192 * 8193 / 2, rel=1e-3)


@pytest.fixture(scope="module")
def model():
    return DocumentModel(job_of_row(PREDICTED[1]), load_hardware("h100"), steps=12)


@pytest.mark.slow
def test_waiting_is_predicted_from_the_imbalance_alone(model):
    """ "Scaling Llama 3 Training", section 7.3.2: 1.44 fitted, 7.64 % and 65.75 % predicted within a quarter."""
    effect = model.effect(model.fit_mean(1.44), timed=3)
    assert effect.slowest_over_fastest == pytest.approx(1.44, rel=0.01)
    assert effect.cp_share == pytest.approx(0.0764, rel=0.25)
    assert effect.waiting_part == pytest.approx(0.6575, rel=0.25)


def test_without_boundaries_nobody_waits(model):
    effect = model.effect(1e9, timed=1)
    assert effect.waiting_part < 0.01
    assert effect.mean_pairs == pytest.approx(1, rel=1e-3)
