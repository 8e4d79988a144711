"""Changes to a trainer's model, of which the builder knows nothing: the same function computed otherwise, and bugs.

Each takes the model as it is trained; `BUGS` also names the first tensor that is wrong.
"""

import math
from functools import partial
from types import MethodType

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.numerics.local.model import HEADS, WIDTH, WORDS


def put(module, forward):
    """Give a module another forward."""
    module.forward = MethodType(forward, module)


def heads_of(self, x):
    batch, length, _ = x.shape
    return [w(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]


def joined(self, mixed):
    return self.wo(mixed.transpose(1, 2).reshape(mixed.shape[0], mixed.shape[2], -1))


def attention(change):
    """Another core of attention in the last layer: `change` maps q, k, v to the mixed values."""

    def patch(model):
        put(model.layers[-1].attention, lambda self, x: joined(self, change(*heads_of(self, x))))

    return patch


def by_hand(q, k, v, *, scale=None, diagonal=1, masked=True):
    logits = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if masked:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(diagonal).bool(), -math.inf)
    return logits.softmax(-1) @ v


def powers_of_two(q, k, v):
    logits = q @ k.transpose(-2, -1) * (math.log2(math.e) / math.sqrt(q.shape[-1]))
    weights = torch.exp2(logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -math.inf))
    return weights / weights.sum(-1, keepdim=True) @ v


def norm(change):
    """Another norm in front of the last layer's feed-forward: `change` maps module and x."""
    return lambda model: put(model.layers[-1].ffn_norm, change)


def feed_forward(change):
    return lambda model: put(model.layers[-1].ffn, change)


def fused(self, x):
    gate, up = functional.linear(x, torch.cat([self.w1.weight, self.w3.weight])).chunk(2, -1)
    return self.w2(functional.silu(gate) * up)


def recomputed(model):
    layer = model.layers[-1]
    before = layer.forward
    put(layer, lambda _self, x: checkpoint(before, x, use_reentrant=False))


def rounded_once(self, x):
    return functional.rms_norm(x.double(), (WIDTH,), self.weight.double(), torch.finfo(x.dtype).eps).to(
        x.dtype
    )


BENIGN = {
    "norm divided by a root": norm(
        lambda self, x: (
            x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * self.weight
        )
    ),
    "norm in FP64": norm(rounded_once),
    "norm by torch.norm": norm(
        lambda self, x: x * math.sqrt(WIDTH) / (x.norm(dim=-1, keepdim=True) + 1e-9) * self.weight
    ),
    "silu by sigmoid": feed_forward(lambda self, x: self.w2(self.w1(x) * self.w1(x).sigmoid() * self.w3(x))),
    "silu by tanh": feed_forward(
        lambda self, x: self.w2(0.5 * (gate := self.w1(x)) * (1 + torch.tanh(gate / 2)) * self.w3(x))
    ),
    "gate and up in one product": feed_forward(fused),
    "attention by hand": attention(by_hand),
    "scale folded into queries": attention(
        lambda q, k, v: by_hand(q / math.sqrt(q.shape[-1]), k, v, scale=1.0)
    ),
    "softmax by powers of two": attention(powers_of_two),
    "attention on copied heads": attention(
        lambda q, k, v: functional.scaled_dot_product_attention(
            *(t.contiguous() for t in (q, k, v)), is_causal=True
        )
    ),
    "product by einsum": lambda model: put(
        model.head, lambda self, x: torch.einsum("bsd,vd->bsv", x, self.weight) + self.bias
    ),
    "product in two parts": lambda model: put(
        model.layers[-1].ffn.w2,
        lambda self, x: sum(
            functional.linear(a, b) for a, b in zip(x.chunk(2, -1), self.weight.chunk(2, -1), strict=True)
        ),
    ),
    "layer norm by hand": lambda model: put(
        model.norm,
        lambda self, x: (
            (x - x.mean(-1, keepdim=True))
            / (x.var(-1, correction=0, keepdim=True) + self.eps).sqrt()
            * self.weight
            + self.bias
        ),
    ),
    "words by a product": lambda model: put(
        model.words, lambda self, words: functional.one_hot(words, WORDS).to(self.weight.dtype) @ self.weight
    ),
    "recomputed layer": recomputed,
}


