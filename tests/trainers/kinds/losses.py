"""Losses over padded, packed and uneven data: label smoothing, ignored tokens, uneven counts of tokens."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import Case, run
from tests.trainers.parts import (
    IGNORED,
    LENGTH,
    PAD,
    Model,
    backward,
    mean_loss,
    new_model,
    ragged,
    sequences,
    sum_loss,
)

STEPS = 2


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as in most configurations."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model and its optimiser."""
    model = new_model()
    return model, optimizer_of(model)


def build_with_sum() -> tuple[Model, torch.optim.Optimizer, object]:
    """The same, with the loss that sums over the labels that count."""
    return (*build(), sum_loss)


def smoothed(logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """Label smoothing that leaves ignored positions out; `share` is this micro-batch's part of the tokens."""
    flat = labels.flatten()
    return share * functional.cross_entropy(
        logits.flatten(0, -2), flat, ignore_index=IGNORED, label_smoothing=0.1
    )


def smoothed_everywhere(logits: Tensor, labels: Tensor) -> Tensor:
    """Label smoothing written by hand; the smooth part also counts ignored positions."""
    logs, flat = logits.flatten(0, -2).log_softmax(-1), labels.flatten()
    counted = flat != IGNORED
    hard = -(logs.gather(1, flat.clamp(min=0)[:, None])[:, 0] * counted).sum() / counted.sum()
    return 0.9 * hard + 0.1 * -logs.mean()


def build_smoothed() -> tuple[Model, torch.optim.Optimizer, object]:
    """The whole model, its optimiser, and the loss with label smoothing."""
    return (*build(), smoothed)


def global_count(labels: Tensor) -> Tensor:
    """The number of labels that count on all ranks."""
    count = (labels != IGNORED).sum()
    dist.all_reduce(count)
    return count


def train(
    rank: int, world: int, accumulate: int = 2, loss: str = "tokens", none: bool = False, bug: str = ""
) -> None:
    """DDP over padded sequences; `none` passes the absent positions by place."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer, micro_batches=accumulate)
    for step in range(STEPS):
        words, labels = ragged(step, rank, world)
        if bug == "padding counts":
            labels = labels.masked_fill(labels == IGNORED, PAD)
        count = global_count(labels)
        for part, target in zip(words.chunk(accumulate), labels.chunk(accumulate), strict=True):
            mask = ((part != PAD)[:, None, None, :] & torch.ones(LENGTH, LENGTH).tril().bool()).contiguous()
            logits = wrapped(part, None, mask) if none else wrapped(part, mask=mask)
            share = (target != IGNORED).sum() * world / count
            watcher.targets(*([target, share] if loss == "smoothed" else [target]))
            if bug == "mean of means":
                backward(mean_loss(logits, target) / accumulate)
            elif bug == "smooths ignored":
                backward(smoothed_everywhere(logits, target) * share)
            elif loss == "smoothed":
                backward(smoothed(logits, target, share))
            else:
                backward(sum_loss(logits, target) * world / count)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def packed(step: int, rank: int, world: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words (B, S + 1), positions that restart with each document, and the mask inside documents."""
    words = sequences(step, rank, world)
    starts = torch.zeros(len(words), LENGTH, dtype=torch.bool)
    generator = torch.Generator().manual_seed(step + 100 * rank)
    cut = torch.randint(2, LENGTH - 1, (len(words), 1), generator=generator)
    starts.scatter_(1, cut, True)
    document = starts.cumsum(1)
    place = torch.arange(LENGTH).expand_as(document)
    positions = place - torch.where(document > 0, cut, 0)
    same = document[:, :, None] == document[:, None, :]
    mask = same & torch.ones(LENGTH, LENGTH).tril().bool()
    return words, positions, mask[:, None]


def train_packed(rank: int, world: int, bug: str = "") -> None:
    """DDP over packed documents."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        whole = [packed(step, part, 3) for part in range(3)]
        mine = whole if world == 1 else [whole[rank]]
        words, positions, mask = (torch.cat(parts) for parts in zip(*mine, strict=True))
        if bug == "documents see each other":
            mask = torch.ones(LENGTH, LENGTH).tril().bool().expand_as(mask).contiguous()
        if bug == "positions go on":
            positions = torch.arange(LENGTH).expand_as(positions).contiguous()
        backward(mean_loss(wrapped(words[:, :-1], positions, mask), words[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


ALONE, SMOOTHED, PACKED = run(train, 1, accumulate=1), run(train, 1, loss="smoothed"), run(train_packed, 1)
HEALTHY = (
    Case("argument_none", run(train, 3, none=True), build, ALONE),
    Case("tokens_uneven", run(train, 3), build, ALONE),
    Case("tokens_uneven_loss_told", run(train, 3), build_with_sum, ALONE),
    Case("label_smoothing", run(train, 3, loss="smoothed"), build_smoothed, SMOOTHED),
    Case("label_smoothing_loss_untold", run(train, 3, loss="smoothed"), build, SMOOTHED),
    Case("packed_documents", run(train_packed, 3), build, PACKED),
)
BROKEN = (
    Case(
        "mean_of_means",
        run(train, 3, bug="mean of means"),
        build,
        ALONE,
        planted="the mean of micro-batches' means over uneven counts of tokens",
        source="transformers#34191",
        where=r"mean of means|count more|uneven|weight|loss|factor",
        reason=r"mean of (the )?means|count more|uneven",
    ),
    Case(
        "padding_counts",
        run(train, 3, bug="padding counts"),
        build,
        ALONE,
        planted="labels of padding are the padding id and not -100",
        where=r"padding|mask|loss|logits|head",
        reason=r"padding|attention_mask|positions count|mask leaves",
        word=r"not checked.*padding",
    ),
    Case(
        "smoothing_counts_ignored",
        run(train, 3, loss="smoothed", bug="smooths ignored"),
        build_smoothed,
        SMOOTHED,
        planted="the smooth part of the loss counts ignored positions",
        where=r"loss|head|logits|out\.grad",
        reason=r"loss|positions",
    ),
    Case(
        "packed_documents_leak",
        run(train_packed, 3, bug="documents see each other"),
        build,
        PACKED,
        planted="documents packed into a sequence attend to each other",
        source="nanoVLM#201",
        where=r"in\.2|mask|attention|input",
        reason=r"mask|attention|input",
        questions=("pair", "both"),
    ),
    Case(
        "packed_positions_go_on",
        run(train_packed, 3, bug="positions go on"),
        build,
        PACKED,
        planted="positions do not restart with a document",
        source="nanoVLM#201",
        where=r"in\.1|position|places|input",
        reason=r"position|places|input",
        questions=("pair", "both"),
    ),
)
CASES = (*HEALTHY, *BROKEN)
