"""Pipelines in newer ways: backward passes in two halves, buffers gathered beside work, a vision tower."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.shapes.calls import Group
from tests.shapes.interleaved import Interleaved
from tests.shapes.interleaved import Meshes as ChunkMeshes
from tests.shapes.interleaved import Stage as ChunkStage
from tests.shapes.layers import (
    ADD,
    FLASH,
    FLASH_OP,
    GEMM,
    GEMM_OUT,
    HEAD,
    NORM,
    POINTWISE,
    SUM_OP,
)
from tests.shapes.megatron import Megatron, Meshes, Stage
from tests.shapes.order import Action
from tests.shapes.rank import Rank

Lengths = dict[tuple[int, int], float]
PATCHES = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn"
GELU = f"void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl, {ADD}>(int)"
FORWARD, INPUT, WEIGHT = "F", "I", "W"
"""What a stage does with a micro-batch: forward, gradients of the input, gradients of the weights."""


def halves(stage: int, stages: int, micro: int) -> Iterator[tuple[str, int]]:
    """A stage's actions in ZB-H1: weights follow inputs by as many micro-batches as the stage's number."""
    ahead = min(stages - 1 - stage, micro)
    behind = 0
    for number in range(ahead):
        yield FORWARD, number
    for number in range(micro):
        if ahead + number < micro:
            yield FORWARD, ahead + number
        yield INPUT, number
        if number >= stage:
            yield WEIGHT, behind
            behind += 1
    for number in range(behind, micro):
        yield WEIGHT, number


@dataclass(frozen=True)
class ZeroBubble(Interleaved):
    """torch's pipelining with backward passes in two halves."""

    def member(self, meshes: ChunkMeshes, rank: Rank, lengths: Lengths) -> "HalfStage":
        """One rank in one step."""
        return HalfStage(self, meshes, rank, lengths)


class HalfStage(ChunkStage):
    """One rank in one step."""

    def schedule(self) -> None:
        """All actions."""
        for what, micro in halves(self.stage, self.config.pp, self.config.micro):
            if what == FORWARD:
                self.act_forward(micro)
            elif what == INPUT:
                self.input_half(micro)
            else:
                self.weight_half(micro)

    def act_forward(self, micro: int) -> None:
        """One micro-batch forward."""
        self.act(Action(forward=True, chunk=0, micro=micro))

    def input_half(self, micro: int) -> None:
        """Gradients of the input, which the stage before waits for."""
        rank, unit = self.rank, self.config.unit
        if not self.last:
            self.talk(self.following, send=False)
        length = self.lengths[self.replica, micro]
        with rank.span(f"PP:{self.stage}I{micro}"), rank.autograd():
            if self.last:
                rank.kernel(HEAD, unit * 0.5)
            for _ in range(self.config.layers):
                self.gather()
                rank.kernel(GEMM_OUT, unit * 0.9)
                rank.kernel(POINTWISE, unit * 0.4, "memory", op="aten::silu_backward")
                rank.kernel(GEMM, unit * 1.0)
                self.scatter()
                self.gather()
                rank.kernel(GEMM_OUT, unit * 0.35)
                rank.kernel(FLASH[1], unit * 2.1 * length, op=FLASH_OP[1])
                rank.kernel(GEMM, unit * 0.5)
                self.scatter()
                rank.kernel(NORM, unit * 0.4, "memory", op="aten::native_layer_norm_backward")
        if not self.first:
            self.talk(self.before, send=True)

    def weight_half(self, micro: int) -> None:
        """Gradients of the weights, which nobody waits for; the last ones are reduced."""
        rank, unit = self.rank, self.config.unit
        with rank.span(f"PP:{self.stage}W{micro}"), rank.autograd():
            if self.last:
                rank.kernel(HEAD, unit * 0.5)
            for _ in range(self.config.layers):
                for name, share in ((GEMM_OUT, 0.9), (GEMM, 1.0), (GEMM_OUT, 0.35), (GEMM, 0.5)):
                    rank.kernel(name, unit * share)
        if micro == self.config.micro - 1 and self.dp is not None:
            self.reduced.append(self.reduce(self.dp))


