"""Mixed precision: fp16 with a loss scale, BF16 autocast, reductions in BF16."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import Case, run
from tests.trainers.parts import Model, backward, mean_loss, new_model, sequences

STEPS = 2


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model and its optimiser."""
    model = new_model()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train_scaled(rank: int, world: int, scale: float = 1024.0, clip: float = 0.3, bug: str = "") -> None:
    """fp16 autocast with GradScaler; a large first scale overflows, and the first step is skipped."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        words = sequences(step, rank, world)
        with torch.autocast("cpu", torch.float16):
            loss = mean_loss(wrapped(words[:, :-1]).float(), words[:, 1:])
        backward(scaler.scale(loss))
        if bug != "clipped before unscaled":
            scaler.unscale_(optimizer)
        if bug != "never unscaled":
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    watcher.close()


def train_unscaled(rank: int, world: int) -> None:
    """The same without autocast; the optimiser is stepped past the scaler, on scaled gradients."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        words = sequences(step, rank, world)
        with torch.autocast("cpu", torch.float16):
            loss = mean_loss(wrapped(words[:, :-1]).float(), words[:, 1:])
        backward(scaler.scale(loss))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def train_bf16(rank: int, world: int, autocast: bool = True, bug: str = "") -> None:
    """BF16 autocast; gradients are averaged by hand, in FP32 or by mistake in BF16."""
    model, optimizer = build()
    watcher = watch(model, optimizer, dp=(rank, world), coords={"dp": rank})
    for step in range(STEPS):
        words = sequences(step, rank, world)
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = mean_loss(model(words[:, :-1]).float(), words[:, 1:])
        backward(loss)
        average(model, world, torch.bfloat16 if bug == "reduced in bf16" else torch.float32)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def average(model: nn.Module, world: int, dtype: torch.dtype) -> None:
    """Averages gradients over all ranks in this format."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            total = parameter.grad.to(dtype)
            dist.all_reduce(total)
            parameter.grad.copy_(total / world)


SCALED, BF16 = run(train_scaled, 1), run(train_bf16, 1)
HEALTHY = (
    Case("fp16_scaler_clip", run(train_scaled, 3), build, SCALED),
    Case(
        "fp16_scaler_skips_a_step",
        run(train_scaled, 3, scale=2.0**30),
        build,
        run(train_scaled, 3, scale=2.0**30),
    ),
    Case("bf16_autocast", run(train_bf16, 3), build, BF16),
)
BROKEN = (
    Case(
        "fp16_clipped_before_unscaled",
        run(train_scaled, 3, bug="clipped before unscaled"),
        build,
        SCALED,
        planted="gradients are clipped while they carry the loss scale",
        source="pytorch/examples#1196",
        where=r"grad|clip|factor|scale|norm",
        reason=r"clip|factor|scale",
        word=r"clip|factor|scale",
    ),
    Case(
        "fp16_never_unscaled",
        run(train_unscaled, 3),
        build,
        SCALED,
        planted="the optimiser steps past the scaler, on scaled gradients",
        where=r"grad|factor|scale|1024",
        reason=r"factor|scale|1024",
        word=r"factor|loss scale|1024",
    ),
    Case(
        "reduced_in_bf16",
        run(train_bf16, 3, autocast=False, bug="reduced in bf16"),
        build,
        run(train_bf16, 3, autocast=False),
        planted="FP32 gradients are averaged in BF16",
        where=r"bf16|bfloat16|narrow|format",
    ),
)
CASES = (*HEALTHY, *BROKEN)
