"""What stands around the optimiser: its own step repeated, its settings, factors of all gradients and of each rank."""

from functools import partial

import pytest
import torch
from torch import nn

from numerics import watch
from numerics.comparison.compare import Options, compare
from numerics.comparison.proofs.other_settings import _unlike
from numerics.local.gradients.parameter_gradients import Scale, Sum
from numerics.local.gradients.rank_factors import factors_of_shares
from numerics.local.model_source import build
from numerics.local.proof import prove
from numerics.local.updates.optimizer_settings import _parsed
from numerics.report.text import compare_text
from tests.marks import quick_first
from tests.numerics.local.stepping_trainers import sharded, trained

HERE = "tests.numerics.local.test_stepping"


def answered(run, function="whole", baseline=None, source="tests.numerics.local.stepping_trainers"):
    """The answer with a model, or with none."""
    if not function:
        return compare(run, baseline)
    made = build(f"{source}:{function}")
    proving = partial(prove, model=made.model, optimizer=made.optimizer, schedule=made.schedule)
    return compare(run, baseline, Options(prove=proving))


def alone(tmp_path, habit, **more):
    """One process that trains with a habit."""
    trained(0, 1, None, tmp_path / "run", habit, **more)
    return tmp_path / "run"


SOUND = ["clips by value", "clips, scaled", "skips a step, scaled", "resumed", "not divided by micro-batches"]


@pytest.mark.parametrize("habit", SOUND)
@pytest.mark.quick(1)
def test_sound_habits_are_no_bugs(tmp_path, habit):
    found = answered(alone(tmp_path, habit))
    assert found.verdict in {"identical", "rounding"}, found.reason
    assert ", which no evidence shows: " in compare_text(found).splitlines()[0]


def test_a_loss_scale_stands_in_the_first_line(tmp_path):
    found = answered(alone(tmp_path, "not divided by micro-batches"))
    first = compare_text(found).splitlines()[0]
    assert first.startswith(
        "IDENTICAL but for the loss scale (2 times a mean's, as many as micro-batches), the loss"
    )


def test_undivided_micro_batches_are_named_beside_a_baseline(tmp_path):
    trained(0, 1, None, tmp_path / "base", steps=1)
    found = answered(alone(tmp_path, "not divided by micro-batches", steps=1), baseline=tmp_path / "base")
    assert found.verdict == "bug"
    assert "the losses of 2 micro-batches are added up without being divided by their number" in found.reason
    assert "scale_grads=False" in found.reason


@pytest.mark.parametrize(
    ("habit", "said"),
    [
        ("never unscaled", "1024 times the gradients of a mean of the loss"),
        ("clips before unscaling", "0.05 / 1024, the scale of the loss: they were clipped before"),
        ("one layer frozen", "up.weight gets a gradient from the loss, and none reached the optimiser"),
    ],
)
@pytest.mark.quick(1)
def test_what_may_be_meant_is_undecided(tmp_path, habit, said):
    found = answered(alone(tmp_path, habit))
    assert found.verdict == "undecided"
    assert said in found.reason


def test_a_layer_frozen_in_the_model_too_is_meant(tmp_path):
    found = answered(alone(tmp_path, "one layer frozen"), "whole_but_frozen")
    assert found.verdict == "identical", found.reason


@pytest.mark.parametrize(
    ("habit", "said", "function"),
    [
        ("never cleared", "gradients of step 0 were not cleared", "whole"),
        (
            "decays all",
            "is stepped with weight_decay 0.1, and the optimiser given by --model has weight_decay 0",
            "whole",
        ),
        ("restored without count", "moments and a count of 0 steps", "whole"),
        ("restored without moments", "a count of 4 steps and no moments", "whole"),
        (
            "warm-up stepped twice",
            "stepped by 0.00375, and the scheduler gives 0.0025",
            "whole_with_schedule",
        ),
    ],
)
@pytest.mark.quick(1)
def test_bugs_of_the_update_are_explained(tmp_path, habit, said, function):
    found = answered(alone(tmp_path, habit), function)
    assert found.verdict == "bug", found.reason
    assert said in found.explanation


RANKS = [
    ("one rank decays norms", "unequal weight_decay: 0 on ranks 0, 2; 0.1 on rank 1", (1,)),
    ("one rank clips by another limit", "a clip by a limit, or a norm, of its own", (1,)),
    ("one rank clips by value", "rank 1 clips its copy by value, at 0.002", (1,)),
    ("one rank leaves a parameter out", "the optimiser of rank 1 leaves it out", (1,)),
]


