"""A factor that all gradients share is told and leaves the verdict open, unless an average or clipping is like it."""

from functools import partial

import pytest
import torch
from torch import nn

from numerics import watch
from numerics.comparison.broken_invariants.linear_invariants import _whole
from numerics.comparison.compare import Options, compare
from numerics.local.losses.common_factor import _clipped_scaled, _Share
from numerics.local.model_source import build
from numerics.local.proof import prove
from numerics.local.relations import bias_added
from numerics.local.updates.learning_rates import _own_count
from tests.numerics.local.second_strangers import llama_ddp
from tests.numerics.local.test_token_weights import CLASSES, LENGTH, entropy, judge, made


def mean(model, ids, *, given):
    return model(ids[:, :-1], ids[:, 1:]) if given else entropy(model(ids[:, :-1]), ids[:, 1:])


def total(model, ids, **_):
    return entropy(model(ids[:, :-1]), ids[:, 1:], reduction="sum")


def squares(model, ids, **_):
    return model(ids[:, :-1]).square().mean()


def trained(out, after, *, loss=mean, share=2.0, clip=0.0, given=False, steps=2):
    """The answer on steps of two micro-batches: losses are divided by `share`, then gradients multiplied by `after`."""
    model = judge() if given else made()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, micro_batches=2, out=out, level="tensors")
    for step in range(steps):
        random = torch.Generator().manual_seed(step)
        for _ in range(2):
            ids = torch.randint(0, CLASSES, (2, LENGTH + 1), generator=random)
            (loss(model, ids, given=given) / share).backward()
        for p in model.parameters():
            p.grad *= after
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    built = build(f"tests.numerics.local.test_token_weights:{'judge' if given else 'made'}")
    return compare(out, None, Options(prove=partial(prove, model=built.model, optimizer=built.optimizer)))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("after", "more", "said"),
    [
        (
            0.5,
            {},
            "0.5 times the gradients of a mean of the loss (1 / micro-batches): divided more than once",
        ),
        (0.5, {"steps": 1}, "0.5 times the gradients of a mean of the loss (1 / micro-batches)"),
        (0.5, {"given": True}, "0.5 times the gradients of a mean of the loss (1 / micro-batches)"),
        (0.37, {}, "0.37 times the gradients of a mean of the loss: divided"),
        (2.0, {}, "2 times their sum over micro-batches and ranks (micro-batches): reduced or counted"),
        (3.0, {"share": 1.0}, "3 times their sum over micro-batches and ranks: reduced or counted"),
        (0.25, {"share": 1.0}, "0.5 times the gradients of a mean of the loss (1 / micro-batches)"),
    ],
)
def test_a_factor_of_all_leaves_the_verdict_open(tmp_path, after, more, said):
    found = trained(tmp_path / "run", after, **more)
    assert found.verdict == "undecided"
    assert f"all gradients of all steps are {said}" in found.reason
    assert "between the backward and `optimizer.step()`" in found.next


@pytest.mark.parametrize(
    ("after", "more"),
    [
        (1.0, {}),
        (0.5, {"share": 1.0}),
        (1.0, {"share": 1.0}),
        (1.0, {"share": 20.0}),
        (1.0, {"clip": 0.05}),
        (0.37, {"steps": 1}),
        (1 / 1024, {"share": 2 / 1024}),
        (1 / 24, {"loss": total, "share": 1.0}),
        (1.0, {"loss": total, "share": 1.0}),
        (1 / 24, {"loss": squares, "share": 1.0}),
        (0.5, {"given": True, "share": 1.0}),
    ],
)
@pytest.mark.quick(3)
def test_averages_clipping_and_scales_are_not_doubted(tmp_path, after, more):
    found = trained(tmp_path / "run", after, **more)
    assert found.verdict in {"identical", "rounding"}, found.reason


@pytest.mark.slow
def test_gradients_averaged_twice_are_named(ranks, tmp_path):
    ranks.run(llama_ddp, 3, tmp_path / "run", "averaged twice")
    whole = build("tests.numerics.local.second_strangers:llama")
    found = compare(tmp_path / "run", None, Options(prove=partial(prove, model=whole.model, optimizer=None)))
    assert found.verdict == "undecided"
    assert "0.333333 times the gradients of a mean of the loss (1 / data-parallel ranks)" in found.reason


class Counted:
    """A run with an optimiser that counts its steps by this number."""

    def __init__(self, count):
        self.names = lambda *_: ["weight.step"]
        self.rows = lambda *_: [0]
        self.local = lambda _: torch.tensor(count)


@pytest.mark.parametrize("count", [torch.nan, torch.inf, [1.0, 2.0]])
def test_a_count_that_is_no_number_is_unknown(count):
    assert _own_count(Counted(count), 0) is None
    assert _own_count(Counted(3.0), 0) == 2


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e300])
def test_extreme_factors_overflow_nothing(size):
    assert _whole(size) == pytest.approx(size)
    shares = [_Share(1e-10, 1.7e298 * size, 1e-4, known=True, fitted=True, norm=0.5)] * 3
    assert _clipped_scaled(shares, 1) == ""
    huge = torch.full((4, 3), size, dtype=torch.float64)
    assert bias_added(huge * 1e8, huge, huge[0] * 1e8, 3) in {"", "its bias is added 2 times"}