@dataclass(frozen=True)
class Overlapped(Interleaved):
    """Megatron's distributed optimizer: a chunk's parameters are gathered, and its gradients reduced, beside work."""

    buckets: int = 2

    def member(self, meshes: ChunkMeshes, rank: Rank, lengths: Lengths) -> "OverlapStage":
        """One rank in one step."""
        return OverlapStage(self, meshes, rank, lengths)


class OverlapStage(ChunkStage):
    """One rank in one step."""

    def __init__(self, config: Overlapped, meshes: ChunkMeshes, rank: Rank, lengths: Lengths) -> None:
        super().__init__(config, meshes, rank, lengths)
        self.overlapped = config
        self.gathered: dict[int, int] = {}

    def start(self, chunk: int) -> None:
        """Begin to gather a chunk's parameters."""
        config, group = self.overlapped, self.dp
        if group is None or chunk in self.gathered or chunk >= config.chunks:
            return
        size = config.parameters // config.tp // config.buckets
        for _ in range(config.buckets):
            op = "allgather_into_tensor_coalesced"
            self.gathered[chunk] = self.rank.collective(
                group, op, size // len(group.ranks), size, waited=False
            )

    def unshard(self, chunk: int) -> None:
        """Wait for a chunk's parameters, and begin with the next chunk's."""
        self.start(chunk)
        if chunk in self.gathered:
            self.rank.wait(self.gathered[chunk])
        self.start(chunk + 1)

    def reduce(self, group: Group) -> int:
        """The node at which a chunk's gradients are with their owners."""
        config = self.overlapped
        size = config.parameters // config.tp // config.buckets
        left = 0
        for _ in range(config.buckets):
            op = "reduce_scatter_tensor_coalesced"
            left = self.rank.collective(group, op, size, size // len(group.ranks), "Float", waited=False)
        return left

    def gather_updated(self, group: Group) -> None:
        """Parameters are gathered in the next step."""


@dataclass(frozen=True)
class Tower(Megatron):
    """A model that sees: its first stage has a vision tower, which works on each micro-batch's pictures."""

    depth: int = 6
    pictures: tuple[float, float] = (0.8, 1.2)

    def member(self, meshes: Meshes, rank: Rank, lengths: Lengths) -> "TowerStage":
        """One rank in one step."""
        return TowerStage(self, meshes, rank, lengths)


class TowerStage(Stage):
    """One rank in one step."""

    def __init__(self, config: Tower, meshes: Meshes, rank: Rank, lengths: Lengths) -> None:
        super().__init__(config, meshes, rank, lengths)
        self.sees = config
        number = rank.setting.seed * 1009 + rank.step_number + 1
        drawn = random.Random(number * 31 + self.replica)
        self.pictures = [drawn.uniform(*config.pictures) for _ in range(config.micro)]

    def forward(self) -> None:
        """One micro-batch forward, the first stage's with its pictures."""
        if self.first:
            self.see(self.pictures[self.forwards], 1.0)
        super().forward()

    def backward(self) -> None:
        """One micro-batch backward."""
        micro = self.backwards
        super().backward()
        if self.first:
            with self.rank.autograd():
                self.see(self.pictures[micro], 2.0)

    def see(self, pictures: float, more: float) -> None:
        """The tower on so many pictures; it is replicated over the tensor group."""
        rank, unit = self.rank, self.config.unit * 0.35 * pictures * more
        rank.kernel(PATCHES, unit * 0.4, op="aten::cudnn_convolution")
        for _ in range(self.sees.depth):
            rank.kernel(NORM, unit * 0.1, "memory", op="aten::native_layer_norm")
            rank.kernel(GEMM, unit * 0.4)
            rank.kernel(FLASH[more > 1], unit * 0.3, op=FLASH_OP[more > 1])
            rank.kernel(GEMM_OUT, unit * 0.5)
            rank.kernel(GELU, unit * 0.15, "memory", op="aten::gelu")
            rank.kernel(GEMM_OUT, unit * 0.5)
            rank.kernel(POINTWISE, unit * 0.05, "memory", op=SUM_OP)
