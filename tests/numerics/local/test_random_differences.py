"""Runs that draw other random numbers than their baseline: said first, and what does not depend on them is compared."""

from functools import partial

import pytest
import torch

from numerics.comparison.compare import Options, compare
from numerics.local.judgement import Standing, within
from numerics.local.proof import prove
from tests.marks import quick_first
from tests.numerics.local.random_trainers import drawing, model_of, tensor_ranks


def answered(run, baseline=None, kind="layer", kept=None):
    model, optimizer = model_of(kind, 0.3, kept)
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    made = {}

    def run(world, kind="layer", **how):
        key = (world, kind, *sorted(how.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            order = ("alike", "micro_batches", "scale", "kept", "more")
            given = {"alike": False, "micro_batches": 1, "scale": 1.0, "kept": None, "more": None, **how}
            ranks.run(drawing, world, made[key], kind, *(given[name] for name in order))
        return made[key]

    return run


@pytest.mark.parametrize(
    ("kind", "first"),
    quick_first(
        3,
        [
            ("layer", "mix.drop.out"),
            ("attention", "mix.up.out"),
            ("noise", "mix.out"),
            ("function", "mix.out"),
            ("path", "mix.out"),
            ("heads", "mix.heads.out"),
        ],
    ),
)
@pytest.mark.quick(1)
def test_other_random_numbers_are_said_first(runs, kind, first):
    found = answered(runs(3, kind), runs(1, kind), kind)
    assert found.verdict in {"drift", "rounding"}
    assert found.reason.startswith(f"the runs drew other random numbers: {first} at step 0 differs by")
    assert "each run is proved by itself, and positions count equally in both losses" in found.reason
    assert "only the order of sums" not in found.reason


@pytest.mark.slow
def test_accumulated_micro_batches_draw_too(runs):
    found = answered(runs(3, micro_batches=2), runs(1, micro_batches=2))
    assert found.verdict in {"drift", "rounding"}
    assert found.reason.startswith("the runs drew other random numbers: mix.drop.out")


def test_a_scaled_loss_shows_through_dropout(runs):
    found = answered(runs(3, scale=2.0), runs(1))
    assert found.verdict == "bug"
    assert found.reason.startswith("each of the 96 positions that count in step 0 does so 2 times as much")


def test_a_small_factor_is_exact_in_every_element(runs):
    found = answered(runs(3, "plain", scale=1.01), runs(1, "plain"), "plain")
    assert found.verdict == "bug"
    assert found.reason.startswith("every element of all gradients of step 0 is 1.01 times the baseline's")


def test_without_a_model_random_numbers_are_a_reason(runs):
    found = compare(runs(3, micro_batches=2), runs(1, micro_batches=2))
    assert found.verdict == "undecided"
    assert "both drew random numbers, and these may be the cause: mix.drop.out" in found.reason


def test_crops_are_drawn_inputs_not_other_data(runs):
    more = (0, 2, None, "")
    found = answered(runs(3, "crops", more=more), runs(1, "crops", more=more), "crops")
    assert found.verdict in {"drift", "rounding"}
    assert found.reason.startswith(
        "the runs drew other random numbers for their inputs: in.0 of step 0 holds"
    )


@pytest.mark.parametrize(
    ("kind", "words"), [("layer", "drop the same elements"), ("function", "draw the same")]
)
@pytest.mark.quick(1)
def test_ranks_that_drop_alike_stand_in_the_verdict(runs, kind, words):
    found = answered(runs(3, kind, alike=True), None, kind)
    assert found.verdict in {"identical", "rounding"}
    assert f"data-parallel ranks 0 and 1 {words}" in found.reason
    assert "data-parallel" not in answered(runs(3, kind), None, kind).reason


def test_alike_ranks_are_named_without_a_model(runs):
    found = compare(runs(3, alike=True, more=(0, 2, None, "")), None)
    assert "data-parallel ranks 0 and 1 begin forwards with the same random numbers (step 0" in found.reason


@pytest.mark.parametrize(
    ("kind", "tensor", "words"),
    quick_first(
        1,
        [
            ("layer", "mix.drop.out", "each drops other elements of its copy"),
            ("function", "mix.out", "their generators begin the forward in unlike states"),
            ("noise", "mix.out", "their generators begin the forward in unlike states"),
        ],
    ),
)
def test_tensor_ranks_that_draw_apart_are_named(ranks, tmp_path, kind, tensor, words):
    ranks.run(tensor_ranks, 2, tmp_path / "apart", kind, False)
    found = answered(tmp_path / "apart", None, kind)
    assert (found.verdict, found.first_divergence.tensor) == ("bug", tensor)
    assert found.explanation == (
        f"ranks 0 and 1 share these activations and draw random numbers apart ({words})"
    )
    ranks.run(tensor_ranks, 2, tmp_path / "alike", kind, True)
    assert answered(tmp_path / "alike", None, kind).verdict in {"identical", "rounding"}


@pytest.mark.parametrize("kind", ["layer", pytest.param("function", marks=pytest.mark.slow)])
def test_recomputation_with_other_numbers_is_a_bug(runs, kind):
    found = answered(runs(1, kind, kept=False), None, kind, kept=False)
    assert (found.verdict, found.first_divergence.phase) == ("bug", "backward")
    assert kind != "layer" or "`preserve_rng_state=False`" in found.explanation
    sound = answered(runs(1, kind, kept=True), None, kind, kept=True)
    assert sound.verdict == "identical"
    assert not any(text.startswith("rounding") for text in sound.not_checked)


@pytest.mark.parametrize(
    ("lost", "verdict", "words"),
    [
        ("", "drift", "bit for bit what its recorded inputs give"),
        ("optimizer", "bug", "the optimiser's state was not restored: it begins without"),
        ("data", "bug", "step 2 reads what the baseline's step 0 read"),
        ("generator", "undecided", "its generators of random numbers were not restored (step 2, rank 0)"),
    ],
)
@pytest.mark.quick(1)
def test_resumed_runs_are_counted_from_their_checkpoint(runs, tmp_path_factory, lost, verdict, words):
    saved = tmp_path_factory.getbasetemp() / "saved"
    whole = runs(3, more=(0, 4, str(saved), ""))
    found = answered(runs(3, more=(2, 4, str(saved), lost)), whole)
    assert found.verdict == verdict
    assert words in found.reason
    assert any("goes on from the baseline's weights after step 1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("optimizer", "the optimiser's state was not restored: it begins without"),
        ("data", "step 2 reads what the baseline's step 0 read"),
    ],
)
@pytest.mark.quick(0)
def test_lost_state_is_named_without_a_model(runs, tmp_path_factory, lost, words):
    saved = tmp_path_factory.getbasetemp() / "saved"
    whole = runs(3, more=(0, 4, str(saved), ""))
    found = compare(runs(3, more=(2, 4, str(saved), lost)), whole)
    assert (found.verdict, found.proof) == ("bug", "invariant")
    assert words in found.reason
    assert found.first_divergence.step == 2
    other = compare(whole, runs(3, more=(2, 4, str(saved), lost)))
    assert other.verdict == "undecided"
    assert "compared the other way round" in other.reason


def test_one_element_apart_is_no_multiple():
    value = torch.linspace(-2, 2, 64, dtype=torch.float64)
    error = torch.full_like(value, 1e-7)
    recorded = (2 * value).float()
    low, high = within(value, error, recorded).factors
    assert low <= 2 <= high < 2.00001
    recorded[7] *= 1.001
    judged = within(value, error, recorded)
    assert (judged.standing, judged.factors) == (Standing.BEYOND, None)
