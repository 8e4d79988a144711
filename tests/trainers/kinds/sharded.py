"""FSDP2, alone and over DTensor tensor parallelism; weight decay groups by name; compiled blocks."""

from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import Case, run
from tests.trainers.parts import Model, backward, mean_loss, new_model, sequences

STEPS = 2


def optimizer_of(model: nn.Module, pattern: str = "norm") -> torch.optim.Optimizer:
    """AdamW; parameters whose name contains the pattern do not decay."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if pattern not in n], "weight_decay": 0.1},
        {"params": [p for n, p in named if pattern in n], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01)


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model and its optimiser."""
    model = new_model()
    return model, optimizer_of(model)


def train(
    rank: int,
    world: int,
    tensor: int = 1,
    accumulate: int = 1,
    narrow: bool = False,
    clip: float = 0.0,
    bug: str = "",
) -> None:
    """FSDP2 over data parallelism, with tensor parallelism in the MLPs where `tensor` is above 1."""
    mesh = init_device_mesh("cpu", (world // tensor, tensor), mesh_dim_names=("dp", "tp"))
    model = new_model()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if narrow else MixedPrecisionPolicy()
    for layer in model.layers:
        if tensor > 1:
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = optimizer_of(model)
    watcher = watch(model, optimizer, micro_batches=accumulate)
    share = mesh.get_local_rank("dp")
    for step in range(STEPS):
        for index, words in enumerate(sequences(step, share, world // tensor).chunk(accumulate)):
            cast(FSDPModule, model).set_requires_gradient_sync(index == accumulate - 1)
            backward(mean_loss(model(words[:, :-1]).float(), words[:, 1:]) / accumulate)
        if clip:
            clip_gradients(model, clip, local=bug == "local norm")
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def clip_gradients(model: nn.Module, most: float, local: bool) -> None:
    """Clips by the norm of the whole gradient, or by mistake by the norm of this rank's shards."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    locals_ = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
    squares = [
        (grad.to_local() if local else grad.full_tensor()).pow(2).sum()
        for grad in grads
        if isinstance(grad, DTensor)
    ]
    factor = (most / (torch.stack(squares).sum().sqrt() + 1e-6)).clamp(max=1.0)
    for grad in locals_:
        grad.mul_(factor)


def train_named(rank: int, world: int, compiled: bool = False, bug: str = "") -> None:
    """DDP, around compiled blocks where asked; decay groups are chosen by names."""
    model = new_model()
    if compiled:
        for index, layer in enumerate(model.layers):
            model.layers[index] = cast(nn.Module, torch.compile(layer, backend="aot_eager"))
    pattern = "module.norm" if bug == "names do not match" else "norm"
    optimizer = optimizer_of(model, pattern)
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        words = sequences(step, rank, world)
        backward(mean_loss(wrapped(words[:, :-1]), words[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


ALONE = run(train, 1)
HEALTHY = (
    Case("fsdp_three", run(train, 3), build, ALONE),
    Case("fsdp_accumulates_clip", run(train, 3, accumulate=2, clip=0.3), build, run(train, 1, clip=0.3)),
    Case("fsdp_bf16_weights", run(train, 3, narrow=True), build, run(train, 1, narrow=True)),
    Case("fsdp_over_tensor", run(train, 4, tensor=2), build, ALONE),
    Case("compiled_blocks", run(train_named, 3, compiled=True), build, run(train_named, 1, compiled=True)),
)
BROKEN = (
    Case(
        "fsdp_local_clip",
        run(train, 3, clip=0.3, bug="local norm"),
        build,
        run(train, 1, clip=0.3),
        planted="each rank clips by the norm of its own shards",
        source="torchtitan#766",
        where=r"grad|clip|factor|norm|multiple",
        reason=r"clip|factor|multiple",
    ),
    Case(
        "decay_groups_miss_names",
        run(train_named, 3, bug="names do not match"),
        build,
        run(train_named, 1),
        planted="a pattern with the prefix of a wrapper matches no name, so that norms decay",
        source="pytorch#101343",
        where=r"decay|norm|update|group",
        reason=r"decay|group",
        word=r"weight decay",
    ),
)
CASES = (*HEALTHY, *BROKEN)
