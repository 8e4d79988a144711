"""A second set of trainers of strangers: a Llama under DDP, FSDP2 in mixed precision, and tensor parallelism by hand.

Bugs and sound changes were chosen from the documentation alone, before any of the proof or of `strangers` was read.
`strangers_benchmark --set second` lists them and what the proof says.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from numerics import watch
from tests.numerics.local.outsiders import ended, narrowed, started

WORDS, WIDTH, HEADS, HIDDEN = 64, 32, 4, 72


def rope(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None].float() * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Attention(nn.Module):
    """Rotary attention; `base`, `diagonal` and `fused` are what cases change."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.base, self.diagonal, self.fused = 10000.0, 0, True

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            f(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.wq, self.wk, self.wv)
        )
        positions = torch.arange(length)
        q, k = rope(q, positions, self.base), rope(k, positions, self.base)
        mask = torch.ones(length, length, dtype=torch.bool).tril(self.diagonal)
        if self.fused:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = (q @ k.transpose(-1, -2)) * (WIDTH // HEADS) ** -0.5
            out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.RMSNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        for layer in self.layers:
            nn.init.normal_(layer.mlp.down.bias, std=0.02)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def llama():
    torch.manual_seed(0)
    model = Llama()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def loss_of(logits, words):
    return functional.cross_entropy(logits.flatten(0, -2).float(), words.flatten())


def sequences(step, index, of):
    drawn = torch.randint(0, WORDS, (12, 13), generator=torch.Generator().manual_seed(step))
    return drawn.chunk(of)[index]


def altered(model, optimizer, case, rank):
    """Plant what stands in the model or the optimiser."""
    first, last = model.layers
    if case == "RoPE base on one rank" and rank == 1:
        last.attention.base = 500000.0
    if case == "mask one late on a rank" and rank == 1:
        first.attention.diagonal = 1
    if case == "no decay on one rank" and rank == 2:
        optimizer.param_groups[0]["weight_decay"] = 0.0
    if case == "attention by hand":
        first.attention.fused = last.attention.fused = False
    if case == "checkpointed":
        for layer in model.layers:
            layer.forward = lambda x, inner=layer.forward: checkpoint(inner, x, use_reentrant=False)


def llama_ddp(rank, world, store, out, case=""):
    """DDP, two micro-batches under `no_sync`."""
    started(rank, world, store)
    model, optimizer = llama()
    altered(model, optimizer, case, rank)
    wrapped = nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=0.01 if case == "small buckets" else 25
    )
    if case == "reduced in BF16":
        wrapped.register_comm_hook(None, narrowed)
    watcher = watch(wrapped, optimizer, micro_batches=2, out=out, level="tensors")
    for step in range(3):
        for number, words in enumerate(sequences(step, rank, world).chunk(2)):
            held = number == 0 or (case == "no_sync a step too long" and step == 1)
            share = 1 if case == "last micro-batch not scaled" and number else 2
            with wrapped.no_sync() if held else nullcontext():
                (loss_of(wrapped(words[:, :-1]), words[:, 1:]) / share).backward()
        if case == "averaged twice":
            for weight in model.parameters():
                weight.grad /= world
        if case == "head scaled by rank":
            model.head.weight.grad *= 1 + 0.1 * rank
        if case == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
        if case != "a rank skips its update" or rank != 1 or step != 1:
            optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def llama_fsdp(rank, world, store, out, case=""):
    """FSDP2 with BF16 weights and sums in FP32."""
    started(rank, world, store)
    model, _ = llama()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    sums = torch.bfloat16 if case == "sums in BF16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=sums)
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=case != "kept gathered")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    watcher = watch(model, optimizer, out=out, level="tensors")
    for step in range(3):
        words = sequences(step, rank, world)
        loss_of(model(words[:, :-1]), words[:, 1:]).backward()
        if case == "clipped by the local norm":
            held = [weight.grad.to_local() for weight in model.parameters()]
            norm = torch.stack([grad.norm() for grad in held]).norm()
            for grad in held:
                grad.mul_(torch.clamp(0.3 / norm, max=1.0))
        if case == "a shard skips its update" and (step, rank) == (1, 0):
            for weight in model.parameters():
                weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gathered):
        x = x.clone()
        if gathered:
            parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, x)
            return torch.stack(parts[::-1]).sum(0)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Part(nn.Module):
    """A rank's rows (dimension 0) or columns (1) of a linear layer."""

    def __init__(self, whole, dim, case=""):
        super().__init__()
        part = whole.weight.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()]
        self.weight, self.dim, self.case = nn.Parameter(part.clone()), dim, case
        self.bias = nn.Parameter(whole.bias.detach().clone()) if dim else None

    def forward(self, x):
        if not self.dim:
            copied = x if self.case == "input's gradient not summed" else CopyIn.apply(x)
            return functional.linear(copied, self.weight)
        if self.case == "bias on every rank":
            return SumOut.apply(functional.linear(x, self.weight, self.bias), False)
        product = functional.linear(x, self.weight)
        return SumOut.apply(product, self.case == "gathered, then summed") + self.bias


def llama_tp(rank, world, store, out, case=""):
    """Megatron's tensor parallelism of the feed-forward layers, by hand."""
    started(rank, world, store)
    model, _ = llama()
    for number, layer in enumerate(model.layers):
        mlp = layer.mlp
        mlp.gate, mlp.down = Part(mlp.gate, 0), Part(mlp.down, 1, case)
        mlp.up = Part(mlp.up, 0, case if number else "")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    watcher = watch(model, optimizer, dp=(0, 1), coords={"tp": rank}, out=out, level="tensors")
    for step in range(2):
        words = sequences(step, 0, 1)
        loss_of(model(words[:, :-1]), words[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)
