"""A third set of trainers of strangers: sequence parallelism, sharded optimisers, uneven tokens, tied ends, dropout.

Each is plain torch with `numerics.watch` in three lines, and each has bugs as they happen.
"""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from numerics import Box, Placed, watch
from tests.numerics.local.outsiders import ended, started

WORDS, WIDTH, LENGTH, IGNORED = 48, 24, 12, -100


class Block(nn.Module):
    """A layer: attention of one head over the words before, and a feed-forward part; `dropped` is its dropout."""

    def __init__(self, dropped=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.drop, self.core = nn.Dropout(dropped), causal

    def forward(self, x, mask=None):
        y = self.norm1(x)
        x = x + self.drop(self.o(self.core(self.q(y), self.k(y), self.v(y), mask)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


def causal(q, k, v, mask):
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if mask is not None:
        seen = (seen & mask[:, None, :]) | torch.eye(len(seen), dtype=torch.bool)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Decoder(nn.Module):
    def __init__(self, dropped=0.0, tied=False):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Block(dropped), Block(dropped)])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids, mask=None):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.last(x))


def plain():
    torch.manual_seed(31)
    model = Decoder()
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def dropping():
    torch.manual_seed(32)
    model = Decoder(dropped=0.1)
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def tied_ends():
    torch.manual_seed(33)
    model = Decoder(tied=True)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


class Feed(nn.Module):
    """Feed-forward layers that torch cuts for tensor and sequence parallelism."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.feeds = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Feed(), Feed()])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for feed in self.feeds:
            x = feed(x)
        return self.head(self.last(x))


def stack():
    torch.manual_seed(34)
    model = Stack()
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def drawn(step, index=0, number=0):
    """Three sequences of a rank and micro-batch."""
    seed = torch.Generator().manual_seed(1000 * step + 100 * number + index)
    return torch.randint(0, WORDS, (3, LENGTH + 1), generator=seed)


def mean_of(logits, labels):
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def sequence_parallel(rank, world, store, out, bug=""):
    """Tensor and sequence parallelism by torch's `parallelize_module`."""
    started(rank, world, store)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    model, _ = stack()
    by_hand = bug in {"norms by hand", "norm's gradient not summed"}
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for n in range(2):
        plan[f"feeds.{n}.up"] = ColwiseParallel(input_layouts=Shard(1))
        plan[f"feeds.{n}.down"] = RowwiseParallel(output_layouts=Shard(1))
    norms = {"feeds.0.norm": model.feeds[0].norm, "feeds.1.norm": model.feeds[1].norm, "last": model.last}
    if not by_hand:
        plan |= {name: SequenceParallel() for name in norms}
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    watcher = watch(model, optimizer, out=out, level="tensors")
    for step in range(2):
        ids = drawn(step)
        mean_of(model(ids[:, :-1]), ids[:, 1:]).backward()
        for name, norm in norms.items() if by_hand else ():
            for p in norm.parameters():
                if bug == "norms by hand" or name == "last":
                    dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


class Joined(torch.autograd.Function):
    """Keys or values of all ranks; their gradients are summed and cut."""

    @staticmethod
    def forward(ctx, x, summed):
        ctx.summed = summed
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        if ctx.summed:
            dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous(), None


