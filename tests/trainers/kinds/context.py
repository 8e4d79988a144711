"""Context parallelism by hand: keys and values are gathered, queries stay; contiguous and head-tail pieces."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from numerics import Box, Placed, watch
from tests.trainers.case import Case, run
from tests.trainers.parts import HEADS, LENGTH, Attention, Block, Model, backward, new_model, sequences

STEPS = 2


class GatherSequence(torch.autograd.Function):
    """All ranks' pieces along dimension 2, one after another; the backward sums and takes this rank's piece."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """(B, H, S / cp, E) to (B, H, S, E), rank after rank."""
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The sum of all ranks' gradients of this rank's piece."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), 2)[dist.get_rank()].contiguous()


class SplitAttention(Attention):
    """Attention of a rank's queries to all keys, by global positions."""

    def __init__(self, whole: Attention, mine: Tensor, order: Tensor) -> None:
        super().__init__()
        self.qkv, self.out = whole.qkv, whole.out
        self.mask = mine[:, None] >= order[None, :]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S / cp, D) to (B, S / cp, D)."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        k, v = (GatherSequence.apply(part) for part in (k, v))  # type: ignore[no-untyped-call]
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


def pieces(world: int, head_tail: bool) -> list[Tensor]:
    """Global positions of each rank's piece."""
    places = torch.arange(LENGTH)
    if not head_tail:
        return list(places.chunk(world))
    chunks = places.chunk(2 * world)
    return [torch.cat([chunks[i], chunks[2 * world - 1 - i]]) for i in range(world)]


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model and its optimiser."""
    model = new_model()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def placing(mine: Tensor, head_tail: bool) -> Any:
    """The function for `watch(place=...)`: which part of the sequences a plain activation is."""
    runs = mine.chunk(2) if head_tail else [mine]

    def place(name: str, value: Tensor) -> Placed | None:
        if value.dim() < 2 or value.shape[1] != len(mine):
            return None
        shape = [value.shape[0], LENGTH, *value.shape[2:]]
        boxes = []
        for part in runs:
            offsets, sizes = [0] * value.dim(), list(value.shape)
            offsets[1], sizes[1] = int(part[0]), len(part)
            boxes.append(Box(tuple(offsets), tuple(sizes)))
        return Placed(value, tuple(shape), tuple(boxes))

    return place


def train(rank: int, world: int, head_tail: bool = False, placed: bool = True, bug: str = "") -> None:
    """Four ranks that share each sequence; gradients are summed by hand."""
    model, optimizer = build()
    every = pieces(world, head_tail)
    mine, order = every[rank], torch.cat(every)
    for layer in model.layers:
        assert isinstance(layer, Block)
        layer.attention = SplitAttention(layer.attention, mine, order)
    place = placing(mine, head_tail) if placed else None
    told: dict[str, Any] = {"place": place} if place else {}
    watcher = watch(model, optimizer, dp=(0, 1), coords={"cp": rank}, **told)
    positions = torch.arange(len(mine)) if bug == "positions restart" else mine
    for step in range(STEPS):
        words = sequences(step, 0, 1)
        inputs, labels = words[:, :-1][:, mine], words[:, 1:][:, mine]
        logits = model(inputs, positions)
        loss = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
        backward(loss / (words[:, 1:].numel() / (world if bug == "times cp" else 1)))
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not (bug == "one not reduced" and "norm1" in name):
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def train_alone(rank: int, world: int) -> None:
    """The same training on one process, with positions told as the ranks do."""
    model, optimizer = build()
    watcher = watch(model, optimizer)
    for step in range(STEPS):
        words = sequences(step, 0, 1)
        logits = model(words[:, :-1], torch.arange(LENGTH))
        backward(functional.cross_entropy(logits.flatten(0, -2), words[:, 1:].flatten()))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


ALONE = run(train_alone, 1)
HEALTHY = (
    Case("context_contiguous", run(train, 4), build, ALONE),
    Case("context_head_tail", run(train, 4, head_tail=True), build, ALONE),
    Case("context_unplaced", run(train, 4, placed=False), build, ALONE),
)
BROKEN = (
    Case(
        "context_positions_restart",
        run(train, 4, bug="positions restart"),
        build,
        ALONE,
        planted="positions begin at 0 on every rank",
        source="speculators#871",
        where=r"places|position|input",
        reason=r"places|position|input",
        word=r"position",
    ),
    Case(
        "context_gradients_times_cp",
        run(train, 4, head_tail=True, bug="times cp"),
        build,
        ALONE,
        planted="the loss of each rank is multiplied by the number of ranks",
        source="Megatron-LM#673",
        where=r"grad|factor|4|loss",
        reason=r"factor|average|loss|multiple",
        word=r"loss",
    ),
    Case(
        "context_norm_not_reduced",
        run(train, 4, bug="one not reduced"),
        build,
        ALONE,
        planted="the gradient of one norm is not summed over ranks",
        source="Megatron-LM#1446",
        where=r"norm1",
    ),
)
CASES = (*HEALTHY, *BROKEN)
