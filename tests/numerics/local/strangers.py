"""More trainers of strangers: DDP with two groups of an optimiser, replicas by hand, sequence and context parallelism.

Each takes the name of a bug or of a benign change; `strangers_benchmark` lists them and what the proof says.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import Box, Placed, watch
from tests.numerics.local.outsiders import ended, started

WORDS, WIDTH, HEADS, LENGTH = 40, 16, 2, 9


def turned(x, start=0):
    """Rotary positions from `start`; x is (batch, heads, length, width)."""
    half = x.shape[-1] // 2
    rates = 100.0 ** (-torch.arange(half) / half)
    angles = (start + torch.arange(x.shape[-2]))[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Mix(nn.Module):
    """Attention; `core` maps q, k, v to what is mixed."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.core = whole_core

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.o(self.core(q, k, v).transpose(1, 2).flatten(2))


def whole_core(q, k, v):
    return functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.mix, self.wide = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Mix(), Wide()

    def forward(self, x):
        x = x + self.mix(self.n1(x))
        return x + self.wide(self.n2(x))


class Tied(nn.Module):
    """A decoder whose embeddings are its output's weights."""

    def __init__(self):
        super().__init__()
        self.emb, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Layer(), Layer()])
        self.last, self.lm = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.lm.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm(self.last(x))


def optimizer_of(model):
    """AdamW with decay on matrices alone, as most write it."""
    big = [p for p in model.parameters() if p.dim() > 1]
    small = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": big, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3)


def tied():
    torch.manual_seed(21)
    model = Tied()
    return model, optimizer_of(model)


def drawn(rank, step, number):
    """Two sequences, the second padded by -100 to a length of its own."""
    seed = torch.Generator().manual_seed(1000 + 100 * step + 10 * number + rank)
    ids = torch.randint(0, WORDS, (2, LENGTH), generator=seed)
    labels = ids[:, 1:].clone()
    labels[1, 4 + (rank + number) % 3 :] = -100
    return ids[:, :-1], labels


