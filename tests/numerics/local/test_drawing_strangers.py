"""Trainers of two ranks that save, restore and reseed generators: sound ones stay so, masks that repeat are called."""

from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build
from numerics.local.proof import prove
from tests.numerics.local import drawing_strangers
from tests.numerics.local.strangers_benchmark import FOURTH_BENIGN, FOURTH_BUGS, MODELS

OPEN = {"forked around"}


def answered(ranks, folder, trainer, change):
    ranks.run(trainer, 2, folder / "run", change)
    whole = build(f"{drawing_strangers.__name__}:{MODELS.get(trainer, 'layers')}")
    proving = partial(prove, model=whole.model, optimizer=whole.optimizer)
    return compare(folder / "run", None, Options(prove=proving))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "change"), [(trainer, name) for trainer, names in FOURTH_BENIGN.items() for name in names]
)
def test_sound_trainers_are_not_accused(ranks, tmp_path, trainer, change):
    found = answered(ranks, tmp_path, trainer, change)
    allowed = {"undecided"} if change in OPEN else {"identical", "rounding"}
    assert found.verdict in allowed, found.reason
    alike = "drop the same elements of their own parts" in found.reason
    assert alike == (trainer is drawing_strangers.sharded and change == "same seed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "change", "place"),
    [(trainer, name, place) for trainer, bugs in FOURTH_BUGS.items() for name, place in bugs.items()],
)
def test_masks_that_repeat_are_called(ranks, tmp_path, trainer, change, place):
    found = answered(ranks, tmp_path, trainer, change)
    assert (found.verdict, found.first_divergence.tensor) == ("bug", place)
    assert found.first_divergence.ranks == (0, 1)
