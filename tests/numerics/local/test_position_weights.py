"""What positions count in a run's loss beside its baseline's: the parts that divide by their own counts are named."""

from functools import partial

import pytest
import torch

from numerics.comparison.compare import Options, compare
from numerics.local.losses.token_weights import reads_own_rows
from numerics.local.proof import prove
from tests.numerics.local.test_token_weights import (
    all_positions,
    all_tokens,
    drawn,
    entropy,
    made,
    own_tokens,
    second_double,
    smoothed,
    squared,
    trained,
    with_normaliser,
)


def answered(folder, divided_by, base=all_tokens, *, model=True, counts=(12, 9)):
    """A run whose loss is divided by one thing, beside a baseline that divides by another."""
    trained(folder / "run", divided_by, counts=counts)
    trained(folder / "base", base)
    proving = partial(prove, model=made()[0], optimizer=made()[1]) if model else None
    return compare(folder / "run", folder / "base", Options(prove=proving))


@pytest.mark.parametrize("model", [True, False])
def test_means_of_micro_batches_are_a_bug(tmp_path, model):
    found = answered(tmp_path, own_tokens, model=model)
    assert found.verdict == "bug"
    assert "a mean of the means over micro-batches of each rank, which hold 9 to 12 positions" in found.reason
    assert (found.first_divergence.tensor, found.first_divergence.phase) == ("out.grad", "backward")


def test_the_baseline_is_named_where_it_divides_otherwise(tmp_path):
    found = answered(tmp_path, all_tokens, own_tokens)
    assert found.verdict == "undecided"
    assert "of the baseline, the loss is a mean of the means" in found.reason


def test_a_micro_batch_that_counts_twice_is_a_bug(tmp_path):
    found = answered(tmp_path, second_double)
    assert found.verdict == "bug"
    assert (
        "micro-batch 1 counts 2 times as much as one of data-parallel rank 0, micro-batch 0" in found.reason
    )


def test_labels_that_one_run_leaves_out_are_a_bug(tmp_path):
    found = answered(tmp_path, all_tokens, counts=(12, 12))
    assert found.verdict == "bug"
    assert "3 of 24 positions count in the run's loss and not in the baseline's" in found.reason


def test_doubts_that_the_baseline_shares_are_told(tmp_path):
    trained(tmp_path / "run", all_positions, clip=True)
    trained(tmp_path / "base", all_positions, clip=True, scale=4.0)
    proving = partial(prove, model=made()[0], optimizer=made()[1])
    found = compare(tmp_path / "run", tmp_path / "base", Options(prove=proving))
    assert found.verdict in {"drift", "identical", "rounding"}, found.reason


def sent(loss):
    logits, labels = drawn(3)
    loss(logits, labels).backward()
    return logits.detach(), logits.grad


@pytest.mark.parametrize("loss", [entropy, smoothed, with_normaliser])
def test_losses_of_single_rows_are_recognised(loss):
    assert reads_own_rows(*sent(loss), 1e-4)


def over_the_batch(logits, labels):
    return entropy(logits / logits.std(0, keepdim=True).clamp_min(0.1), labels)


@pytest.mark.parametrize("loss", [squared, over_the_batch])
def test_losses_over_several_rows_are_not(loss):
    assert not reads_own_rows(*sent(loss), 1e-4)


def test_few_classes_show_no_form():
    assert not reads_own_rows(torch.randn(4, 2), torch.randn(4, 2), 1e-4)