def on_rank(rank, change):
    """A change on one rank alone."""

    def patch(model):
        if torch.distributed.get_rank() == rank:
            change(model)

    return patch


def gradient_of(name, change):
    return lambda model: model.get_parameter(name).register_hook(change)


def swapped_heads(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, [1, 0, 2, 3]]


def narrow(self, x):
    weights = [w.weight.bfloat16() for w in (self.w1, self.w3, self.w2)]
    low = x.bfloat16()
    return functional.linear(
        functional.silu(functional.linear(low, weights[0])) * functional.linear(low, weights[1]), weights[2]
    ).to(x.dtype)


WO, FFN, FFN_NORM = "layers.1.attention.wo.out", "layers.1.ffn.out", "layers.1.ffn_norm.out"


def epsilon(value):
    return lambda model: setattr(model.layers[-1].ffn_norm, "eps", value)


def swapped_gates(self, x):
    return self.w2(functional.silu(self.w3(x)) * self.w1(x))


def by_gelu(self, x):
    return self.w2(functional.gelu(self.w1(x)) * self.w3(x))


def dropped(self, x):
    return functional.dropout(self.w2(functional.silu(self.w1(x)) * self.w3(x)), 0.1)


def without_residual(self, x):
    return self.ffn(self.ffn_norm(x + self.attention(self.attention_norm(x))))


def cut_off(self, x):
    x = x + self.attention(self.attention_norm(x)).detach()
    return x + self.ffn(self.ffn_norm(x))


def one_word_off(self, words):
    return functional.embedding(torch.where(words == 7, 8, words), self.weight)


def keys_for_values(q, k, _v):
    return functional.scaled_dot_product_attention(q, k, k, is_causal=True)


def drops(model):
    """Draw random numbers in the last layer."""
    put(model.layers[-1].ffn, dropped)


BUGS = {
    "epsilon 1e-3": (epsilon(1e-3), FFN_NORM),
    "epsilon 1e-5 for 1.2e-7": (epsilon(1e-5), FFN_NORM),
    "scale of attention 1 %": (attention(partial(by_hand, scale=1.01 / math.sqrt(WIDTH // HEADS))), WO),
    "no causal mask": (attention(partial(by_hand, masked=False)), WO),
    "mask one token late": (attention(partial(by_hand, diagonal=2)), WO),
    "two heads swapped": (attention(swapped_heads), WO),
    "keys for values": (attention(keys_for_values), WO),
    "gate and up swapped": (feed_forward(swapped_gates), "layers.1.ffn.w2.out"),
    "gelu for silu": (feed_forward(by_gelu), "layers.1.ffn.w2.out"),
    "feed-forward in BF16": (feed_forward(narrow), FFN),
    "dropout left on": (drops, FFN),
    "no residual": (lambda model: put(model.layers[-1], without_residual), "layers.1.out"),
    "branch cut off from backward": (lambda model: put(model.layers[-1], cut_off), None),
    "norm's weight one more": (
        norm(lambda self, x: functional.rms_norm(x, (WIDTH,), self.weight + 1)),
        FFN_NORM,
    ),
    "bias twice": (
        lambda model: put(model.head, lambda self, x: functional.linear(x, self.weight, 2 * self.bias)),
        "head.out",
    ),
    "word off by one": (lambda model: put(model.words, one_word_off), "words.out"),
    "gradient doubled": (gradient_of(w := "layers.1.ffn.w1.weight", lambda g: 2 * g), f"{w}.grad"),
    "gradient cleared": (gradient_of(w := "layers.0.attention.wq.weight", torch.zeros_like), f"{w}.grad"),
    "gradient in BF16": (
        gradient_of(w := "layers.1.ffn.w2.weight", lambda g: g.bfloat16().to(g.dtype)),
        f"{w}.grad",
    ),
    "one rank's epsilon": (on_rank(1, epsilon(1e-3)), FFN_NORM),
    "one rank's gradient doubled": (
        on_rank(2, gradient_of("norm.weight", lambda g: 2 * g)),
        "norm.weight.grad",
    ),
}
