"""Trainers that draw random numbers in one place each: in a layer, in a function, in attention, for their inputs."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from numerics import watch
from tests.numerics.local.outsiders import ended, started
from tests.numerics.local.trainers import Column, Row

WORDS, WIDTH, LENGTH, SEQUENCES = 24, 16, 8, 12


class Mix(nn.Module):
    """A residual part whose random numbers are those of `kind`."""

    def __init__(self, kind, chance):
        super().__init__()
        self.kind, self.chance = kind, chance
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH) if kind in {"attention", "plain"} else None
        self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.heads = nn.MultiheadAttention(WIDTH, 2, chance, batch_first=True) if kind == "heads" else None
        self.drop = nn.Dropout(chance if kind == "layer" else 0.0)

    def forward(self, x):
        y = self.norm(x)
        if self.heads is not None:
            y = self.heads(y, y, y, need_weights=False)[0]
        elif self.qkv is not None:
            q, k, v = self.qkv(y).chunk(3, -1)
            late = self.chance if self.kind == "attention" else 0.0
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=late)
        y = self.drop(self.down(functional.gelu(self.up(y))))
        if self.kind == "function":
            y = functional.dropout(y, self.chance, self.training)
        if self.kind == "path":
            y = y * (torch.rand(len(y), 1, 1) > self.chance) / (1 - self.chance)
        if self.kind == "noise":
            y = y + self.chance * torch.randn_like(y)
        return x + y


class Net(nn.Module):
    def __init__(self, kind, chance, kept):
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, WIDTH), Mix(kind, chance)
        self.last, self.head, self.kept = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS), kept

    def forward(self, ids):
        x = self.words(ids)
        if self.kept is None:
            x = self.mix(x)
        else:
            more = {"preserve_rng_state": self.kept, "determinism_check": "none"}
            x = checkpoint(self.mix, x, use_reentrant=False, **more)
        return self.head(self.last(x))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, WORDS)

    def forward(self, x):
        return self.head(functional.relu(self.conv(x)).mean((2, 3)))


def model_of(kind="layer", chance=0.3, kept=None):
    torch.manual_seed(5)
    model = Pictures() if kind == "crops" else Net(kind, chance, kept)
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def batch_of(kind, step):
    """Inputs and targets of all sequences of a step."""
    drawn = torch.Generator().manual_seed(20 + step)
    if kind == "crops":
        pictures = torch.randn(SEQUENCES, 3, 10, 10, generator=drawn)
        return pictures, torch.randint(0, WORDS, (SEQUENCES,), generator=drawn)
    ids = torch.randint(0, WORDS, (SEQUENCES, LENGTH + 1), generator=drawn)
    return ids[:, :-1], ids[:, 1:]


def drawing(
    rank, world, store, out, kind="layer", alike=False, micro_batches=1, scale=1.0, kept=None, more=None
):
    """DDP, or one process; `more` says how many steps, which it starts from, and what it then does not restore."""
    started(rank, world, store)
    model, optimizer = model_of(kind, 0.3, kept)
    torch.manual_seed(9 if alike else 30 + rank)
    first, last, saved, lost = more or (0, 1, None, "")
    if first:
        held = torch.load(f"{saved}{rank}", weights_only=False)
        model.load_state_dict(held[0])
        if lost != "optimizer":
            optimizer.load_state_dict(held[1])
        if lost != "generator":
            torch.set_rng_state(held[2])
    wrapped = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    more = {} if world > 1 else {"dp": (0, 1)}
    watcher = watch(wrapped, optimizer, micro_batches=micro_batches, out=out, level="tensors", **more)
    for step in range(first, last):
        x, y = batch_of(kind, step - (first if lost == "data" else 0))
        own = [t.chunk(world)[rank].chunk(micro_batches) for t in (x, y)]
        for given, wanted in zip(*own, strict=True):
            if kind == "crops":
                at = int(torch.randint(0, 4, ()))
                given = given[:, :, at : at + 7, at : at + 7]  # noqa: PLW2901 - the input as it is cropped
            logits = wrapped(given)
            watcher.targets(wanted)
            loss = functional.cross_entropy(logits.reshape(-1, WORDS), wanted.reshape(-1))
            (loss * scale / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
        if saved and not first and step == 1:
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict())), torch.get_rng_state()
            torch.save((*state[0], state[1]), f"{saved}{rank}")
    ended(watcher)


def tensor_ranks(rank, world, store, out, kind, alike):
    """Tensor parallelism by hand over all ranks, which share the activations."""
    started(rank, world, store)
    model, _ = model_of(kind)
    model.mix.up, model.mix.down = (
        Column(model.mix.up, dist.group.WORLD, ""),
        Row(model.mix.down, dist.group.WORLD, ""),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    torch.manual_seed(40 + (0 if alike else rank))
    watcher = watch(model, optimizer, dp=(0, 1), out=out, level="tensors", coords={"tp": rank})
    x, y = batch_of(kind, 0)
    functional.cross_entropy(model(x).reshape(-1, WORDS), y.reshape(-1)).backward()
    optimizer.step()
    ended(watcher)
