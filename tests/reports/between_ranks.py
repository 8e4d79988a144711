"""Runs in which ranks draw, sample, begin or reduce alike or apart, as their authors' captures would show them."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.reports.report import Report
from tests.reports.trained import MICRO, Decoder, Trainer, built_dropping, sequences
from tests.reports.wrong import HEALTHY, SOUND, Batches, seen, verdict


def own_rank() -> int:
    """The rank of this process, 0 without others."""
    return dist.get_rank() if dist.is_initialized() else 0


@dataclass(frozen=True)
class Drops(Trainer):
    """Dropout in each block; every rank begins each step with the same random state, or with one of its own."""

    alike: bool = True

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_dropping()

    def batches(self, step: int, rank: int, world: int) -> Batches:
        torch.manual_seed(900 + step + (0 if self.alike else 100 * rank))
        return super().batches(step, rank, world)


class SyncTooLate(Trainer):
    """Whether to reduce is set between forward and backward, where DDP no longer looks at it."""

    def wrapped(self, model: nn.Module) -> nn.Module:
        wrapped = super().wrapped(model)
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.require_backward_grad_sync = False
        return wrapped


@dataclass(frozen=True)
class Buckets(Trainer):
    """DDP with buckets of another size."""

    megabytes: float = 25.0

    def wrapped(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, bucket_cap_mb=self.megabytes)


class OwnShuffle(Trainer):
    """Each rank shuffles the data with a seed of its own before it takes its share."""

    def batches(self, step: int, rank: int, world: int) -> Batches:
        ids, labels = sequences(step)
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(10 * rank))
        ids, labels = (part[order].chunk(world)[rank] for part in (ids, labels))
        return list(zip(ids.chunk(MICRO), labels.chunk(MICRO), strict=True))


class OwnWeights(Trainer):
    """Each rank draws its own weights, which DDP replaces by those of rank 0."""

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3 + own_rank())
        model = Decoder()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)


REPORTS: list[Report] = [
    seen(
        "huggingface/transformers#31412",
        "dropout on 3 ranks with one seed: the masks of all ranks are alike",
        "the masks are alike on all ranks, or open with that remark",
        Drops(),
        Drops(alike=False),
        verdict("bug", words=("drop alike", "alike", "same mask", "same random")),
        sound_ranks=3,
        model="built_dropping",
    ),
    seen(
        "karpathy/build-nanogpt#30",
        "gradients are never reduced over 3 ranks, since the flag is set behind the forward pass",
        "bug: a missing reduction",
        SyncTooLate(),
        SOUND,
        verdict("bug", words=("all-reduce", "reduce", "not the sum", "differ", "not equal")),
    ),
    seen(
        "pytorch/pytorch#30509",
        "DDP on 3 ranks with small buckets beside DDP with large ones: the bits of gradients differ",
        "no bug: the order of sums",
        Buckets(megabytes=0.001),
        Buckets(),
        HEALTHY,
        sound_ranks=3,
    ),
    seen(
        "NVlabs/LongLive#71",
        "each of 3 ranks shuffles with a seed of its own, so that shares overlap",
        "bug: other sequences than the baseline's",
        OwnShuffle(),
        SOUND,
        verdict("bug", words=("sequences", "other data", "same")),
    ),
    seen(
        "antoyang/TubeDETR#15",
        "each rank draws its own initial weights, and DDP sends those of rank 0 to all",
        "no bug",
        OwnWeights(),
        SOUND,
        HEALTHY,
    ),
]
