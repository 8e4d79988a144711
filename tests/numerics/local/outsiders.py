"""Trainers as strangers write them: mixed precision with skipped updates, experts over ranks, flat ZeRO-1 buffers.

`SOURCES` names the functions that build their models for the proof.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from numerics import watch

IDS, WIDE, EXPERTS = 48, 16, 2


class Mixer(nn.Module):
    """A convolution, recomputed in the backward."""

    def __init__(self):
        super().__init__()
        self.before, self.conv = nn.GroupNorm(2, WIDE), nn.Conv1d(WIDE, WIDE, 3, padding=1, groups=2)

    def forward(self, x):
        return x + functional.elu(self.conv(self.before(x.transpose(1, 2)))).transpose(1, 2)


class Tagger(nn.Module):
    """An encoder whose embeddings are also its output's weights."""

    def __init__(self):
        super().__init__()
        self.table, self.mixers = nn.Embedding(IDS, WIDE), nn.ModuleList([Mixer()])
        self.tags = nn.Linear(WIDE, IDS, bias=False)
        self.tags.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        for mixer in self.mixers:
            x = checkpoint(mixer, x, use_reentrant=False)
        return self.tags(x)


def tagger():
    torch.manual_seed(11)
    model = Tagger()
    return model, torch.optim.NAdam(model.parameters(), lr=2e-3)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 24), nn.Linear(24, WIDE)

    def forward(self, x):
        return self.down(functional.relu(self.up(x)))


class Switch(nn.Module):
    """The best expert of each token, weighed by its probability; `exchange` sends tokens to the ranks of experts."""

    def __init__(self):
        super().__init__()
        self.gate, self.exchange = nn.Linear(WIDE, EXPERTS, bias=False), None
        self.experts = nn.ModuleDict({str(n): Expert() for n in range(EXPERTS)})

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        by = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS).tolist()
        if self.exchange is None:
            done = [self.experts[str(n)](part) for n, part in enumerate(flat[by].split(counts))]
            made = torch.cat(done)
        else:
            made = self.exchange(flat[by], counts, next(iter(self.experts.values())))
        out = torch.zeros_like(flat).index_copy(0, by, made)
        return (out * weight[:, None]).view(x.shape)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.switch = nn.Embedding(IDS, WIDE), nn.LayerNorm(WIDE), Switch()
        self.out = nn.Linear(WIDE, IDS)

    def forward(self, ids):
        x = self.table(ids)
        return self.out(x + self.switch(self.norm(x)))


def sparse():
    torch.manual_seed(12)
    model = Sparse()
    return model, torch.optim.Adam(model.parameters(), lr=2e-3)


SOURCES = {name: f"{__name__}:{name}" for name in ("tagger", "sparse")}


class Sent(torch.autograd.Function):
    """Rows sent to other ranks, and their gradients sent back; the bug mixes these up."""

    @staticmethod
    def forward(ctx, x, sizes, bug):
        ctx.sizes, ctx.bug = sizes, bug
        out = x.new_empty(sum(sizes[1]), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), sizes[1], sizes[0])
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, got = ctx.sizes
        out = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), sent, got)
        return out.flip(0) if ctx.bug == "gradients sent back in reverse" else out, None, None


def exchanged(bug):
    def exchange(rows, counts, expert):
        every = torch.zeros(EXPERTS * EXPERTS, dtype=torch.long)
        dist.all_gather_into_tensor(every, torch.tensor(counts))
        got = every.view(EXPERTS, EXPERTS)[:, dist.get_rank()].tolist()
        made = expert(Sent.apply(rows, (counts, got), bug))
        return Sent.apply(made, (got, counts), "")

    return exchange


def batch(rank, step, number):
    return torch.randint(
        0, IDS, (2, 7), generator=torch.Generator().manual_seed(100 * step + 10 * number + rank)
    )


