"""A formula written otherwise is rounding in FP32 and never a bug in BF16; a bug is a bug in both."""

import math

import pytest
import torch
from torch.nn import functional

from numerics.local.bounds.bounded import carrying, known
from numerics.local.judgement import Standing, flipped_beyond, within

PICKED = torch.arange(6) * 5


def by_softmax(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


REWRITTEN = {
    "three addends": (3, lambda a, b, c: (a + b) + c, lambda a, b, c: a + (b + c)),
    "a difference first": (3, lambda a, b, c: (a - b) + c, lambda a, b, c: (a + c) - b),
    "a product distributed": (3, lambda a, b, c: a * (b + c), lambda a, b, c: a * b + a * c),
    "stacked and summed": (3, lambda a, b, c: torch.stack([a, b, c]).sum(0), lambda a, b, c: a + b + c),
    "a product with ones": (1, lambda x: x.sum(-1), lambda x: x @ torch.ones(x.shape[-1], dtype=x.dtype)),
    "the end of a running sum": (1, lambda x: x.sum(-1), lambda x: x.cumsum(-1)[..., -1]),
    "a mean of quotients": (1, lambda x: x.mean(-1), lambda x: (x / x.shape[-1]).sum(-1)),
    "a product in parts": (
        2,
        lambda x, y: x @ y.T,
        lambda x, y: x[:, :9] @ y[:, :9].T + x[:, 9:] @ y[:, 9:].T,
    ),
    "products added one by one": (2, lambda x, y: x @ y.T, lambda x, y: (x[:, None] * y[None]).sum(-1)),
    "added into a product": (3, lambda x, y, r: x @ y.T @ r + r, lambda x, y, r: torch.addmm(r, x @ y.T, r)),
    "interpolated": (2, lambda x, y: torch.lerp(x, y, 0.1), lambda x, y: x * 0.9 + y * 0.1),
    "norm by hand": (
        1,
        lambda x: functional.rms_norm(x, (40,), None, 1e-5),
        lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    ),
    "gelu by hand": (1, functional.gelu, lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
    "gate by hand": (1, functional.silu, lambda x: x / (1 + torch.exp(-x))),
    "elu by hand": (1, functional.elu, lambda x: torch.where(x > 0, x, torch.expm1(x))),
    "attention by hand": (3, functional.scaled_dot_product_attention, by_softmax),
    "softmax by hand": (1, lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True)),
    "logarithm of a sum by hand": (1, lambda x: x.logsumexp(-1), lambda x: x.exp().sum(-1).log()),
    "entropy in pieces": (
        1,
        lambda x: functional.cross_entropy(x, PICKED),
        lambda x: sum(functional.cross_entropy(x[n], PICKED[n]) for n in range(6)) / 6,
    ),
    "entropy by logarithms": (
        1,
        lambda x: functional.cross_entropy(x, PICKED),
        lambda x: (x.logsumexp(-1) - x.gather(1, PICKED[:, None])[:, 0]).mean(),
    ),
}
BROKEN = {
    "another epsilon": (
        1,
        lambda x: functional.rms_norm(x, (40,), None, 1e-6),
        lambda x: functional.rms_norm(x, (40,), None, 0.3),
    ),
    "one term left out": (1, lambda x: x.sum(-1), lambda x: x[..., :-1].sum(-1)),
    "tanh for erf": (1, functional.gelu, lambda x: x * x.sigmoid()),
    "a factor of 1.01": (2, lambda x, y: x @ y.T, lambda x, y: 1.01 * (x @ y.T)),
    "another scale": (3, functional.scaled_dot_product_attention, lambda q, k, v: by_softmax(1.5 * q, k, v)),
}


def judged(pair, dtype):
    """How output and gradients of the second formula stand to the first one's bounds."""
    count, formula, other = pair
    drawn = torch.Generator().manual_seed(7)
    given = [torch.randn(6, 40, generator=drawn).to(dtype) for _ in range(count)]
    plain = [one.clone().requires_grad_() for one in given]
    out = other(*plain)
    back = torch.randn(out.shape, generator=drawn).to(dtype)
    with carrying():
        carried = [known(one).requires_grad_() for one in given]
        right = formula(*carried)
        rights = [right.detach(), *torch.autograd.grad(right, carried, known(back))]
    recorded = [out.detach(), *torch.autograd.grad(out, plain, back)]
    return [within(a.value, a.error, b).standing for a, b in zip(rights, recorded, strict=True)]


@pytest.mark.parametrize("name", REWRITTEN)
def test_formula_written_otherwise_is_rounding_in_fp32(name):
    assert max(judged(REWRITTEN[name], torch.float32)) <= Standing.WITHIN


@pytest.mark.parametrize("name", REWRITTEN)
def test_formula_written_otherwise_is_no_bug_in_bf16(name):
    assert Standing.BEYOND not in judged(REWRITTEN[name], torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BROKEN)
def test_another_formula_is_a_bug(name, dtype):
    assert Standing.BEYOND in judged(BROKEN[name], dtype)


def test_bit_beyond_wide_bounds_is_named():
    value = torch.randn(100, generator=torch.Generator().manual_seed(0))
    recorded = value * (1 + 1e-7)
    recorded.view(torch.int32)[7] ^= 1 << 25
    found = within(value.double(), value.double().abs() * 1e-6, recorded)
    assert found.standing == Standing.BEYOND
    assert found.lone == "element 7 of 100 alone is beyond its bound, by one flipped bit: bit 25"
    assert flipped_beyond(value * 2, value.double(), value.double().abs() * 1e-6) == ""
