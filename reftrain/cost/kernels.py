"""Kernels and collectives as operations with a time, and the costs of single kernels: matrix products, traffic.

`cost_model` puts them in the order of a layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reftrain.cost.hardware import Hardware

Phase = Literal["forward", "backward", "input", "weight"]
"""`input` and `weight` are the parts of a split backward; `backward` is both."""


@dataclass(frozen=True)
class Operation:
    """One kernel, or one collective, of a rank.

    `name` is a segment's (norm, qkv, rope, attention, out, residual, ffn, activation, accumulate, embedding,
    head, loss), or the purpose of a collective. `seconds` is the device's time; `kernels` counts
    launches; `flops` is arithmetic, `moved_bytes` traffic to memory of element-wise work. A collective has
    an `op`, an `axis`, and in `nbytes` its larger buffer: the gathered tensor, or the input of a reduction.
    """

    name: str
    seconds: float
    kernels: int = 1
    flops: float = 0.0
    moved_bytes: float = 0.0
    op: str = ""
    axis: str = ""
    nbytes: int = 0

    @property
    def is_collective(self) -> bool:
        """Whether it communicates."""
        return bool(self.op)


@dataclass(frozen=True)
class Block:
    """A part of a layer: its forward, the part of backward the input's gradient needs, and the weights'."""

    forward: tuple[Operation, ...] = ()
    backward: tuple[Operation, ...] = ()
    weight: tuple[Operation, ...] = ()


def matmul(hardware: Hardware, name: str, rows: float, inner: float, columns: float) -> Operation:
    """Product of (rows, inner) and (inner, columns).

    It runs in waves of tiles, one tile a processor, and the last wave may be nearly empty; the better of
    the tile and the tile turned is taken. Source: NVIDIA, "Matrix Multiplication Background User's Guide".
    """
    device = hardware.device
    flops = 2 * rows * inner * columns
    seconds = flops / (hardware.flops_per_s * hardware.efficiency.matmul)
    if device.units:
        tile = device.tile_rows, device.tile_columns
        seconds *= min(_waves(rows, columns, *tile, device.units), _waves(columns, rows, *tile, device.units))
    return Operation(name, seconds + hardware.host.kernel_us * 1e-6, flops=flops)


def _waves(rows: float, columns: float, tile_rows: float, tile_columns: float, units: float) -> float:
    """Return the work of whole waves over the work asked for, at least 1."""
    tiles = math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns)
    return math.ceil(tiles / units) * units * tile_rows * tile_columns / (rows * columns)


def element_wise(hardware: Hardware, name: str, moved_bytes: float) -> Operation:
    """Kernel bound by memory traffic."""
    rate = hardware.device.memory_gb_s * 1e9 * hardware.efficiency.memory
    return Operation(name, moved_bytes / rate + hardware.host.kernel_us * 1e-6, moved_bytes=moved_bytes)


def total(operations: Sequence[Operation]) -> float:
    """Seconds of operations that run one after the other."""
    return sum(operation.seconds for operation in operations)


def in_order(blocks: Sequence[Block], phase: Phase) -> tuple[Operation, ...]:
    """Operations of blocks in the order of a phase: backward runs them from last to first."""
    if phase == "forward":
        return tuple(operation for block in blocks for operation in block.forward)
    parts: list[Operation] = []
    for block in reversed(blocks):
        if phase in {"backward", "input"}:
            parts.extend(block.backward)
        if phase in {"backward", "weight"}:
            parts.extend(block.weight)
    return tuple(parts)
