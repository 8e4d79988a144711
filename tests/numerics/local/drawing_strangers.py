"""A fourth set of trainers of strangers, about random numbers: who reseeds, saves and restores generators, and when.

Each is plain torch with `numerics.watch` in three lines, on two ranks; some draw from generators that no record holds.
"""

import copy

import torch
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

from numerics import watch
from tests.numerics.local.outsiders import ended, started
from tests.numerics.local.third_strangers import LENGTH, WIDTH, WORDS, Decoder, drawn, mean_of


class Inline(nn.Module):
    """A decoder whose dropout is written into its forward: no module shows what was dropped."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.words(ids)
        q, k, v = self.mix(functional.dropout(x, 0.1, self.training)).chunk(3, -1)
        late = 0.1 if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=late)
        return self.head(x + functional.dropout(self.out(y), 0.1, self.training))


def layers():
    torch.manual_seed(41)
    model = Decoder(dropped=0.1)
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def inline():
    torch.manual_seed(42)
    model = Inline()
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


class Tracker:
    """A generator's state apart from the process's own, as Megatron keeps one for each region of the model."""

    def __init__(self, seed, keeps=True):
        self.keeps = keeps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.state = torch.get_rng_state()

    def around(self, forward):
        def tracked(x):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self.state)
                made = forward(x)
                if self.keeps:
                    self.state = torch.get_rng_state()
            return made

        return tracked


def _forked(model, seeds):
    """Let each dropout layer draw in a fork that is seeded again for each call."""
    for number, module in enumerate(m for m in model.modules() if isinstance(m, nn.Dropout)):

        def forward(x, inner=module.forward, number=number):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seeds(number))
                return inner(x)

        module.forward = forward


def _prepared(rank, change, make):
    """The model, its optimiser, and the run's own generators as a change asks for them."""
    model, optimizer = make()
    torch.manual_seed(7 if change == "ranks alike" else 200 + rank)
    clock = [0]
    if change in {"forked", "forked, the same each step"}:
        fixed = change != "forked"

        def seeds(number):
            clock[0] += 1
            return number + 17 * rank + (0 if fixed else 1000 * clock[0])

        _forked(model, seeds)
    if change in {"tracker", "tracker not stored"}:
        for number, module in enumerate(m for m in model.modules() if isinstance(m, nn.Dropout)):
            module.forward = Tracker(number + 10 * rank, keeps=change == "tracker").around(module.forward)
    if change == "forked around":
        model.forward = Tracker(10 * rank).around(model.forward)
    if change == "recomputed":
        for layer in model.layers:
            layer.forward = lambda x, mask, inner=layer.forward: checkpoint(
                inner, x, mask, use_reentrant=False
            )
    return model, optimizer


def _before(change, rank, step, model):
    """What a trainer does to its generator before a step."""
    if change == "reseeded each step":
        torch.manual_seed(1000 * step + rank)
    if change == "seeded by the epoch each step":
        torch.manual_seed(5 + rank + step // 3)
    if change == "evaluated":
        model.eval()
        with torch.no_grad():
            model(drawn(50 + step, rank)[:, :-1])
        model.train()
    if change == "evaluation reseeds":
        torch.manual_seed(1234)
        model.eval()
        with torch.no_grad():
            model(torch.randint(0, WORDS, (2, LENGTH)))
        model.train()


def dropouts(rank, world, store, out, change="", make=layers, steps=3):
    """DDP with dropout."""
    started(rank, world, store)
    model, optimizer = _prepared(rank, change, make)
    wrapped = nn.parallel.DistributedDataParallel(model)
    watcher = watch(
        wrapped, optimizer, micro_batches=2 if change == "twice alike" else 1, out=out, level="tensors"
    )
    saved = None
    for step in range(steps):
        _before(change, rank, step, model)
        if change.startswith("rolled back") and step == 1:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict())), torch.get_rng_state()
        if change.startswith("rolled back") and step == 3:
            model.load_state_dict(saved[0][0])
            optimizer.load_state_dict(saved[0][1])
            torch.set_rng_state(saved[1])
        back = change == "rolled back" and step >= 3
        ids = drawn(step - 2 if back else step, rank)
        for _ in range(2 if change == "twice alike" else 1):
            state = torch.get_rng_state()
            mean_of(wrapped(ids[:, :-1]), ids[:, 1:]).backward()
            if change == "twice alike" and not _:
                torch.set_rng_state(state)
        optimizer.step()
        optimizer.zero_grad()
        if change == "state restored":
            torch.set_rng_state(state)
    ended(watcher)


def inlined(rank, world, store, out, change=""):
    """DDP with dropout that no module shows."""
    dropouts(rank, world, store, out, change, inline)


def longer(rank, world, store, out, change=""):
    """Five steps, of which the last two begin where the second did."""
    dropouts(rank, world, store, out, change, layers, 5)


class Feed(nn.Module):
    """A feed-forward layer with dropout on what a rank holds of its output."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


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
    torch.manual_seed(43)
    model = Stack()
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def sharded(rank, world, store, out, change=""):
    """Tensor parallelism by torch, with dropout on sequences cut over the ranks, or on copies of them."""
    started(rank, world, store)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    model, _ = stack()
    copied = change.startswith("copies")
    plan = {
        "words": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Replicate() if copied else Shard(1)
        )
    }
    plan["head"] = ColwiseParallel(
        input_layouts=Replicate() if copied else Shard(1), output_layouts=Replicate()
    )
    for n in range(2):
        plan[f"feeds.{n}.up"] = ColwiseParallel(input_layouts=Replicate() if copied else Shard(1))
        plan[f"feeds.{n}.down"] = RowwiseParallel(output_layouts=Replicate() if copied else Shard(1))
    if not copied:
        plan |= {name: SequenceParallel() for name in ("feeds.0.norm", "feeds.1.norm", "last")}
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    seed = 60 if copied or "same seed" in change else 60 + rank
    torch.manual_seed(seed)
    watcher = watch(model, optimizer, out=out, level="tensors")
    for step in range(2):
        if "set back" in change:
            torch.manual_seed(seed)
        ids = drawn(step)
        mean_of(model(ids[:, :-1]), ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)
