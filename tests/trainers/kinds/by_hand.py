"""Tensor parallelism by hand on three ranks, tied embeddings, dropout between the parts."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import Block, Model, backward, mean_loss, new_model, sequences

STEPS = 2


class CopyIn(torch.autograd.Function):
    """The identity, with an all-reduce in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The sum of gradients over ranks."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class SumOut(torch.autograd.Function):
    """An all-reduce, with the identity in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The sum over ranks."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient."""
        return grad


class Part(nn.Module):
    """A rank's rows (dim 0) or columns (dim 1) of a linear layer."""

    def __init__(self, whole: nn.Linear, dim: int, index: int, bug: str) -> None:
        super().__init__()
        world = dist.get_world_size()
        self.weight = nn.Parameter(whole.weight.detach().chunk(world, dim)[index].clone())
        self.dim, self.bug = dim, bug

    def forward(self, x: Tensor) -> Tensor:
        """Whole input to a part of the output (dim 0); a part of the input to the whole output (dim 1)."""
        if self.dim == 0:
            if self.bug != "no sum in backward":
                x = CopyIn.apply(x)  # type: ignore[no-untyped-call]
            return functional.linear(x, self.weight)
        product = functional.linear(x, self.weight)
        if self.bug == "no sum in forward":
            return product
        total: Tensor = SumOut.apply(product)  # type: ignore[no-untyped-call]
        return total


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model with tied embeddings, and its optimiser."""
    model = new_model(tied=True)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build_dropout() -> tuple[Model, torch.optim.Optimizer]:
    """The same with dropout."""
    model = new_model(dropout=0.2, tied=True)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(rank: int, world: int, clip: float = 0.0, dropout: bool = False, bug: str = "") -> None:
    """Three ranks that share each MLP."""
    model, _ = build_dropout() if dropout else build()
    parts = set[nn.Parameter]()
    for layer in model.layers:
        assert isinstance(layer, Block)
        if world > 1:
            mirrored = world - 1 - rank if bug == "wrong shard" else rank
            up, down = Part(layer.up, 0, rank, bug), Part(layer.down, 1, mirrored, bug)
            parts |= {up.weight, down.weight}
            layer.register_module("up", up)
            layer.register_module("down", down)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(70 + (rank if bug == "dropout apart" else 0))
    watcher = watch(model, optimizer, dp=(0, 1), coords={"tp": rank})
    for step in range(STEPS):
        words = sequences(step, 0, 1)
        backward(mean_loss(model(words[:, :-1]), words[:, 1:]))
        if clip:
            clip_gradients(model, parts, clip, bug)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def clip_gradients(model: nn.Module, parts: set[nn.Parameter], most: float, bug: str) -> None:
    """Clips by the norm over all parts; copies count once."""
    own, common = torch.zeros(()), torch.zeros(())
    for parameter in model.parameters():
        if parameter.grad is not None:
            square = parameter.grad.pow(2).sum()
            own, common = (own + square, common) if parameter in parts else (own, common + square)
    if bug == "copies counted on each rank":
        own = own + common
        common = torch.zeros(())
    if bug != "local norm":
        dist.all_reduce(own)
    factor = (most / ((own + common).sqrt() + 1e-6)).clamp(max=1.0)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


ALONE, CLIPPED = run(train, 1), run(train, 1, clip=0.3)
HEALTHY = (
    Case("tensor_by_hand_tied", run(train, 3), build, ALONE, questions=THREE),
    Case("tensor_by_hand_clip", run(train, 3, clip=0.3), build, CLIPPED),
    Case("tensor_by_hand_dropout", run(train, 3, dropout=True), build_dropout, run(train, 1, dropout=True)),
)
BROKEN = (
    Case(
        "tensor_no_sum_in_forward",
        run(train, 3, bug="no sum in forward"),
        build,
        ALONE,
        planted="the all-reduce after the row-parallel layer is missing",
        where=r"down",
    ),
    Case(
        "tensor_no_sum_in_backward",
        run(train, 3, bug="no sum in backward"),
        build,
        ALONE,
        planted="the all-reduce in the backward of the column-parallel layer is missing",
        where=r"up|norm2|grad",
    ),
    Case(
        "tensor_wrong_shard",
        run(train, 3, bug="wrong shard"),
        build,
        ALONE,
        planted="a rank holds another rank's columns of the second matrix",
        where=r"down",
        reason=r"down",
        word=r"starts from \(weights",
    ),
    Case(
        "tensor_local_clip",
        run(train, 3, clip=0.3, bug="local norm"),
        build,
        CLIPPED,
        planted="each rank clips by the norm of its own part",
        source="torchtitan#596",
        where=r"grad|clip|factor|copies|norm",
    ),
    Case(
        "tensor_clip_counts_copies",
        run(train, 3, clip=0.3, bug="copies counted on each rank"),
        build,
        CLIPPED,
        planted="copies count once for each rank in the clip norm",
        source="NeMo-RL#3788",
        where=r"grad|clip|factor|norm",
        reason=r"clip|factor|baseline",
        word=r"clip|factor",
    ),
    Case(
        "tensor_dropout_apart",
        run(train, 3, dropout=True, bug="dropout apart"),
        build_dropout,
        run(train, 1, dropout=True),
        planted="ranks of one tensor-parallel group drop apart after the all-reduce",
        source="tt-metal#55947",
        where=r"drop",
        reason=r"drop|random",
    ),
)
CASES = (*HEALTHY, *BROKEN)
