"""Captures of a made-up trainer: global tensors by name, cut over any mesh, with a place to plant anything.

Forward: two layers whose output is cut over dp (sequences) and tp (features), an all-reduce over tp behind each.
Backward: a gradient of each output, a local gradient of each weight on every dp rank, their sum. Step: weights.
Values are random but a function of the name, so that every mesh gives the same global tensors.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from numerics.record.recorder import Box, Recorder, whole

B, S, D = 8, 6, 16
LAYERS = 2


def tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Change = Callable[[str, dict[str, int], torch.Tensor], torch.Tensor]
"""(key "step/kind/name/micro_batch", coordinates, value) to the value recorded."""


@dataclass
class Plan:
    """A run to write. `order` perturbs what a sum's order would; `change` plants anything else."""

    tp: int = 1
    dp: int = 1
    micro_batches: int = 2
    steps: int = 2
    order: float = 0.0
    change: Change | None = None
    skip: Callable[[str], bool] = lambda _: False
    repeat: Callable[[str], bool] = lambda _: False
    level: str = "digest"
    config: dict[str, Any] | None = field(default_factory=lambda: {"model": {"layers": LAYERS}, "seed": 0})
    dtype: torch.dtype = torch.float32


def write(folder: Path, plan: Plan) -> Path:
    """Write the capture of a run."""
    world = plan.tp * plan.dp
    for rank in range(world):
        coords = {"tp": rank % plan.tp, "cp": 0, "pp": 0, "dp": rank // plan.tp}
        with Recorder(
            folder, rank, world, coords, level=plan.level, source="synthetic", config=plan.config
        ) as to:
            _Rank(plan, to, coords).run()
    return folder


class _Rank:
    def __init__(self, plan: Plan, to: Recorder, coords: dict[str, int]) -> None:
        self.plan, self.to, self.coords = plan, to, coords
        self.tp, self.dp = coords["tp"], coords["dp"]
        self.step = 0

    def run(self) -> None:
        for layer in range(LAYERS):
            self.weights(layer, "init", -1)
        for step in range(self.plan.steps):
            self.step = step
            for mb in range(self.plan.micro_batches):
                for layer in range(LAYERS):
                    self.forward(layer, mb)
                self.loss(mb)
            for mb in range(self.plan.micro_batches):
                for layer in reversed(range(LAYERS)):
                    self.backward(layer, mb)
            for layer in range(LAYERS):
                self.reduce(layer)
            for layer in range(LAYERS):
                self.weights(layer, "step", self.step)

    def value(
        self, kind: str, name: str, mb: int, value: torch.Tensor, *, summed: bool = False
    ) -> torch.Tensor:
        value = value.to(self.plan.dtype)
        if summed and self.plan.order:
            value = value * (1 + self.plan.order * tensor(f"order/{name}/{self.step}", value.shape)).to(
                value.dtype
            )
        if self.plan.change is not None:
            value = self.plan.change(f"{self.step}/{kind}/{name}/{mb}", self.coords, value)
        return value

    def rows_of(self, mb: int) -> tuple[int, int]:
        size = B // (self.plan.dp * self.plan.micro_batches)
        return (self.dp * self.plan.micro_batches + mb) * size, size

    def record(self, kind: str, name: str, value: torch.Tensor, phase: str, mb: int, **more: Any) -> None:
        module = more.pop("module", name.rpartition(".")[0])
        self.to.record(
            name,
            value,
            step=more.pop("step", self.step),
            phase=phase,
            kind=kind,
            micro_batch=mb,
            module=module,
            **more,
        )

    def collective(
        self, axis: str, op: str, label: str, phase: str, mb: int, given: torch.Tensor, got: torch.Tensor
    ):
        key = f"{self.step}/collective/{label}/{mb}"
        if self.plan.skip(key):
            return
        for _ in range(2 if self.plan.repeat(key) else 1):
            for kind, value in (("collective_in", given), ("collective_out", got)):
                partial = f"{axis}={self.coords[axis]}" if kind == "collective_in" else None
                replica = 0 if partial else self.coords[axis]
                group = [
                    r
                    for r in range(self.to.world_size)
                    if (r // self.plan.tp == self.dp if axis == "tp" else r % self.plan.tp == self.tp)
                ]
                self.record(
                    kind,
                    label,
                    self.value(kind, label, mb, value),
                    phase,
                    mb,
                    axis=axis,
                    op=op,
                    label=label,
                    partial=partial,
                    replica=replica,
                    group=group,
                )

    def forward(self, layer: int, mb: int) -> None:
        first, size = self.rows_of(mb)
        name = f"layers.{layer}.mlp"
        hidden = tensor(f"{self.step}/{name}.hidden", (B, S, D))[first : first + size]
        width = D // self.plan.tp
        mine = self.value(
            "activation", f"{name}.hidden", mb, hidden[..., self.tp * width : (self.tp + 1) * width]
        )
        box = Box((first, 0, self.tp * width), (size, S, width))
        self.record("activation", f"{name}.hidden", mine, "forward", mb, global_shape=(B, S, D), boxes=[box])
        parts = [tensor(f"{self.step}/{name}.part{i}/{self.plan.tp}", (B, S, D)) for i in range(self.plan.tp)]
        out = tensor(f"{self.step}/{name}.out", (B, S, D))
        parts[-1] = out - sum(parts[:-1], torch.zeros(()))
        if self.plan.tp > 1:
            part = parts[self.tp][first : first + size]
            self.collective(
                "tp", "all_reduce", f"{name}.down", "forward", mb, part, out[first : first + size]
            )
        value = self.value("activation", f"{name}.out", mb, out[first : first + size], summed=True)
        box = Box((first, 0, 0), (size, S, D))
        self.record(
            "activation",
            f"{name}.out",
            value,
            "forward",
            mb,
            global_shape=(B, S, D),
            boxes=[box],
            replica=self.tp,
        )

    def loss(self, mb: int) -> None:
        first, size = self.rows_of(mb)
        value = self.value("activation", "loss", mb, tensor(f"{self.step}/loss", (B,))[first : first + size])
        box = Box((first,), (size,))
        self.record(
            "activation", "loss", value, "forward", mb, global_shape=(B,), boxes=[box], replica=self.tp
        )

    def backward(self, layer: int, mb: int) -> None:
        first, size = self.rows_of(mb)
        name = f"layers.{layer}.mlp.out.grad"
        value = tensor(f"{self.step}/{name}", (B, S, D))[first : first + size]
        box = Box((first, 0, 0), (size, S, D))
        value = self.value("activation_grad", name, mb, value)
        self.record(
            "activation_grad",
            name,
            value,
            "backward",
            mb,
            global_shape=(B, S, D),
            boxes=[box],
            replica=self.tp,
        )

    def addends(self, name: str) -> list[torch.Tensor]:
        whole_one = tensor(f"{self.step}/{name}", (D, D))
        parts = [tensor(f"{self.step}/{name}.part{i}/{self.plan.dp}", (D, D)) for i in range(self.plan.dp)]
        parts[-1] = whole_one - sum(parts[:-1], torch.zeros(()))
        return parts

    def reduce(self, layer: int) -> None:
        name = f"layers.{layer}.mlp.weight.grad"
        rows = D // self.plan.tp
        mine = slice(self.tp * rows, (self.tp + 1) * rows)
        box = [Box((self.tp * rows, 0), (rows, D))]
        parts = [p[mine] for p in self.addends(name)]
        local = self.value("param_grad_local", name, -1, parts[self.dp])
        more = {"global_shape": (D, D), "boxes": box}
        self.record("param_grad_local", name, local, "reduce", -1, partial=f"dp={self.dp}", **more)
        total = tensor(f"{self.step}/{name}", (D, D))[mine]
        if self.plan.dp > 1:
            self.collective("dp", "all_reduce", f"layers.{layer}.grad", "reduce", -1, parts[self.dp], total)
        total = self.value("param_grad", name, -1, total, summed=True)
        self.record("param_grad", name, total, "reduce", -1, replica=self.dp, **more)

    def weights(self, layer: int, phase: str, step: int) -> None:
        name = f"layers.{layer}.mlp.weight"
        rows = D // self.plan.tp
        box = [Box((self.tp * rows, 0), (rows, D))]
        value = tensor(f"{step}/{name}", (D, D))[self.tp * rows : (self.tp + 1) * rows]
        value = self.value("param", name, -1, value, summed=phase == "step")
        self.record(
            "param", name, value, phase, -1, global_shape=(D, D), boxes=box, replica=self.dp, step=step
        )


__all__ = ["Plan", "tensor", "whole", "write"]
