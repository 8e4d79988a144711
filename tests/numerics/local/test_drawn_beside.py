"""What a run and its baseline drew, beside each other: another rule of dropping is a bug, other numbers are none."""

from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from tests.numerics.local.random_trainers import drawing, model_of, tensor_ranks


def answered(run, baseline, kind):
    model, optimizer = model_of(kind)
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    made = {}

    def run(world, kind, *, alike=False, tensor=False):
        key = (world, kind, alike, tensor)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            ranks.run(tensor_ranks if tensor else drawing, world, made[key], kind, alike)
        return made[key]

    return run


@pytest.mark.parametrize("world", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_replicas_seeded_alike_are_no_bug(runs, world):
    """Trainers seed replicas alike by default, or on purpose: Megatron-LM does."""
    found = answered(runs(3, "layer", alike=True), runs(world, "layer"), "layer")
    assert found.verdict == "undecided"
    assert "drop the same elements" in found.reason, found.reason


@pytest.mark.slow
def test_replicas_dropping_alike_in_both_are_no_bug(runs):
    found = answered(runs(3, "layer", alike=True), runs(2, "layer", alike=True), "layer")
    assert found.verdict in {"rounding", "drift"}


def test_states_alone_show_no_rule(runs):
    found = answered(runs(3, "function", alike=True), runs(1, "function"), "function")
    assert found.verdict == "undecided"
    assert "draw the same random numbers" in found.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("layer", "mix.drop.out at step 0 drops other elements"),
        ("function", "the forwards of step 0 draw from generators in unlike states"),
    ],
)
def test_draws_are_compared_without_common_activations(runs, kind, shown):
    found = answered(runs(2, kind, alike=True, tensor=True), runs(1, kind), kind)
    assert found.verdict in {"rounding", "drift"}
    assert found.reason.startswith(f"the runs drew other random numbers: {shown}")
