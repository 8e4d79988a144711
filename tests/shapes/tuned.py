"""DistributedDataParallel in other ways: small adapters, unused parameters, common statistics, compiled blocks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.ddp import BATCH_NORM, CONVOLUTION, Vision
from tests.shapes.forms import replay
from tests.shapes.job import Job
from tests.shapes.layers import (
    FLASH,
    FLASH_OP,
    GEMM,
    GEMM_OUT,
    GRADIENT_NORM,
    LOSS,
    NORM,
    POINTWISE,
    head_and_loss,
    load,
    logged,
    pause,
    update,
)
from tests.shapes.rank import Rank

SMALL = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>()"
STATISTICS = (
    "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var, float, 4>()"
)
ELEMENT = "void at::native::batch_norm_transform_input_channels_last_kernel<__nv_bfloat16, float, 4>()"
TRITON = ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "triton_poi_fused_mul_silu_1")
CHANNELS = 2048
SYNCHRONISED = 2 * CHANNELS + 1
"""Numbers that a layer's statistics have: sums, squares, and the count."""


@dataclass(frozen=True)
class Adapters:
    """LoRA: frozen layers with two small products each, whose gradients are tiny."""

    layers: int
    unit: float
    micro: int
    adapters: int = 2 * 10**6
    log: int = 1

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    for micro in range(self.micro):
                        self.micro_batch(job, rank, last=micro == self.micro - 1)
                    rank.kernel(GRADIENT_NORM, 12, "memory", op="aten::_foreach_norm")
                    rank.item()
                    update(rank, 40)
                    logged(rank, job.world, self.log, number)

    def micro_batch(self, job: Job, rank: Rank, *, last: bool) -> None:
        """Forward and backward; frozen weights have no gradients."""
        load(rank)
        pause(rank)
        with rank.span("DistributedDataParallel.forward"):
            for _ in range(self.layers):
                self.layer(rank, FLASH[0], 0.9)
        head_and_loss(rank, self.unit * 2, self.unit * 0.4)
        with rank.autograd():
            for _ in range(self.layers):
                self.layer(rank, FLASH[1], 2.1)
            if last:
                half = self.adapters // 2
                sums = [
                    rank.collective(job.world, "allreduce", half, half, "Float", waited=False)
                    for _ in range(2)
                ]
                rank.wait(*sums)

    def layer(self, rank: Rank, flash: str, attention: float) -> None:
        """A layer in one direction."""
        unit = self.unit
        rank.kernel(NORM, unit * 0.12, "memory", op="aten::native_layer_norm")
        for name, share in ((GEMM, 0.5), (GEMM_OUT, 0.35), (GEMM, 1.0), (GEMM_OUT, 0.9)):
            rank.kernel(name, unit * share)
            for _ in range(2):
                rank.kernel(SMALL, 6)
            rank.kernel(POINTWISE, 9, "memory", op="aten::add_")
        rank.kernel(flash, unit * attention, op=FLASH_OP[flash == FLASH[1]])


@dataclass(frozen=True)
class Unused:
    """DDP with find_unused_parameters: layers are left out by chance, and ranks tell each other which were used."""

    layers: int
    unit: float
    parameters: int
    dropped: float = 0.0
    log: int = 1

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        drawn = random.Random(job.setting.seed + 5)
        for number in steps:
            for rank in job.ranks:
                used = [drawn.random() >= self.dropped for _ in range(self.layers)]
                with rank.step(number):
                    self.step(job, rank, used)
                    update(rank, self.unit * 2)
                    logged(rank, job.world, self.log, number)

    def step(self, job: Job, rank: Rank, used: Sequence[bool]) -> None:
        """Forward and backward of one rank."""
        load(rank)
        pause(rank)
        with rank.span("DistributedDataParallel.forward"):
            rank.collective(job.world, "broadcast", 4096, 4096, "Float")
            for works in used:
                if works:
                    self.block(rank, 1.0)
            rank.host(90)
        head_and_loss(rank, self.unit, self.unit * 0.3)
        with rank.autograd():
            reduced = []
            for works in reversed(used):
                if works:
                    self.block(rank, 2.0)
                size = self.parameters
                reduced.append(rank.collective(job.world, "allreduce", size, size, "Float", waited=False))
            copied = "Memcpy HtoD (Pinned -> Device)"
            rank.kernel(copied, 2.0, op="aten::copy_", launch="cudaMemcpyAsync", copied=4 * self.layers)
            bits = rank.collective(
                job.world, "allreduce", 12 * self.layers, 12 * self.layers, "Int", waited=False
            )
            rank.wait(*reduced)
            rank.block("cudaStreamSynchronize", [bits])

    def block(self, rank: Rank, more: float) -> None:
        """A layer in one direction."""
        unit = self.unit * more
        rank.kernel(NORM, unit * 0.2, "memory", op="aten::native_layer_norm")
        rank.kernel(GEMM, unit)
        rank.kernel(FLASH[more > 1], unit * 0.6, op=FLASH_OP[more > 1])
        rank.kernel(GEMM_OUT, unit * 0.9)
        rank.kernel(POINTWISE, unit * 0.15, "memory", op="aten::gelu")


