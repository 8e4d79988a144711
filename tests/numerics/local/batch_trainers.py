"""Trainers whose models compute over the batch, or do not, on DDP and with micro-batches."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
from torch import nn
from torch.nn import functional

from numerics import watch

STEPS, SEQUENCES, WIDE = 2, 12, 8


class Synchronised(nn.Module):
    """Batch normalisation over all ranks, by an all-reduce of sums."""

    def forward(self, x):
        sums, count = torch.stack([x.sum(0), x.square().sum(0)]), len(x)
        if dist.is_initialized():
            sums, count = collective.all_reduce(sums), count * dist.get_world_size()
        mean = sums[0] / count
        return (x - mean) / (sums[1] / count - mean.square() + 1e-5).sqrt()


class MeanTaken(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Routed(nn.Module):
    """Each sequence goes to its best expert, of which none has a capacity."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDE, 2), nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(2))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = (chosen == number).nonzero()[:, 0]
            out = out.index_copy(0, at, expert(x[at]) * weight[at, None])
        return x + out


class Counted(nn.Module):
    """Identity that keeps the mean of what it saw in a buffer, and never reads it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDE))

    def forward(self, x):
        self.seen.copy_(x.detach().mean(0))
        return x


class CountedByAll(Counted):
    """Counts as `Counted` does, and takes the mean over all ranks."""

    def forward(self, x):
        seen = x.detach().mean(0)
        if dist.is_initialized():
            dist.all_reduce(seen)
            seen /= dist.get_world_size()
        self.seen.copy_(seen)
        return x


def frozen():
    layer = nn.BatchNorm1d(WIDE)
    layer.running_mean.uniform_()
    layer.eval().train = lambda _mode=True: layer
    return layer


class Rounded(nn.Module):
    """Values rounded to steps of the largest one of the batch, as products in FP8 take them."""

    def forward(self, x):
        step = x.detach().abs().max() / 16
        return x + ((x / step).round() * step - x).detach()


LAYERS = {
    "batch": lambda: nn.BatchNorm1d(WIDE),
    "cumulative": lambda: nn.BatchNorm1d(WIDE, momentum=None),
    "untracked": lambda: nn.BatchNorm1d(WIDE, track_running_stats=False),
    "mean taken": MeanTaken,
    "synchronised": Synchronised,
    "frozen": frozen,
    "group": lambda: nn.GroupNorm(2, WIDE),
    "layer": lambda: nn.LayerNorm(WIDE),
    "routed": Routed,
    "counted": Counted,
    "counted by all": CountedByAll,
    "rounded": Rounded,
}


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(WIDE, WIDE), LAYERS[layer](), nn.Linear(WIDE, 10)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


def build(layer):
    torch.manual_seed(0)
    model = Net(layer)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def trained(rank, world, store, layer, micro_batches, out, config=None):
    """Train two steps; capture values into `out`."""
    torch.set_num_threads(1)
    model, _ = build(layer)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, micro_batches=micro_batches, out=out, level="tensors", config=config)
    random = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        given = torch.randn(SEQUENCES, WIDE, generator=random).chunk(world)[rank]
        labels = torch.randint(0, 10, (SEQUENCES,), generator=random).chunk(world)[rank]
        for x, y in zip(given.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            (functional.cross_entropy(model(x), y) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    if world > 1:
        dist.destroy_process_group()
