"""Switches that change nothing but rounding: what they leave alone, and that they do what they say."""

import pytest

from reftrain.config.file import load
from tests.bugs.observe import differing, largest_change, observed
from tests.bugs.test_planted import BASE


def both(ranks, tables, switch):
    runs = []
    for extra in ({}, {"numerics": switch}):
        merged: dict[str, dict[str, object]] = {}
        for source in (BASE, {"numerics": {"policy": "bf16"}}, tables, extra):
            for table, values in source.items():
                merged.setdefault(table, {}).update(values)
        config = load(None, merged)
        runs.append(ranks.run(observed, config.mesh.world_size, config))
    return runs


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.quick(1)
def test_fp32_sums_over_two_tensor_ranks_are_equal(ranks, sequence_parallel):
    """A sum of two BF16 numbers, rounded once, is the same in whichever format it is made."""
    before, after = both(
        ranks, {"mesh": {"tp": 2, "sequence_parallel": sequence_parallel}}, {"tp_reduce": "fp32"}
    )
    assert not differing(before, after)


@pytest.mark.slow
def test_sums_over_four_tensor_ranks_in_fp32_round_once(ranks):
    before, after = both(ranks, {"mesh": {"tp": 4}}, {"tp_reduce": "fp32"})
    kind, step, _ = differing(before, after)[0]
    assert (kind, step) == ("forward", 0)
    assert largest_change(before, after, "forward") < 0.05


@pytest.mark.slow
def test_a_stacked_loss_changes_the_report_only(ranks):
    before, after = both(
        ranks,
        {"numerics": {"policy": "fp32"}, "data": {"batch_size": 12, "micro_batch_size": 1}},
        {"loss_log": "stacked"},
    )
    assert {kind for kind, _, _ in differing(before, after)} == {"logged"}
    assert largest_change(before, after, "logged") < 1e-6


def test_math_attention_rounds_otherwise(ranks):
    before, after = both(ranks, {}, {"attention": "math"})
    first = differing(before, after)[0]
    assert first == ("forward", 0, "layers.0.attention.wo")
    assert largest_change(before, after, "forward") < 0.05
