"""The model once more, in float64, with nothing of the trainer's but names, first values and data.

No micro-batches, no axes, torch's own cross-entropy: what every layout must reproduce.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.config.run import RunConfig
from reftrain.data.batches import Loader
from reftrain.model.parameters import Spec, initial_values


def first_values(config: RunConfig, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    out = {}
    for name, shape in shapes.items():
        norm = "norm" in name
        residual = name.endswith(("wo.weight", "w2.weight"))
        std = 0.0 if norm else 0.02 / (2 * config.model.layers) ** 0.5 if residual else 0.02
        tied = "tok_embeddings.weight" if config.model.tied_embeddings and name == "output.weight" else None
        values = initial_values(name, Spec(shape, std, tied_to=tied), config.seed)
        out[name] = values.double().requires_grad_()
    return out


def rms_norm(x, weight, eps):
    return F.rms_norm(x, weight.shape, weight, eps)


def rope(x, base):
    """Complex multiplication of neighbouring pairs; (B, S, H, D)."""
    _, length, _, width = x.shape
    rates = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    turns = torch.polar(
        torch.ones(length, width // 2).double(), torch.outer(torch.arange(length).double(), rates)
    )
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(-2)


def project(config, p, pre, h):
    m = config.model
    heads, kv, width = m.heads, m.kv_heads, m.head_dim
    if m.fused_qkv:
        joint = F.linear(h, p[pre + "wqkv.weight"], p.get(pre + "wqkv.bias"))
        joint = joint.view(*h.shape[:2], kv, heads // kv + 2, width)
        return joint[..., :-2, :].flatten(2, 3), joint[..., -2, :], joint[..., -1, :]
    q, k, v = (F.linear(h, p[pre + n + ".weight"], p.get(pre + n + ".bias")) for n in ("wq", "wk", "wv"))
    return (t.view(*h.shape[:2], -1, width) for t in (q, k, v))


def attention(config, p, pre, h, documents):
    m = config.model
    q, k, v = project(config, p, pre + "qkv.", h)
    if m.qk_norm:
        q = rms_norm(q, p[pre + "qkv.q_norm.weight"], m.norm_eps)
        k = rms_norm(k, p[pre + "qkv.k_norm.weight"], m.norm_eps)
    q, k = rope(q, m.rope_base), rope(k, m.rope_base)
    k, v = (t.repeat_interleave(m.heads // m.kv_heads, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / m.head_dim**0.5
    length = h.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool).tril()[None]
    if config.numerics.document_mask:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)
    return F.linear(out, p[pre + "wo.weight"], p.get(pre + "wo.bias"))


def loss_sum(config: RunConfig, p, batches):
    """Sum of the token losses of some micro-batches, and their count of valid tokens."""
    tokens = torch.cat([b.tokens for b in batches])
    targets = torch.cat([b.targets for b in batches])
    documents = torch.cat([b.documents for b in batches])
    embedding = p["tok_embeddings.weight"]
    x = F.embedding(tokens, embedding)
    for i in range(config.model.layers):
        pre = f"layers.{i}."
        h = rms_norm(x, p[pre + "attention_norm.weight"], config.model.norm_eps)
        x = x + attention(config, p, pre + "attention.", h, documents)
        h = rms_norm(x, p[pre + "ffn_norm.weight"], config.model.norm_eps)
        ff = pre + "feed_forward."
        inner = F.silu(F.linear(h, p[ff + "w1.weight"], p.get(ff + "w1.bias")))
        inner = inner * F.linear(h, p[ff + "w3.weight"], p.get(ff + "w3.bias"))
        x = x + F.linear(inner, p[ff + "w2.weight"], p.get(ff + "w2.bias"))
    x = rms_norm(x, p["norm.weight"], config.model.norm_eps)
    logits = F.linear(x, embedding if config.model.tied_embeddings else p["output.weight"])
    valid = int((targets != -100).sum())
    smoothing = config.numerics.label_smoothing
    total = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="sum", label_smoothing=smoothing
    )
    return total, valid


def loss_and_gradients(config: RunConfig, shapes: dict[str, tuple[int, ...]], step: int = 0):
    """Loss, count of valid tokens and gradients of a whole step."""
    p = first_values(config, shapes)
    total, valid = loss_sum(config, p, Loader(config.data, config.model.vocab_size, 1, 0).step(step))
    (total / valid).backward()
    if config.model.tied_embeddings:
        p["output.weight"].grad = p["tok_embeddings.weight"].grad
    return float(total.detach()) / valid, valid, {name: t.grad.numpy() for name, t in p.items()}
