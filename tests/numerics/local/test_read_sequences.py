"""Which sequences ranks and runs read, what a run alone cannot show, and losses that reach no gradient."""

from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from tests.numerics.local import reading_trainers as trainers


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    made = {}

    def run(**how):
        key = tuple(sorted(how.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            ranks.run(partial(trainers.reading, **how), 3, made[key])
        return made[key]

    return run


def answered(run, baseline=None, make=trainers.model_of):
    model, optimizer = make()
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


def test_ranks_that_read_the_same_are_named(runs):
    found = answered(runs(readers=(0, 0, 0)))
    assert found.verdict == "undecided"
    assert found.reason.startswith(
        "data-parallel ranks 0, 1 and 2 read the same sequences of in.0 in every step"
    )
    some = answered(runs(readers=(1, 0, 1)))
    assert "data-parallel ranks 0 and 2 read the same sequences" in some.reason
    assert "ranks 0 and 2 read the same" in compare(runs(readers=(1, 0, 1)), None).reason


@pytest.mark.slow
def test_beside_a_baseline_that_is_a_bug(runs):
    found = answered(runs(readers=(0, 0, 0)), runs())
    assert found.verdict == "bug"
    assert (
        "read the same sequences of in.0 in every step, and the ranks of the baseline do not" in found.reason
    )
    assert compare(runs(readers=(0, 0, 0)), runs()).verdict == "bug"


def test_sound_readers_are_proved(runs):
    assert answered(runs()).verdict == "identical"
    assert answered(runs(readers=(2, 0, 1)), runs()).verdict == "drift"


def test_a_run_alone_says_what_it_took_as_given(runs):
    reason = answered(runs()).reason
    assert reason.endswith("the data, what it starts from (weights; optimiser state; random numbers)")
    assert "the data" not in answered(runs(readers=(2, 0, 1)), runs()).reason


def test_other_sequences_are_no_bug(runs):
    for found in (answered(runs(seed=1), runs()), compare(runs(seed=1), runs())):
        assert found.verdict == "undecided"
        assert (
            "the runs trained on other sequences: none of the 24 of in.0 in 2 steps is among" in found.reason
        )


def test_sequences_of_another_step_are_a_bug(runs):
    found = answered(runs(steps=(1, 0)), runs())
    assert found.verdict == "bug"
    assert "12 of 12 sequences of in.0 in step 0 are not the baseline's" in found.reason


def test_repeated_epochs_are_said(runs):
    assert "; steps 2 and 3 repeat the sequences of step 0 and 1" in answered(runs(steps=(0, 1, 0, 1))).reason
    assert "repeat" not in answered(runs()).reason


@pytest.fixture(scope="module")
def balances(tmp_path_factory):
    folder = tmp_path_factory.mktemp("balances")
    trainers.balancing(folder / "sound")
    trainers.balancing(folder / "lost", detached=True)
    return folder


def test_a_loss_that_reaches_no_gradient_is_named(balances):
    alone = answered(balances / "lost", make=trainers.balanced)
    assert alone.verdict == "identical"
    assert "which the model keeps in addition to its output, contributes to no gradient" in alone.reason
    beside = answered(balances / "lost", balances / "sound", trainers.balanced)
    assert beside.verdict == "bug"
    assert "counts in the baseline's loss and not in the run's" in beside.reason
    assert "where the difference is intended, compare with a baseline that has it too" in beside.next
    assert "contributes to no" not in answered(balances / "sound", make=trainers.balanced).reason


def test_first_values_alone_prove_nothing(tmp_path):
    for name in ("one", "other"):
        trainers.forwards(tmp_path / name, given=True)
    found = compare(tmp_path / "one", tmp_path / "other")
    assert found.verdict == "undecided"
    assert "nothing in common but first values" in found.reason
