"""Trainers whose ranks weigh classes and add a balance loss, by all ranks' sums or by each rank's own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import watch
from tests.numerics.local.outsiders import ended, started
from tests.numerics.local.reading_trainers import WORDS, balanced, sequences


def weighing(rank, world, store, out, shared=True, balance=0.0):
    """DDP, one step, on the same nine sequences for any number of ranks; `shared` sums weights over all ranks."""
    started(rank, world, store)
    model, optimizer = balanced()
    wrapped = nn.parallel.DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer, out=out, level="tensors")
    words = torch.cat([sequences(0, reader, 0)[:3] for reader in range(3)]).chunk(world)[rank]
    labels, classes = words[:, 1:].flatten(), torch.linspace(0.25, 1.75, WORDS)
    logits, routed = wrapped(words[:, :-1])
    total = classes[labels].sum()
    if shared:
        dist.all_reduce(total)
        total /= world
    summed = functional.cross_entropy(logits.flatten(0, 1), labels, weight=classes, reduction="sum")
    (summed / total + balance * routed).backward()
    optimizer.step()
    ended(watcher)