@dataclass(frozen=True)
class Synchronised(Vision):
    """A convolutional network with SyncBatchNorm: each layer's statistics are those of all ranks."""

    def step(self, job: Job, rank: Rank, number: int) -> None:
        """One step of one rank."""
        load(rank, 150.0)
        with rank.span("DistributedDataParallel.forward"):
            for place in range(self.layers):
                rank.kernel(CONVOLUTION, self.unit * 0.8, op="aten::cudnn_convolution")
                rank.kernel(STATISTICS, self.unit * 0.15, "memory", op="aten::batch_norm_stats")
                gathered = SYNCHRONISED * job.setting.world
                rank.collective(job.world, "_allgather_base", SYNCHRONISED, gathered, "Float")
                rank.kernel(ELEMENT, self.unit * 0.15, "memory", op="aten::batch_norm_elemt")
                if place == self.layers // 2:
                    pause(rank)
        rank.kernel(LOSS, 20, "memory", op="aten::cross_entropy_loss")
        with rank.autograd():
            rank.wait(*self.backward(job, rank))
        update(rank, self.unit * 3)
        if self.read_every and number % self.read_every == 0:
            rank.item()

    def backward(self, job: Job, rank: Rank) -> list[int]:
        """Nodes at which the buckets are reduced."""
        reduced = []
        for place in range(self.layers):
            rank.kernel(STATISTICS, self.unit * 0.3, "memory", op="aten::batch_norm_backward_reduce")
            rank.collective(job.world, "allreduce", 2 * CHANNELS, 2 * CHANNELS, "Float")
            rank.kernel(BATCH_NORM, self.unit * 0.25, "memory", op="aten::batch_norm_backward_elemt")
            rank.kernel(CONVOLUTION, self.unit * 1.5, op="aten::convolution_backward")
            if place % 5 == 4:
                size = self.bucket
                reduced.append(rank.collective(job.world, "allreduce", size, size, "Float", waited=False))
        return reduced


@dataclass(frozen=True)
class Compiled:
    """torch.compile under DDP: a region for each bucket, of Triton's kernels or, with `graphs`, of one CUDA graph."""

    layers: int
    unit: float
    parameters: int
    graphs: bool
    micro: int = 1
    log: int = 1

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    for micro in range(self.micro):
                        self.micro_batch(job, rank, last=micro == self.micro - 1)
                    rank.kernel(GRADIENT_NORM, self.unit * 0.4, "memory", op="aten::_foreach_norm")
                    update(rank, self.unit * 2)
                    logged(rank, job.world, self.log, number)

    def micro_batch(self, job: Job, rank: Rank, *, last: bool) -> None:
        """Forward and backward of one micro-batch."""
        load(rank)
        pause(rank)
        with rank.span("DistributedDataParallel.forward"):
            for place in range(self.layers):
                with rank.span(f"Torch-Compiled Region: {place}/0", "cpu_op"):
                    if place == 0:
                        self.compile(rank)
                    with rank.span("CompiledFunction", "cpu_op"):
                        self.region(rank, FLASH[0], 1.0)
        head_and_loss(rank, self.unit * 1.5, self.unit * 0.3)
        with rank.autograd():
            reduced = []
            for _ in range(self.layers):
                with rank.span("CompiledFunctionBackward", "cpu_op"):
                    self.region(rank, FLASH[1], 2.0)
                if last:
                    size = self.parameters
                    rank.kernel(POINTWISE, 8, "memory", op="aten::copy_")
                    reduced.append(rank.collective(job.world, "allreduce", size, size, "Float", waited=False))
            rank.wait(*reduced)

    def compile(self, rank: Rank) -> None:
        """Where the fault `compile` lets a rank compile again, for lengths that it has not seen."""
        luck, us = rank.chance.random(), rank.stall_us("compile")
        if us:
            with rank.span("_compile.compile_inner (dynamo_timed)", "cpu_op"):
                rank.stall("compile", luck)

    def region(self, rank: Rank, flash: str, more: float) -> None:
        """The kernels of one region."""
        unit = self.unit * more
        parts = [
            (TRITON[0], unit * 0.15, "memory"),
            (GEMM, unit * 0.5, "gemm"),
            (flash, unit * 0.9, "gemm"),
            (GEMM_OUT, unit * 0.35, "gemm"),
            (TRITON[0], unit * 0.15, "memory"),
            (GEMM, unit * 1.0, "gemm"),
            (TRITON[1], unit * 0.2, "memory"),
            (GEMM_OUT, unit * 0.9, "gemm"),
        ]
        if self.graphs:
            rank.kernel(
                "Memcpy DtoD (Device -> Device)",
                4,
                "memory",
                op="aten::copy_",
                launch="cudaMemcpyAsync",
                copied=4 * 10**6,
            )
            replay(rank, parts)
            return
        for name, us, kind in parts:
            launch = "cuLaunchKernel" if name.startswith("triton") else "cudaLaunchKernel"
            op = name if name.startswith("triton") else "aten::mm"
            rank.kernel(name, us, kind, op=op, launch=launch)
