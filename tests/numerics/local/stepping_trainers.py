"""A data-parallel trainer by hand with a habit around the optimiser, sound or a bug: scales, clips, decay, schedules.

`whole` and its kin are what `--model` names.
"""

import contextlib
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from numerics import watch

WORDS, WIDTH, SEQUENCES, LENGTH, MICRO = 24, 16, 12, 8, 2
SCALE, LIMIT = 1024.0, 0.05


class Small(nn.Module):
    """Embeddings, a norm, a hidden layer, a head."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.head = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WORDS, bias=False)

    def forward(self, ids):
        return self.head(functional.gelu(self.up(self.norm(self.words(ids)))))


def grouped(model, decay=0.1, plain=0.0):
    """Decay on matrices alone, as most write it; the parameters that require gradients."""
    kept = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in kept if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in kept if p.dim() < 2], "weight_decay": plain},
    ]


OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
}


def whole(optimizer="adamw"):
    torch.manual_seed(5)
    model = Small()
    return model, OPTIMIZERS[optimizer](grouped(model))


def whole_but_frozen():
    model, optimizer = whole()
    model.up.weight.requires_grad_(False)
    return model, optimizer


def warmed(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 8))


def whole_with_schedule():
    model, optimizer = whole()
    return model, optimizer, warmed(optimizer)


def drawn(step):
    """The global batch of a step, (SEQUENCES, LENGTH + 1)."""
    return torch.randint(0, WORDS, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(step))


def loss_of(logits, ids):
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def norm_of(parameters):
    return torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in parameters]))


def reduced(model, rank, world, habit):
    """The mean over ranks of each gradient."""
    for name, p in model.named_parameters():
        if p.grad is None or world == 1 or (habit == "one gradient not reduced" and name == "up.bias"):
            continue
        dist.all_reduce(p.grad)
        if habit != "summed over ranks":
            p.grad /= world


def clipped(parameters, rank, habit):
    """Clip as a habit has it."""
    if habit in {"clips", "clips, scaled", "clips before unscaling"}:
        nn.utils.clip_grad_norm_(parameters, LIMIT)
    elif habit == "one rank clips by another limit":
        nn.utils.clip_grad_norm_(parameters, LIMIT * (2 if rank == 1 else 1))
    elif habit == "clips by value" or (habit == "one rank clips by value" and rank == 1):
        nn.utils.clip_grad_value_(parameters, 0.002)


def made(rank, habit, optimizer):
    """A rank's model and optimiser."""
    model, stepping = whole(optimizer)
    if habit == "one layer frozen":
        model.up.weight.requires_grad_(False)
    if habit == "one rank leaves a parameter out" and rank == 1:
        stepping = OPTIMIZERS[optimizer](grouped(model)[:1])
    if habit == "one rank decays norms" and rank == 1:
        stepping = OPTIMIZERS[optimizer](grouped(model, plain=0.1))
    if habit == "decays all":
        stepping = OPTIMIZERS[optimizer](model.parameters(), weight_decay=0.1)
    return model, stepping


def trained(rank, world, store, out, habit="", optimizer="adamw", steps=3, micro=MICRO):
    """Train some steps by hand; capture values into `out`."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model, stepping = made(rank, habit, optimizer)
    if habit == "resumed" or habit.startswith("restored"):
        restore(model, stepping, habit)
    schedule = warmed(stepping) if "warm" in habit else None
    watcher = watch(model, stepping, dp=(rank, world), micro_batches=micro, out=out, level="tensors")
    parameters, share = [p for p in model.parameters() if p.requires_grad], SEQUENCES // world
    scale = SCALE if "scal" in habit or habit == "clips before unscaling" else 1.0
    for step in range(steps):
        for ids in drawn(step)[rank * share : (rank + 1) * share].chunk(micro):
            divisor = 1 if habit == "not divided by micro-batches" else micro
            (loss_of(model(ids[:, :-1]), ids) * scale / divisor).backward()
        reduced(model, rank, world, habit)
        if habit == "clips before unscaling":
            clipped(parameters, rank, habit)
        if scale != 1 and habit != "never unscaled":
            for p in parameters:
                p.grad /= scale
        if habit != "clips before unscaling":
            clipped(parameters, rank, habit)
        if habit == "warm-up of one group":
            stepping.param_groups[1]["lr"] = 0.01
        if not (habit == "skips a step, scaled" and step == 1):
            stepping.step()
        if schedule is not None:
            schedule.step()
        if schedule is not None and habit == "warm-up stepped twice":
            schedule.step()
        if habit != "never cleared":
            stepping.zero_grad()
    watcher.close()
    ended(world)


def restore(model, stepping, habit):
    """Give the optimiser the moments of an earlier training, as a habit has it."""
    for step in range(4):
        loss_of(model(drawn(90 + step)[:, :-1]), drawn(90 + step)).backward()
        stepping.step()
        stepping.zero_grad()
    for state in stepping.state.values():
        if habit == "restored without count":
            state["step"].zero_()
        if habit == "restored without moments":
            state["exp_avg"].zero_(), state["exp_avg_sq"].zero_()


def sharded(rank, world, store, out, habit="", steps=2):
    """FSDP2; clip by the norm of all, or of a rank's own shards."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model, _ = whole()
    fully_shard(model)
    stepping = OPTIMIZERS["adamw"](grouped(model))
    watcher = watch(model, stepping, micro_batches=MICRO, out=out, level="tensors")
    share = SEQUENCES // world
    for step in range(steps):
        for ids in drawn(step)[rank * share : (rank + 1) * share].chunk(MICRO):
            (loss_of(model(ids[:, :-1]), ids) / MICRO).backward()
        clip_shards(list(model.parameters()), habit)
        stepping.step()
        stepping.zero_grad()
    watcher.close()
    ended(world)


def clip_shards(parameters, habit):
    """Clip by the norm of all shards, or of a rank's own."""
    own = torch.stack([p.grad.to_local().norm() for p in parameters]).norm()
    if habit == "clips":
        total = own**2
        dist.all_reduce(total)
        own = total.sqrt()
    if habit:
        for p in parameters:
            p.grad.to_local().mul_(min(1.0, float(LIMIT / own)))


def ended(world):
    with contextlib.suppress(ValueError):
        if world > 1:
            dist.barrier()
            dist.destroy_process_group()
