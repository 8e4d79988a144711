"""A run resumed from a checkpoint against one that never stopped, and weights that are swapped for validation."""

import copy
import io
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import Model, backward, mean_loss, new_model, sequences

BEFORE, AFTER = 2, 2


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model with dropout and momentum."""
    model = new_model(dropout=0.1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build_scheduled() -> tuple[Model, torch.optim.Optimizer, object, object]:
    """The same with its loss and its schedule."""
    model, optimizer = build()
    return model, optimizer, mean_loss, decay(optimizer)


def decay(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A rate that falls by a tenth at each step, from the count of steps: `ExponentialLR` would go on from the rate."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


def steps(
    wrapped: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any, first: int, share: tuple[int, int]
) -> None:
    """Two steps of training."""
    for step in range(first, first + BEFORE):
        words = sequences(step, *share)
        backward(mean_loss(wrapped(words[:, :-1]), words[:, 1:]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def train(rank: int, world: int, resumes: bool = True, bug: str = "") -> None:
    """Two steps, then perhaps a restart from a checkpoint, then two recorded steps."""
    model, optimizer = build()
    schedule, wrapped = decay(optimizer), DistributedDataParallel(model)
    torch.manual_seed(50 + rank)
    steps(wrapped, optimizer, schedule, 0, (rank, world))
    if resumes:
        buffer = io.BytesIO()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
        }
        torch.save({**state, "random": torch.get_rng_state()}, buffer)
        buffer.seek(0)
        saved = torch.load(buffer)
        model, optimizer = build()
        schedule = decay(optimizer)
        model.load_state_dict(saved["model"])
        if bug == "no step count":
            for entry in saved["optimizer"]["state"].values():
                entry["step"].zero_()
        if bug != "no optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        if bug != "no schedule":
            schedule.load_state_dict(saved["schedule"])
        wrapped = DistributedDataParallel(model)
        torch.manual_seed(50 + rank)
        if bug != "no random state":
            torch.set_rng_state(saved["random"])
    watcher = watch(wrapped, optimizer)
    steps(wrapped, optimizer, schedule, 0 if bug == "data from the start" else BEFORE, (rank, world))
    watcher.close()


def train_averaged(rank: int, world: int, bug: str = "") -> None:
    """An exponential average of weights, swapped in for a validation pass after the first step."""
    model, optimizer = build()
    average = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(50 + rank)
    watcher = watch(wrapped, optimizer)
    for step in range(AFTER):
        words = sequences(step, rank, world)
        backward(mean_loss(wrapped(words[:, :-1]), words[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
            if step == 0:
                kept = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.state_dict())
                # validation would run here, outside the recorded model
                if bug != "not restored":
                    model.load_state_dict(kept)
    watcher.close()


THROUGH = run(train, 3, resumes=False)
HEALTHY = (
    Case("resumed", run(train, 3), build, THROUGH, questions=THREE),
    Case("averaged_weights", run(train_averaged, 3), build, run(train_averaged, 3), questions=THREE),
)
BROKEN = (
    Case(
        "resumed_without_optimizer",
        run(train, 3, bug="no optimizer"),
        build,
        THROUGH,
        planted="the optimiser's state is not restored",
        where=r"exp_avg|moment|optimizer|optimiser|state|weight",
        reason=r"exp_avg|moment|optimi[sz]er|state",
        word=r"optimiser state",
        questions=THREE,
    ),
    Case(
        "resumed_without_step_count",
        run(train, 3, bug="no step count"),
        build,
        THROUGH,
        planted="the optimiser's step count begins at 0 with old moments",
        where=r"step|count|update",
        reason=r"step|count",
    ),
    Case(
        "resumed_without_random_state",
        run(train, 3, bug="no random state"),
        build,
        THROUGH,
        planted="the generator begins again after the restart",
        source="Megatron-LM#6858",
        where=r"random|drop|generator",
        reason=r"random|drop|generator",
        word=r"random",
        questions=THREE,
    ),
    Case(
        "resumed_with_old_data",
        run(train, 3, bug="data from the start"),
        build,
        THROUGH,
        planted="the data begin again after the restart",
        source="accelerate#2016",
        where=r"input|data|sequence|words",
        reason=r"input|data|sequence|words",
        questions=("pair", "both"),
    ),
    Case(
        "resumed_without_schedule",
        run(train, 3, bug="no schedule"),
        build,
        THROUGH,
        planted="the schedule begins again after the restart",
        where=r"rate|lr",
        reason=r"rate|lr",
        word=r"learning rates",
    ),
    Case(
        "averaged_weights_not_restored",
        run(train_averaged, 3, bug="not restored"),
        build,
        run(train_averaged, 3),
        planted="averaged weights stay in the model after validation",
        where=r"between|changed|weight|step 1",
        reason=r"not what the optimiser left",
    ),
)
CASES = (*HEALTHY, *BROKEN)
