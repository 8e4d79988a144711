"""SPMD 2-D sharding: which dimension of every weight and activation lies on which mesh axis, by torch's DTensor.

A weight is cut over both axes. Its cut over `data` (our dp) is FSDP2's, gathered for each use; its cut over `model`
(our tp) stays. An activation's features are cut over `model` outside products as well, so that no rank ever holds a
whole residual stream. A tensor changes its annotation by DTensor's redistribution, which chooses the collective:
a gather, a reduce-scatter, or for norms an all-reduce; the gradient goes back by the opposite one.

Source: "Llama 2 with PyTorch/XLA SPMD", tables 1 and 2.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from reftrain.parallel.autograd import call
from reftrain.parallel.tensor import TensorParallel
from reftrain.rank.comm import Axis
from reftrain.rank.events import CollectiveCall

Annotation = tuple[str | None, ...]
"""The mesh axis of each dimension: data, model, or None for a whole dimension."""

WEIGHTS: Final[Mapping[str, Annotation]] = {
    "tok_embeddings": ("model", "data"),
    "wq": ("data", "model"),
    "wk": ("data", "model"),
    "wv": ("data", "model"),
    "wo": ("model", "data"),
    "w1": ("model", "data"),
    "w3": ("model", "data"),
    "w2": ("data", "model"),
    "output": ("model", "data"),
}
"""Matrices by the last part of their module's name, (rows, columns) as torch stores them; norms stay whole."""

ACTIVATIONS: Final[Mapping[str, Annotation]] = {
    "inputs": ("data", None),
    "hidden": ("data", None, "model"),
    "heads": ("data", None, "model"),
    "scores": ("data", "model", None, None),
    "inner": ("data", None, "model"),
    "logits": ("data", None, "model"),
}
"""Outputs of all products. Scores are cut by construction: each model rank attends with its own heads."""

FEATURES: Final = Shard(ACTIVATIONS["hidden"].index("model"))
WHOLE: Final = Replicate()
ADDEND: Final = Partial("sum")


def dimensions(name: str) -> tuple[int, int]:
    """Return the dimensions of a named matrix that the model axis and the data axis cut."""
    annotation = WEIGHTS[name]
    return annotation.index("model"), annotation.index("data")


_CHANGES: Final = {("S", "R"): "all_gather", ("P", "S"): "reduce_scatter", ("P", "R"): "all_reduce"}


def operation(before: Placement, after: Placement) -> str:
    """Return the collective by which DTensor changes one annotation into another."""
    kind = {Shard: "S", Replicate: "R", Partial: "P"}
    return _CHANGES[kind[type(before)], kind[type(after)]]


class _Redistribute(torch.autograd.Function):
    """Another annotation of the same tensor over the model axis, and the change of its gradient's."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        owner: "Annotated",
        label: str,
        there: tuple[Placement, Placement],
        back: tuple[Placement, Placement],
    ) -> torch.Tensor:
        ctx.owner, ctx.label, ctx.back = owner, label, back
        return owner.redistribute(x, *there, label)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = ctx.owner.redistribute(grads[0], *ctx.back, f"{ctx.label}.grad")
        return grad, None, None, None, None


class Annotated(TensorParallel):
    """Changes of annotation over the model axis of this rank, announced to its hooks."""

    def __init__(self, axis: Axis, mesh: DeviceMesh | None) -> None:
        super().__init__(axis, sequence_parallel=False)
        self.mesh = mesh

    def redistribute(self, x: torch.Tensor, before: Placement, after: Placement, label: str) -> torch.Tensor:
        """Return the local tensor of `x` under another annotation; one collective."""
        if self.mesh is None:
            raise AssertionError("a model axis of one rank changes nothing")
        x, axis, op = x.contiguous(), self.axis, operation(before, after)
        sizes = {"all_gather": x.numel() * axis.size, "reduce_scatter": x.numel() // axis.size}
        announced = CollectiveCall(axis.name, op, label, x, axis.group, sizes.get(op, x.numel()))
        axis.hooks.collective_begin(announced)
        given = DTensor.from_local(x, self.mesh, [before], run_check=False)
        out = given.redistribute(self.mesh, [after]).to_local().contiguous()
        axis.hooks.collective_end(replace(announced, output=out))
        return out

    def _change(
        self,
        x: torch.Tensor,
        label: str,
        there: tuple[Placement, Placement],
        back: tuple[Placement, Placement],
    ) -> torch.Tensor:
        if self.axis.size == 1:
            return x
        out: torch.Tensor = call(_Redistribute, x, self, label, there, back)
        return out

    def enter(self, x: torch.Tensor, label: str) -> torch.Tensor:
        """Gather features in front of a product with row-cut weights: (B, S, D/tp) to (B, S, D)."""
        return self._change(x, label, (FEATURES, WHOLE), (ADDEND, FEATURES))

    def leave(self, partial: torch.Tensor, label: str) -> torch.Tensor:
        """Sum the products of column-cut weights, each rank keeping its features: (B, S, D) to (B, S, D/tp)."""
        return self._change(partial, label, (ADDEND, FEATURES), (FEATURES, WHOLE))

    def total(self, partial: torch.Tensor, label: str) -> torch.Tensor:
        """Sum what each rank has of its own features; every rank gets the sum, and adds to its gradient."""
        return self._change(partial, label, (ADDEND, WHOLE), (ADDEND, WHOLE))
