"""The local proof on trainers of strangers: healthy ones are no bugs, bugs are called in their place."""

import pytest
import torch

from numerics.comparison.compare import Options, compare
from numerics.local.bounds.bounded import carrying, known
from numerics.local.model_source import build
from numerics.local.proof import prove
from tests.numerics.local.outsiders import SOURCES, flat, narrowed, scaled, spread
from tests.numerics.local.strangers import context


def answered(run, source):
    made = build(SOURCES[source])
    return compare(run, None, Options(prove=lambda columns: prove(columns, made.model, made.optimizer)))


def test_autocast_loss_scale_and_skipped_updates_are_sound(ranks, tmp_path):
    ranks.run(scaled, 2, tmp_path / "run")
    found = answered(tmp_path / "run", "tagger")
    assert found.verdict == "identical", found.reason
    assert any("0 beyond it, 0 not checked" in note for note in found.notes)


@pytest.mark.slow
def test_reduction_in_bf16_is_a_policy(ranks, tmp_path):
    ranks.run(scaled, 2, tmp_path / "run", "", narrowed)
    found = answered(tmp_path / "run", "tagger")
    assert found.verdict == "precision_policy", found.reason
    assert "bfloat16" in found.explanation


@pytest.mark.parametrize(
    ("bug", "place", "words"),
    [
        ("never reduced", ("table.weight.grad", 0, "reduce"), "each data-parallel rank holds its own share"),
        pytest.param(
            "each rank clips by its own limit",
            ("table.weight.grad", 0, "reduce"),
            "each rank multiplies all its gradients by a factor of its own",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.slow
def test_bugs_around_the_update_are_placed(ranks, tmp_path, bug, place, words):
    ranks.run(scaled, 2, tmp_path / "run", bug)
    found = answered(tmp_path / "run", "tagger")
    first = found.first_divergence
    assert found.verdict == "bug"
    assert (first.tensor, first.step, first.phase) == place
    assert words in found.explanation


@pytest.mark.slow
def test_a_moving_average_written_back_alike_is_open(ranks, tmp_path):
    ranks.run(scaled, 2, tmp_path / "run", "a moving average is written back")
    found = answered(tmp_path / "run", "tagger")
    assert found.verdict == "undecided"
    assert (
        "mixers.0.before.weight at the start of step 1 (rank 0) is not what the optimiser left"
        in found.reason
    )


@pytest.mark.parametrize(
    ("bug", "verdict"),
    [("", "rounding"), pytest.param("all experts everywhere", "identical", marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_experts_and_mixed_precision_are_sound(ranks, tmp_path, bug, verdict):
    ranks.run(spread, 2, tmp_path / "run", bug)
    found = answered(tmp_path / "run", "sparse")
    assert found.verdict == verdict, found.reason


@pytest.mark.parametrize(
    ("bug", "tensor", "words"),
    [
        ("gradients sent back in reverse", "norm.out.grad", None),
        pytest.param(
            "experts count twice", "switch.experts.0.up.weight.grad", "2 (= dp) times", marks=pytest.mark.slow
        ),
    ],
)
def test_bugs_of_experts_are_placed(ranks, tmp_path, bug, tensor, words):
    ranks.run(spread, 2, tmp_path / "run", bug)
    found = answered(tmp_path / "run", "sparse")
    assert (found.verdict, found.first_divergence.tensor) == ("bug", tensor)
    assert words is None or words in found.explanation


UNSEEN = {True: "steps none of the model's parameters", False: "added up without being divided"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("changes", UNSEEN)
def test_flat_shares_are_seen_unless_they_hold_changes(ranks, tmp_path, changes):
    ranks.run(flat, 2, tmp_path / "run", changes)
    found = answered(tmp_path / "run", "sparse")
    assert found.verdict == "undecided"
    assert UNSEEN[changes] in found.reason


def share(made, right):
    """The largest share of its bound that an element takes."""
    return float(((made.value - right.double()).abs() / made.error.clamp_min(1e-300)).max())


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (torch.nn.Conv1d(4, 6, 3, padding=1, groups=2), (2, 4, 9)),
        (torch.nn.ConvTranspose2d(4, 6, 3, stride=2, bias=False), (2, 4, 5, 5)),
        (torch.nn.GRU(4, 5, batch_first=True), (2, 9, 4)),
        (torch.nn.LSTM(4, 5, bidirectional=True), (9, 2, 4)),
    ],
)
def test_convolutions_and_recurrent_layers_stay_within_bounds(module, shape):
    drawn = torch.Generator().manual_seed(5)
    x = torch.randn(shape, generator=drawn, requires_grad=True)
    first = lambda out: out[0] if isinstance(out, tuple) else out  # noqa: E731 - one line says it
    right = first(module(x))
    back = torch.randn(right.shape, generator=drawn)
    right.backward(back)
    with carrying() as carried:
        weights = {n: known(p.detach()).requires_grad_() for n, p in module.named_parameters()}
        bounded = known(x.detach()).requires_grad_()
        made = first(torch.func.functional_call(module, weights, (bounded,)))
        made.backward(known(back))
    grads = [(weights[n].grad, p.grad) for n, p in module.named_parameters()]
    assert not carried.without_rule
    assert all(share(a, b) <= 1 for a, b in [(made.detach(), right.detach()), (bounded.grad, x.grad), *grads])


@pytest.mark.parametrize(
    ("bug", "verdict", "tensor", "axis"),
    [("", "undecided", None, None), ("norm's gradient not summed", "bug", "last.weight.grad", "cp")],
)
@pytest.mark.quick(1)
def test_pieces_of_nobody_knows_where_are_no_addends(ranks, tmp_path, bug, verdict, tensor, axis):
    ranks.run(context, 2, tmp_path / "run", bug)
    made = build("tests.numerics.local.strangers:tied")
    found = compare(tmp_path / "run", None, Options(prove=lambda run: prove(run, made.model, made.optimizer)))
    first = found.first_divergence
    assert (found.verdict, first and first.tensor, first and first.axis) == (verdict, tensor, axis)
    assert verdict == "bug" or "different pieces of in.0" in found.reason