def gathered_context(rank, world, store, out, bug=""):
    """Context parallelism that gathers keys and values, each rank with a third of the words."""
    started(rank, world, store)
    model, optimizer = plain()

    def core(q, k, v, _, off):
        own = q.shape[1]
        k, v = (Joined.apply(t, bug != "keys' gradients not summed" or not off) for t in (k, v))
        late = own if bug == "mask of the rank before" and off and rank else 0
        seen = torch.arange(k.shape[1]) <= (rank * own - late + torch.arange(own))[:, None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    for n, layer in enumerate(model.layers):
        layer.core = lambda q, k, v, mask, off=n: core(q, k, v, mask, off)

    def place(_, value):
        offsets, sizes = [0] * value.dim(), list(value.shape)
        offsets[1], sizes[1] = rank * value.shape[1], world * value.shape[1]
        return Placed(value, tuple(sizes), (Box(tuple(offsets), tuple(value.shape)),))

    watcher = watch(model, optimizer, dp=(0, 1), coords={"cp": rank}, out=out, level="tensors", place=place)
    for step in range(2):
        ids = drawn(step)
        words, labels = (t.chunk(world, 1)[rank] for t in (ids[:, :-1], ids[:, 1:]))
        mean_of(model(words), labels).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def sharded_optimizer(rank, world, store, out, bug=""):
    """DDP with torch's ZeroRedundancyOptimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # torch compiles its functional optimisers on import
        from torch.distributed.optim import ZeroRedundancyOptimizer
    started(rank, world, store)
    model, _ = plain()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=4e-3)
    if bug == "shard not gathered":
        optimizer._sync_params = lambda: None
    watcher = watch(wrapped, optimizer, out=out, level="tensors")
    for step in range(3):
        ids = drawn(step, rank)
        mean_of(wrapped(ids[:, :-1]), ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def uneven(step, rank):
    """Sequences of a rank: the words, the labels of which some do not count, and which words are no padding."""
    ids = drawn(step, rank)
    lengths = torch.tensor([LENGTH, 5 + 2 * rank + step, 3 + rank])
    mask = torch.arange(LENGTH) < lengths[:, None]
    return ids[:, :-1].where(mask, 0), ids[:, 1:].where(mask, IGNORED), mask


def uneven_tokens(rank, world, store, out, bug=""):
    """DDP over padded sequences of uneven lengths; each token counts once in the mean over all ranks."""
    started(rank, world, store)
    model, optimizer = plain()
    wrapped = nn.parallel.DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer, out=out, level="tensors")
    for step in range(2):
        ids, labels, mask = uneven(step, rank)
        if bug == "padding counted":
            labels = labels.clamp_min(0)
        count = (labels != IGNORED).sum()
        every = count.clone()
        dist.all_reduce(every)
        logits = wrapped(ids, mask if bug != "padding seen" or rank != 1 else mask | True)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        (loss / count if bug == "averaged by ranks" else loss * world / every).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


class First(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.words, self.layers = whole.words, nn.ModuleDict({"0": whole.layers[0]})

    def forward(self, ids):
        return self.layers["0"](self.words(ids))


class Last(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.layers, self.last, self.head = nn.ModuleDict({"1": whole.layers[1]}), whole.last, whole.head

    def forward(self, x):
        return self.head(self.last(self.layers["1"](x)))


def passed(module, rank, ids):
    """One micro-batch forth and back, between a rank and the other stage of its pipeline."""
    if rank % 2 == 0:
        x = module(ids[:, :-1])
        dist.send(x.detach(), rank + 1)
        grad = torch.empty_like(x)
        dist.recv(grad, rank + 1)
        x.backward(grad)
    else:
        x = torch.empty(3, LENGTH, WIDTH)
        dist.recv(x, rank - 1)
        x.requires_grad_()
        (mean_of(module(x), ids[:, 1:]) / 2).backward()
        dist.send(x.grad, rank - 1)


def pipeline_ends(rank, world, store, out, bug=""):
    """A pipeline of two stages by hand for each of two replicas, whose ends hold copies of the embeddings."""
    started(rank, world, store)
    stage, replica = rank % 2, rank // 2
    whole, _ = tied_ends()
    module = Last(whole) if stage else First(whole)
    weight = module.head.weight if stage else module.words.weight
    alike = [dist.new_group([s, s + 2]) for s in range(2)]
    ends = [dist.new_group([2 * r, 2 * r + 1]) for r in range(2)]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    told = {"dp": (replica, 2), "coords": {"pp": stage, "dp": replica}}
    watcher = watch(module, optimizer, micro_batches=2, out=out, level="tensors", **told)
    for step in range(2):
        for number in range(2):
            passed(module, rank, drawn(step, replica, number))
        for p in module.parameters():
            dist.all_reduce(p.grad, group=alike[stage])
            p.grad /= 2
        if bug != "tied gradient not summed":
            dist.all_reduce(weight.grad, group=ends[replica])
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def recomputed(rank, world, store, out, bug=""):
    """DDP with dropout, whose layers are computed again in the backward."""
    started(rank, world, store)
    model, optimizer = dropping()
    torch.manual_seed(100 + rank)
    kept = bug != "RNG not restored"
    for layer in model.layers:
        layer.forward = lambda x, mask, inner=layer.forward: checkpoint(
            inner, x, mask, use_reentrant=False, preserve_rng_state=kept
        )
    wrapped = nn.parallel.DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer, out=out, level="tensors")
    for step in range(2):
        ids = drawn(step, rank)
        mean_of(wrapped(ids[:, :-1]), ids[:, 1:]).backward()
        if bug == "one mask for all steps":
            torch.manual_seed(100 + rank)
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)
