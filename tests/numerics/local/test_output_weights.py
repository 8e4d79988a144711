"""What the gradients of outputs show beside a baseline: how much positions and other losses count."""

from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from tests.numerics.local.reading_trainers import balanced
from tests.numerics.local.weighing_trainers import weighing


def answered(ranks, folder, base=0.1, **how):
    """Three ranks that do as `how` says, beside one that shares its weights and adds `base` times the balance."""
    ranks.run(partial(weighing, **{"balance": 0.1, **how}), 3, folder / "run")
    ranks.run(partial(weighing, balance=base), 1, folder / "base")
    model, optimizer = balanced()
    proving = partial(prove, model=model, optimizer=optimizer)
    return compare(folder / "run", folder / "base", Options(prove=proving))


@pytest.mark.slow
def test_class_weights_of_each_rank_are_named(ranks, tmp_path):
    found = answered(ranks, tmp_path, base=0.0, shared=False, balance=0.0)
    assert found.verdict == "bug"
    assert "times as much as one of data-parallel rank" in found.reason


@pytest.mark.slow
def test_a_balance_that_only_the_baseline_has_is_named(ranks, tmp_path):
    found = answered(ranks, tmp_path, balance=0.0)
    assert found.verdict == "bug"
    assert "counts in the baseline's loss and not in the run's" in found.reason


@pytest.mark.slow
def test_another_coefficient_is_named(ranks, tmp_path):
    found = answered(ranks, tmp_path, balance=0.15)
    assert found.verdict == "bug"
    assert "counts 1.5 times as much" in found.reason


def test_a_balance_of_each_rank_is_by_design(ranks, tmp_path):
    found = answered(ranks, tmp_path)
    assert found.verdict == "undecided"
    assert "each rank's own part of the batch" in found.reason
