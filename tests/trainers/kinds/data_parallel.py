"""DistributedDataParallel around a decoder: accumulation, clipping, schedules, groups, samplers."""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from numerics import watch
from tests.trainers.case import Case, run
from tests.trainers.parts import LENGTH, WORDS, Model, backward, mean_loss, new_model, sequences

STEPS = 2


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only, chosen by name."""
    named = list(model.named_parameters())
    plain = [p for n, p in named if "norm" in n]
    decayed = [p for n, p in named if "norm" not in n]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01)


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """A warm-up over four steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 4)


def reduce_in_bf16(state: object, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """A communication hook that averages in BF16; torch's own refuses Gloo."""
    narrow = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    work = dist.all_reduce(narrow, async_op=True)
    assert work is not None
    future: Future[list[Tensor]] = work.get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model and its optimiser."""
    model = new_model()
    return model, optimizer_of(model)


def build_scheduled() -> tuple[Model, torch.optim.Optimizer, object, object]:
    """The whole model, its optimiser, loss and schedule."""
    model, optimizer = build()
    return model, optimizer, mean_loss, warm_up(optimizer)


def train(
    rank: int,
    world: int,
    accumulate: int = 2,
    clip: float = 0.0,
    scheduled: bool = False,
    hook: bool = False,
    bug: str = "",
) -> None:
    """A plain loop; `bug` names what is wrong with it."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)
    if hook:
        wrapped.register_comm_hook(None, reduce_in_bf16)
    scheduler = warm_up(optimizer) if scheduled else None
    watcher = watch(wrapped, optimizer, micro_batches=accumulate)
    shard = 0 if bug == "same shard" else rank
    for step in range(STEPS):
        for index, words in enumerate(sequences(step, shard, world).chunk(accumulate)):
            last = index == accumulate - 1 and bug != "never synchronised"
            with contextlib.nullcontext() if last else wrapped.no_sync():
                labels = words[:, 1:]
                logits = wrapped(words[:, :-1])
                watcher.targets(labels)
                loss = mean_loss(logits, labels)
                backward(loss if bug == "missing divisor" else loss / accumulate)
        if bug == "averaged twice":
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= world
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            for _ in range(world if bug == "stepped by every process" else 1):
                scheduler.step()
            if bug == "stale group":
                optimizer.param_groups[1]["lr"] = 0.01 / 4
        if bug != "gradients kept":
            optimizer.zero_grad()
    watcher.close()


def train_sampler(rank: int, world: int, bug: str = "") -> None:
    """Two epochs of two batches from a shuffling DistributedSampler."""
    drawn = torch.randint(1, WORDS, (24, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    data = TensorDataset(drawn)
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=world, rank=rank, shuffle=True, seed=3
    )
    loader = DataLoader(data, batch_size=12 // world, sampler=sampler)
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer)
    for epoch in range(2):
        if bug != "no set_epoch":
            sampler.set_epoch(epoch)
        for (words,) in loader:
            backward(mean_loss(wrapped(words[:, :-1]), words[:, 1:]))
            optimizer.step()
            optimizer.zero_grad()
    watcher.close()


ALONE = run(train, 1)
SCHEDULED = run(train, 1, scheduled=True, clip=0.5)
HEALTHY = (
    Case("ddp_accumulates", run(train, 3), build, ALONE),
    Case("ddp_again", run(train, 3, accumulate=1), build, run(train, 3, accumulate=1)),
    Case("ddp_clip_warm_up", run(train, 3, scheduled=True, clip=0.5), build_scheduled, SCHEDULED),
    Case("ddp_four_against_two", run(train, 4, accumulate=1), build, run(train, 2, accumulate=1)),
    Case("ddp_bf16_hook", run(train, 3, hook=True), build, ALONE, also=frozenset({"precision_policy"})),
    Case("ddp_sampler", run(train_sampler, 3), build, run(train_sampler, 1)),
)
BROKEN = (
    Case(
        "ddp_missing_divisor",
        run(train, 3, bug="missing divisor"),
        build,
        ALONE,
        planted="the loss of a micro-batch is not divided by their number",
        source="transformers#34191",
        where=r"factor|micro-batch|times|2 ×|loss|scale",
        reason=r"factor|average|micro-batch|loss",
        word=r"loss|average|factor",
    ),
    Case(
        "ddp_never_synchronised",
        run(train, 3, bug="never synchronised"),
        build,
        ALONE,
        planted="no_sync around every backward",
        where=r"not reduced|own|reduc|differ between|copies",
    ),
    Case(
        "ddp_averaged_twice",
        run(train, 3, bug="averaged twice"),
        build,
        ALONE,
        planted="gradients are divided by the number of ranks after DDP did it",
        where=r"factor|averag|1/3|rank|divid",
        reason=r"averaged twice|1/ranks|1/3|averag",
    ),
    Case(
        "ddp_gradients_kept",
        run(train, 3, bug="gradients kept"),
        build,
        ALONE,
        planted="zero_grad is never called",
        where=r"step 1|earlier step|gradient|grad",
    ),
    Case(
        "ddp_stale_group",
        run(train, 3, scheduled=True, bug="stale group"),
        build_scheduled,
        run(train, 1, scheduled=True),
        planted="the second parameter group keeps its first learning rate",
        where=r"lr|learning rate|rate",
        reason=r"rate",
    ),
    Case(
        "ddp_scheduler_too_fast",
        run(train, 3, scheduled=True, bug="stepped by every process"),
        build_scheduled,
        run(train, 1, scheduled=True),
        planted="the schedule advances once for each process",
        source="accelerate#662",
        where=r"lr|learning rate|rate",
        reason=r"rate",
    ),
    Case(
        "ddp_scheduler_too_fast_untold",
        run(train, 3, scheduled=True, bug="stepped by every process"),
        build,
        run(train, 1, scheduled=True),
        planted="the same, and build returns no schedule",
        source="accelerate#662",
        where=r"lr|learning rate|rate",
        reason=r"rate",
        word=r"learning rates",
        never=r"only the order of sums can make (the runs|it) differ",
    ),
    Case(
        "ddp_same_shard",
        run(train, 3, bug="same shard"),
        build,
        ALONE,
        planted="every rank reads the first rank's share of the data",
        where=r"input|words|sequence|data",
        reason=r"same (input|sequence|data|words)|sequences|data|inputs",
        word=r"read the same|same (inputs|sequences|data)",
    ),
    Case(
        "ddp_no_set_epoch",
        run(train_sampler, 3, bug="no set_epoch"),
        build,
        run(train_sampler, 1),
        planted="set_epoch is never called: all epochs have one order",
        source="pytorch#31771",
        where=r"input|words|sequence|data",
        reason=r"input|sequence|data",
        word=r"read the same|same (inputs|sequences|data)|repeat",
    ),
)
CASES = (*HEALTHY, *BROKEN)