def summed(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def tokens(step, world):
    """The step's tokens that count, on all ranks."""
    return sum(int((drawn(r, step, n)[1] >= 0).sum()) for r in range(world) for n in range(2))


def divided(bug, step, world, labels):
    """What the sum of a micro-batch's losses is divided by."""
    if bug == "mean of means":
        return int((labels >= 0).sum()) * 2 * world
    if bug == "padded tokens count":
        return labels.numel() * 2 * world
    return tokens(step, world)


def replicas(rank, world, store, out, bug="", steps=3):
    """Data parallelism by hand: an all-reduce of each gradient (or of buckets) after the last micro-batch."""
    started(rank, world, store)
    model, optimizer = tied()
    changed(model, bug, rank)
    watcher = watch(
        model, optimizer, micro_batches=2, dp=(rank, world), coords={"dp": rank}, out=out, level="tensors"
    )
    for step in range(steps):
        for number in range(2):
            ids, labels = drawn(rank, step, number)
            (summed(model(ids), labels) / divided(bug, step, world, labels)).backward()
            if bug == "accumulated in BF16":
                for p in model.parameters():
                    p.grad = p.grad.bfloat16().float()
            if bug == "each micro-batch reduced":
                reduced(model)
        if bug != "each micro-batch reduced":
            reduced(model, bug)
        clipped(model, bug)
        updated(model, optimizer, bug, rank, step)
        optimizer.zero_grad()
    ended(watcher)


def reduced(model, bug=""):
    named = dict(model.named_parameters())
    if bug == "one bucket not reduced":
        named = {n: p for n, p in named.items() if not n.startswith("layers.0.wide")}
    if bug == "buckets":
        flat = nn.utils.parameters_to_vector([p.grad for p in named.values()])
        dist.all_reduce(flat)
        at = 0
        for p in named.values():
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        return
    for name, p in named.items():
        dist.all_reduce(p.grad)
        if bug == "tied weights reduced twice" and name == "emb.weight":
            dist.all_reduce(p.grad)


def clipped(model, bug):
    if bug == "clipped by the local norm":
        norm = 0.1 + model.emb.weight.grad.norm() * 0.1 * (1 + dist.get_rank())
        for p in model.parameters():
            p.grad.mul_(0.05 / norm)
    elif bug == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def updated(model, optimizer, bug, rank, step):
    """The optimiser's step, or that of ZeRO-1 by parameters: each rank steps its own and sends them to all."""
    if bug == "decay on biases":
        optimizer.param_groups[1]["weight_decay"] = 0.1
    for n, group in enumerate(optimizer.param_groups):
        group["lr"] = 3e-3 if bug == "one group's rate is stale" and n else 3e-3 / (1 + step)
    if not bug.startswith("ZeRO"):
        optimizer.step()
        return
    owned = [p for n, p in enumerate(model.parameters()) if n % dist.get_world_size() == rank]
    mine = {id(p) for p in owned}
    grads = {p: p.grad for p in model.parameters()}
    for p in model.parameters():
        p.grad = p.grad if id(p) in mine else None
    optimizer.step()
    for n, p in enumerate(model.parameters()):
        p.grad = grads[p]
        if not (bug == "ZeRO-1 sends one late" and n == 4):
            dist.broadcast(p.data, n % dist.get_world_size())


def changed(model, bug, rank):
    """Benign changes of the source, and bugs of a module."""
    last = model.layers[1]
    if bug == "bias added apart":
        last.wide.down.forward = lambda x: x @ last.wide.down.weight.T + last.wide.down.bias
    elif bug == "attention by hand":
        last.mix.core = by_hand
    elif bug == "norm by hand":
        last.n2.forward = lambda x: (
            (x - x.mean(-1, keepdim=True))
            * (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
            * last.n2.weight
            + last.n2.bias
        )
    elif bug == "gelu by erf":
        last.wide.forward = lambda x: last.wide.down(
            (u := last.wide.up(x)) * 0.5 * (1 + torch.erf(u * 0.5**0.5))
        )
    elif bug == "gelu by tanh":
        last.wide.forward = lambda x: last.wide.down(functional.gelu(last.wide.up(x), approximate="tanh"))
    elif bug == "rotary one late on a rank" and rank == 1:
        last.mix.core = lambda q, k, v: functional.scaled_dot_product_attention(
            turned(q, 1), turned(k), v, is_causal=True
        )
    elif bug == "one rank by hand" and rank == 1:
        last.mix.core = by_hand


def by_hand(q, k, v):
    q, k = turned(q), turned(k)
    scores = (q @ k.mT) / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf).softmax(-1) @ v


class Gather(torch.autograd.Function):
    """Chunks of all ranks joined along `dim`; the sum of the gradients goes back to its chunk."""

    @staticmethod
    def forward(ctx, x, dim, bug):
        ctx.dim, ctx.bug = dim, bug
        parts = [
            torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())
        ]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        if ctx.bug != "keys' gradients not summed":
            dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()].contiguous(), None, None


def context(rank, world, store, out, bug="", *told):
    """Context parallelism by hand: each rank has a piece of each sequence, keys and values are gathered.

    Where the pieces are `told`, `watch` learns which part of each sequence a rank holds.
    """
    started(rank, world, store)
    model, optimizer = tied()

    def core(q, k, v, bug):
        own = q.shape[-2]
        start = 0 if bug == "positions begin again" else rank * own
        q, k = turned(q, start), turned(k, start)
        k, v = (Gather.apply(t, 2, bug) for t in (k, v))
        late = 1 if bug == "mask off at the border" and rank else 0
        seen = torch.arange(k.shape[-2]) <= (rank * own + late + torch.arange(own))[:, None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    for n, layer in enumerate(model.layers):
        layer.mix.core = lambda q, k, v, b=(bug if n else ""): core(q, k, v, b)

    def place(_, value):
        offsets, sizes = [0] * value.dim(), list(value.shape)
        offsets[1], sizes[1] = rank * value.shape[1], world * value.shape[1]
        return Placed(value, tuple(sizes), (Box(tuple(offsets), tuple(value.shape)),))

    known = {"place": place} if told else {}
    watcher = watch(model, optimizer, dp=(0, 1), coords={"cp": rank}, out=out, level="tensors", **known)
    for step in range(2):
        ids, labels = (t.chunk(world, 1)[rank] for t in drawn(0, step, 0))
        (summed(model(ids), labels) / 12).backward()
        for name, p in model.named_parameters():
            if not (bug == "norm's gradient not summed" and name == "last.weight"):
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def placed_context(rank, world, store, out, bug=""):
    """Context parallelism by hand that says which part of each sequence a rank holds."""
    context(rank, world, store, out, bug, "told")