@pytest.mark.parametrize(("habit", "said", "odd"), quick_first(2, RANKS))
def test_one_ranks_habit_needs_no_model(ranks, tmp_path, habit, said, odd):
    ranks.run(trained, 3, tmp_path / "run", habit, "adamw", 1)
    found = answered(tmp_path / "run", "")
    assert (found.verdict, found.proof) == ("bug", "local"), found.reason
    assert said in found.explanation
    assert found.first_divergence.ranks == odd


@pytest.mark.parametrize("function", ["whole", ""])
@pytest.mark.quick(1)
def test_a_clip_by_shards_is_named(ranks, tmp_path, function):
    ranks.run(sharded, 3, tmp_path / "run", "own norm", 1)
    found = answered(tmp_path / "run", function)
    assert found.verdict == "bug"
    assert "a clip by each rank's own norm, which is 0.05 after it" in found.explanation


BESIDE = [
    ("", "rounding", "gives the baseline's outputs in every bit"),
    ("summed over ranks", "bug", "all gradients are 3 times the baseline's"),
    ("decays all", "bug", "weight_decay 0.1, and in the baseline with weight_decay 0"),
    ("one layer frozen", "bug", "the baseline's optimiser gets it, and the run's does not"),
    ("skips a step, scaled", "bug", "the run makes no update in step 1, and the baseline makes one"),
    ("resumed", "undecided", "start from other weights"),
]


@pytest.mark.parametrize(("habit", "verdict", "said"), quick_first(3, BESIDE))
@pytest.mark.quick(1)
def test_records_decide_beside_a_baseline(ranks, tmp_path, habit, verdict, said):
    trained(0, 1, None, tmp_path / "base")
    ranks.run(trained, 3, tmp_path / "run", habit)
    found = answered(tmp_path / "run", "", tmp_path / "base")
    assert found.verdict == verdict, found.reason
    assert said in found.reason


OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    partial(torch.optim.SGD, lr=0.1, maximize=True, foreach=True),
    partial(torch.optim.Adam, amsgrad=True, fused=True),
    partial(torch.optim.AdamW, foreach=True),
    partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    partial(torch.optim.RMSprop, centered=True, momentum=0.5),
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.Rprop,
]


def stepped(out, make, touched=0.0):
    """A run of three steps of one layer; the optimiser's result may be touched before it is recorded."""
    torch.manual_seed(0)
    model = nn.Linear(6, 20)
    optimizer = make(model.parameters())
    if touched:
        optimizer.register_step_post_hook(lambda *_: model.weight.data.mul_(1 + touched))
    watcher = watch(model, optimizer, out=out, level="tensors")
    for step in range(3):
        model(torch.randn(4, 6, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    return compare(out, None)


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.quick(3)
def test_optimisers_of_torch_are_repeated_exactly(tmp_path, make):
    found = stepped(tmp_path / "run", make)
    assert found.verdict == "undecided"
    (counts,) = [note for note in found.notes if note.startswith("local proof")]
    assert "0 within the bound of their rounding, 0 beyond it, 0 not checked" in counts
    assert not any("optimiser's step" in text for text in found.not_checked)


def test_an_update_of_another_hand_is_a_bug(tmp_path):
    found = stepped(tmp_path / "run", torch.optim.AdamW, touched=1e-3)
    assert (found.verdict, found.first_divergence.tensor) == ("bug", "weight")
    assert "what the optimiser makes of the recorded gradient and state" in found.reason


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"groups": 3}', b'{"groups": [[1]]}', b'{"groups": [{"params": 1}]}']
)
def test_damaged_settings_are_left_out(raw):
    assert _parsed(raw) is None


def test_a_wrapped_optimizer_is_no_other_formula():
    plain, wrapped, other = (
        ("torch.optim.adamw.AdamW", {}),
        ("torch.distributed.optim.Zero", {}),
        ("torch.optim.sgd.SGD", {}),
    )
    assert not _unlike(wrapped, plain)
    assert "by AdamW, and the baseline by SGD" in _unlike(plain, other)


def test_a_rank_may_have_no_share_of_a_gradient():
    sums, one = {"a": Sum(), "b": Sum()}, torch.arange(1.0, 9.0)
    sums["a"].add((0, 0), None, one)
    sums["a"].add((1, 0), None, 2 * one)
    sums["b"].add((0, 0), None, one.flip(0))
    said = factors_of_shares({"a": 2 * one, "b": one.flip(0)}, sums, Scale(1.0, ""))
    assert "rank 0 1; rank 1 0.5 times" in said
