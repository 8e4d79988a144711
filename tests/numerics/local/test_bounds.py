"""Bounds of rounding: computed values lie within them, and they are no wider than they must be."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics.local.bounds import arithmetic_rules, attention_bound, bounded, move_rules
from numerics.local.bounds.bounded import Bounded, carrying, known, unit
from numerics.local.judgement import Standing, judge, within
from numerics.local.records.recorded import Reading


def attention(x):
    heads = x.view(2, 8, 4, 16).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def in_place(x):
    y = x * 2
    y.add_(x)
    y.masked_fill_(x > 1, 0.5)
    return y


OPERATIONS = {
    "matrix product": lambda x: x @ x.transpose(1, 2),
    "addmm": lambda x: torch.addmm(x[0, :, :8], x[0], x[1].T),
    "softmax": lambda x: (3 * x).softmax(-1),
    "log softmax": lambda x: (3 * x).log_softmax(-1),
    "layer norm": lambda x: functional.layer_norm(x, (64,)),
    "RMS norm": lambda x: functional.rms_norm(x, (64,), eps=1e-5),
    "gelu": functional.gelu,
    "tanh gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "attention": attention,
    "mean": lambda x: x.mean(1),
    "variance": lambda x: x.var(-1),
    "norm": lambda x: x.norm(dim=-1),
    "division": lambda x: x / (2 + x.abs()),
    "powers": lambda x: x.pow(2) + (x.abs() + 0.1) ** 0.5 + (x.abs() + 0.1).rsqrt(),
    "rotation": lambda x: torch.cat([x[..., ::2] * x.cos()[..., ::2], x[..., 1::2] * x.sin()[..., 1::2]], -1),
    "in place": in_place,
    "cross entropy": lambda x: functional.cross_entropy(x.flatten(0, 1), torch.arange(16)),
    "one format to another": lambda x: (x.to(torch.bfloat16) * 3).float(),
    "cumulative sum": lambda x: x.cumsum(1),
    "log of a sum of exponentials": lambda x: x.logsumexp(-1),
    "log of two exponentials": lambda x: torch.logaddexp(x, x.flip(0)),
    "choice": lambda x: x.topk(4, -1).values,
}


def both(function, dtype):
    """The operation's result in the format, and on bounded tensors; each with the gradient of its input."""
    drawn = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    plain, bounded = drawn.clone().requires_grad_(), known(drawn).requires_grad_()
    made = function(plain)
    told = function(bounded)
    pull = torch.randn(made.shape, generator=torch.Generator().manual_seed(4)).to(made.dtype)
    made.backward(pull)
    told.backward(known(pull))
    return (made.detach(), told), (plain.grad, bounded.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_and_gradients_lie_within_their_bounds(name, dtype):
    with carrying() as carried:
        results = both(OPERATIONS[name], dtype)
    assert not carried.without_rule
    for made, told in results:
        assert isinstance(told, Bounded)
        assert made.dtype == told.dtype
        assert ((made.double() - told.value).abs() <= told.error).all()
        assert told.error.norm() <= 3000 * unit(torch.bfloat16 if name.startswith("one") else dtype) * (
            1 + told.value.norm()
        )


def test_an_operator_without_rule_bounds_nothing():
    with carrying() as carried:
        told = torch.special.bessel_j0(known(torch.ones(3)))
    assert told.error.isinf().all()
    assert carried.without_rule == {"bessel_j0"}
    judged, _ = judge(told, [Reading(torch.zeros(3))])
    assert judged.standing == Standing.UNCHECKED


def test_parts_of_a_product_may_round_apart():
    x, w = torch.randn(4, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    halves = functional.linear(x[:, :32], w[:, :32]) + functional.linear(x[:, 32:], w[:, 32:])
    alone = functional.linear(known(x), known(w))
    with carrying(parts=2):
        cut = functional.linear(known(x), known(w))
    assert (cut.error > alone.error).all()
    assert within(cut.value, cut.error, halves).standing == Standing.WITHIN


def test_masks_of_infinities_stay_exact():
    x = known(torch.randn(4, 4))
    masked = x.masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf")).softmax(-1)
    assert (masked.error <= 1e-5).all()
    assert (masked.value.triu(1) == 0).all()


def test_a_factor_is_told_from_other_differences():
    value, error = torch.linspace(1, 2, 8).double(), torch.full((8,), 1e-6).double()
    twice = within(value, error, (2 * value).float())
    assert twice.standing == Standing.BEYOND
    assert twice.factors[0] <= 2 <= twice.factors[1]
    assert twice.ratio == pytest.approx(2)
    assert within(value, error, (value + torch.arange(8)).float()).factors is None
    assert within(value, error, (value + 5e-7).float()).standing == Standing.WITHIN


def test_the_rules_know_their_operators():
    assert all(module.__doc__ for module in (arithmetic_rules, move_rules))
    assert len(bounded.RULES) > 80
    assert functional.scaled_dot_product_attention in attention_bound.FUNCTIONS


def test_modules_of_a_model_are_bounded_together():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(5, 16)
    state = {name: known(p.detach()) for name, p in model.named_parameters()}
    told = torch.func.functional_call(model, state, (known(x),))
    assert ((model(x).double() - told.value).abs() <= told.error).all()
    assert told.error.max() < 1e-3


def test_computing_in_a_narrower_format_is_named():
    x, weight = torch.randn(24, 64), torch.randn(64, 16)
    with carrying():
        made = known(x) @ weight
    narrow, _ = judge(made, [Reading(x.bfloat16() @ weight.bfloat16())])
    cast, _ = judge(made, [Reading((x @ weight).bfloat16())])
    assert (narrow.standing, narrow.format) == (Standing.BEYOND, "bfloat16")
    assert narrow.relation == "computed in bfloat16, where the model gives float32"
    assert cast.standing <= Standing.WITHIN
