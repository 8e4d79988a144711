"""torch.distributed.pipelining on three stages, tied embeddings, accumulation over several schedules' steps."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import Model, backward, mean_loss, new_model, sequences

STEPS, STAGES = 2, 3


class Stage(nn.Module):
    """One block of the whole model, with the embeddings on the first stage and the head on the last."""

    def __init__(self, whole: Model, rank: int) -> None:
        super().__init__()
        first, last = rank == 0, rank == STAGES - 1
        self.words: nn.Module | None = whole.words if first else None
        self.places: nn.Module | None = whole.places if first else None
        self.layers = nn.ModuleDict({str(rank): whole.layers[rank]})
        self.norm: nn.Module | None = whole.norm if last else None
        self.head: nn.Module | None = whole.head if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Words or activations to activations or logits."""
        if self.words is not None and self.places is not None:
            x = self.words(x) + self.places(torch.arange(x.shape[1]))
        (layer,) = self.layers.values()
        x = layer(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model of three blocks, and its optimiser."""
    model = new_model(layers=STAGES)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build_tied() -> tuple[Model, torch.optim.Optimizer]:
    """The same with tied embeddings."""
    model = new_model(layers=STAGES, tied=True)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train_alone(rank: int, world: int, tied: bool = False) -> None:
    """The same training on one process."""
    model, optimizer = build_tied() if tied else build()
    watcher = watch(model, optimizer)
    for step in range(STEPS):
        words = sequences(step, 0, 1)
        backward(mean_loss(model(words[:, :-1]), words[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def train(
    rank: int, world: int, rounds: int = 1, gpipe: bool = False, tied: bool = False, bug: str = ""
) -> None:
    """A pipeline; `rounds` steps of its schedule are one step of the optimiser."""
    model, _ = build_tied() if tied else build()
    stage = Stage(model, rank)
    group = dist.new_group([0, STAGES - 1])
    optimizer = torch.optim.AdamW(stage.parameters(), lr=0.01)
    micro_batches = 4
    kind = ScheduleGPipe if gpipe else Schedule1F1B
    scaled = bug == "scaled each round" or (rounds == 1 and bug != "sum of micro-batches")
    pipeline = PipelineStage(stage, rank, STAGES, torch.device("cpu"))
    divisor = rounds if scaled or bug == "sum of micro-batches" else rounds * micro_batches
    schedule = kind(
        pipeline, micro_batches, loss_fn=lambda y, t: mean_loss(y, t) / divisor, scale_grads=scaled
    )
    watcher = watch(stage, optimizer, micro_batches=rounds * micro_batches, dp=(0, 1), coords={"pp": rank})
    for step in range(STEPS):
        for words in sequences(step, 0, 1).chunk(rounds):
            inputs = [words[:, :-1]] if rank == 0 else []
            target: dict[str, Any] = {"target": words[:, 1:]} if rank == STAGES - 1 else {}
            schedule.step(*inputs, **target)
        if tied and bug != "embeddings apart" and rank in {0, STAGES - 1}:
            shared = model.words.weight if rank == 0 else model.head.weight
            assert shared.grad is not None
            dist.all_reduce(shared.grad, group=group)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


ALONE, TIED = run(train_alone, 1), run(train_alone, 1, tied=True)
HEALTHY = (
    Case("pipeline_1f1b", run(train, 3), build, ALONE, questions=THREE),
    Case("pipeline_gpipe_two_rounds", run(train, 3, gpipe=True, rounds=3), build, ALONE),
    Case("pipeline_tied", run(train, 3, tied=True), build_tied, TIED),
)
BROKEN = (
    Case(
        "pipeline_scaled_each_round",
        run(train, 3, rounds=3, bug="scaled each round"),
        build,
        ALONE,
        planted="scale_grads divides accumulated gradients again in each round",
        source="torchtitan#1733",
        where=r"grad",
    ),
    Case(
        "pipeline_sum_of_micro_batches",
        run(train, 3, bug="sum of micro-batches"),
        build,
        ALONE,
        planted="scale_grads=False without a divisor: gradients are 4 times too large",
        source="torchtitan#2972",
        where=r"grad|4|factor|loss",
        reason=r"factor|average|sum",
        word=r"loss",
    ),
    Case(
        "pipeline_tied_apart",
        run(train, 3, tied=True, bug="embeddings apart"),
        build_tied,
        TIED,
        planted="gradients of the tied embedding are not summed over first and last stage",
        source="piper#13",
        where=r"words|head",
        reason=r"words|head|tied",
    ),
)
CASES = (*HEALTHY, *BROKEN)
