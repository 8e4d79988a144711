"""Trainers of three ranks or more: sound ones are not accused, and their bugs are called where they stand."""

from functools import partial

import pytest
import torch

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build
from numerics.local.proof import prove
from numerics.local.records.recorded import summed
from tests.numerics.local import third_strangers
from tests.numerics.local.strangers_benchmark import MODELS, THIRD_BENIGN, THIRD_BUGS, WORLDS
from tests.numerics.local.third_strangers import uneven_tokens

WITHOUT_EFFECT = {"padding seen"}
OPEN = {
    "averaged by ranks": "a mean of the means",
    "padding counted": "33 positions of padding (id 0), which in.1",
}


def answered(ranks, folder, trainer, change):
    ranks.run(trainer, WORLDS.get(trainer, 3), folder / "run", change)
    whole = build(f"{third_strangers.__name__}:{MODELS.get(trainer, 'plain')}")
    return compare(
        folder / "run", None, Options(prove=partial(prove, model=whole.model, optimizer=whole.optimizer))
    )


def test_a_sum_is_as_sure_as_its_addends():
    addends = [torch.tensor([1e4]), torch.tensor([-1e4]), torch.tensor([1e-5])]
    own = torch.tensor([1e4]) + torch.tensor([1e-5]) + torch.tensor([-1e4])
    made = summed(addends, "")
    assert own.item() == 0.0
    assert abs(float(own.double() - made.tensor.double())) <= float(made.error)
    assert float(made.error) == pytest.approx(2 * 2**-24 * 2e4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "change"), [(trainer, name) for trainer, names in THIRD_BENIGN.items() for name in names]
)
def test_sound_trainers_are_not_accused(ranks, tmp_path, trainer, change):
    found = answered(ranks, tmp_path, trainer, change)
    assert found.verdict in {"identical", "rounding"}, found.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "change", "place"),
    [
        (trainer, name, place)
        for trainer, bugs in THIRD_BUGS.items()
        for name, place in bugs.items()
        if name not in {*WITHOUT_EFFECT, *OPEN}
    ],
)
def test_bugs_are_called_in_their_place(ranks, tmp_path, trainer, change, place):
    found = answered(ranks, tmp_path, trainer, change)
    assert found.verdict == "bug"
    assert found.first_divergence.tensor == place


@pytest.mark.slow
@pytest.mark.parametrize("change", OPEN)
def test_what_may_be_meant_is_named(ranks, tmp_path, change):
    found = answered(ranks, tmp_path, uneven_tokens, change)
    assert found.verdict == "undecided"
    assert OPEN[change] in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("change", WITHOUT_EFFECT)
def test_padding_that_reaches_no_word_is_told(ranks, tmp_path, change):
    found = answered(ranks, tmp_path, uneven_tokens, change)
    assert found.verdict == "identical"
    assert any("outputs of words do not depend on it" in note for note in found.notes)