def loss_of(logits, ids):
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def started(rank, world, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def ended(watcher):
    watcher.close()
    dist.barrier()
    dist.destroy_process_group()


def narrowed(_state, bucket):
    """A communication hook that sums in BF16."""
    sent = bucket.buffer().bfloat16() / dist.get_world_size()
    future = dist.all_reduce(sent, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(bucket.buffer().dtype))


def scaled(rank, world, store, out, bug="", hook=None):
    """DDP, autocast, a loss scale, `no_sync`, clipping; the update of step 1 is skipped."""
    started(rank, world, store)
    model, _ = tagger()
    wrapped = nn.parallel.DistributedDataParallel(model)
    if hook:
        wrapped.register_comm_hook(None, hook)
    optimizer = torch.optim.NAdam(wrapped.parameters(), lr=2e-3)
    watcher = watch(wrapped, optimizer, micro_batches=2, out=out, level="tensors")
    for step in range(3):
        for number in range(2):
            ids = batch(rank, step, number)
            late = number == 1 and bug != "never reduced"
            with contextlib.nullcontext() if late else wrapped.no_sync():
                with torch.autocast("cpu", torch.bfloat16):
                    logits = wrapped(ids[:, :-1])
                (loss_of(logits, ids) * 512).backward()
        if step != 1:
            for p in model.parameters():
                p.grad.div_(1024)
            limit = 0.01 * (1 + rank) if bug == "each rank clips by its own limit" else 0.01
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
        if bug == "a moving average is written back" and not step:
            with torch.no_grad():
                model.mixers[0].before.weight.mul_(0.999)
        optimizer.zero_grad()
    ended(watcher)


def spread(rank, world, store, out, bug=""):
    """FSDP2 in mixed precision around experts that each stand on one rank."""
    started(rank, world, store)
    model, _ = sparse()
    if bug != "all experts everywhere":
        model.switch.exchange = exchanged(bug)
        for number in range(EXPERTS):
            if number != rank:
                del model.switch.experts[str(number)]
    policy = None if model.switch.exchange else MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    own = set(model.switch.experts.parameters()) if model.switch.exchange else set()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    fully_shard(model, mesh=mesh, ignored_params=own, **({"mp_policy": policy} if policy else {}))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model, optimizer, micro_batches=2, out=out, level="tensors")
    for step in range(2):
        for number in range(2):
            ids = batch(rank, step, number)
            loss_of(model(ids[:, :-1]), ids).backward()
        for p in own:
            p.grad.div_(1 if bug == "experts count twice" else world)
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def flat(rank, world, store, out, changes=False):
    """ZeRO-1 by hand: gradients of all parameters in one buffer, and an optimiser of this rank's piece of it.

    With `changes` the optimiser steps what is added to the piece since the start.
    """
    started(rank, world, store)
    model, _ = sparse()
    parameters = list(model.parameters())
    whole = nn.utils.parameters_to_vector(parameters).detach()
    whole = functional.pad(whole, (0, -len(whole) % world))
    start = whole.clone() if changes else torch.zeros_like(whole)
    own = nn.Parameter((whole - start).chunk(world)[rank].clone())
    optimizer = torch.optim.Adam([own], lr=2e-3)
    watcher = watch(model, optimizer, dp=(rank, world), coords={"dp": rank}, out=out, level="tensors")
    for step in range(2):
        ids = batch(rank, step, 0)
        loss_of(model(ids[:, :-1]), ids).backward()
        grads = nn.utils.parameters_to_vector([p.grad for p in parameters])
        own.grad = torch.empty_like(own)
        dist.reduce_scatter_tensor(own.grad, functional.pad(grads, (0, len(whole) - len(grads))))
        optimizer.step()
        dist.all_gather_into_tensor(whole, own.detach())
        nn.utils.vector_to_parameters((start + whole)[: len(grads)], parameters)
        for p in parameters:
            p.grad = None
    ended(watcher)
