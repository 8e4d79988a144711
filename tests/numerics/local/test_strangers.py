"""A trainer whose ranks each step some parameters for all: sound, and with a result that reaches some ranks late."""

from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build
from numerics.local.proof import prove
from tests.numerics.local.strangers import replicas

pytestmark = pytest.mark.slow
RANKS = 3


@pytest.mark.parametrize(
    ("change", "verdict", "first"),
    [("ZeRO-1", "identical", None), ("ZeRO-1 sends one late", "bug", "layers.0.n2.bias")],
)
def test_owners_step_for_all(ranks, tmp_path, change, verdict, first):
    ranks.run(replicas, RANKS, tmp_path / "run", change)
    whole = build("tests.numerics.local.strangers:tied")
    proving = partial(prove, model=whole.model, optimizer=whole.optimizer)
    found = compare(tmp_path / "run", None, Options(prove=proving))
    assert found.verdict == verdict
    assert first == (found.first_divergence.tensor if found.first_divergence else None)
    assert any(text.startswith("copies after step 2: ") for text in found.not_checked)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "one group's rate is stale",
            "group 1 does not change (0.003 in every step) while that of group 0 changes",
        ),
        (
            "mean of means",
            "a mean of the means over micro-batches of each rank, which hold 12 to 14 positions",
        ),
        ("padded tokens count", "the loss is divided by all 96 positions, though 78 of them count"),
    ],
)
def test_what_may_be_meant_is_open(ranks, tmp_path, change, said):
    ranks.run(replicas, RANKS, tmp_path / "run", change)
    whole = build("tests.numerics.local.strangers:tied")
    proving = partial(prove, model=whole.model, optimizer=whole.optimizer)
    found = compare(tmp_path / "run", None, Options(prove=proving))
    assert found.verdict == "undecided"
    assert said in found.reason
