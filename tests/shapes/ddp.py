"""DistributedDataParallel: a convolutional network, and a transformer that accumulates gradients."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.job import Job
from tests.shapes.layers import (
    GRADIENT_NORM,
    LOSS,
    POINTWISE,
    head_and_loss,
    layer,
    load,
    logged,
    one_number,
    pause,
    update,
)
from tests.shapes.rank import Rank

CONVOLUTION = (
    "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1"
    "_tensor16x8x16_kernel_cudnn"
)
BATCH_NORM = (
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__nv_bfloat16, float, 512, true, 1, true>"
    "(cudnnTensorStruct, __nv_bfloat16 const*, cudnnTensorStruct, __nv_bfloat16*)"
)
BUCKET_LAYERS = 5


@dataclass(frozen=True)
class Vision:
    """A convolutional network; `unit` is a layer's work in µs, `read_every` how often the host reads the loss."""

    layers: int
    unit: float
    bucket: int
    buffers: bool
    read_every: int

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    self.step(job, rank, number)

    def step(self, job: Job, rank: Rank, number: int) -> None:
        """One step of one rank."""
        load(rank, 150.0)
        with rank.span("DistributedDataParallel.forward"):
            if self.buffers:
                rank.collective(job.world, "broadcast", 26000, 26000, "Float")
            for place in range(self.layers):
                rank.kernel(CONVOLUTION, self.unit * 0.8, op="aten::cudnn_convolution")
                rank.kernel(BATCH_NORM, self.unit * 0.3, "memory", op="aten::cudnn_batch_norm")
                rank.kernel(POINTWISE, self.unit * 0.1, "memory", op="aten::relu_")
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
            rank.kernel(POINTWISE, self.unit * 0.2, "memory", op="aten::threshold_backward")
            rank.kernel(BATCH_NORM, self.unit * 0.5, "memory", op="aten::cudnn_batch_norm_backward")
            rank.kernel(CONVOLUTION, self.unit * 1.5, op="aten::convolution_backward")
            if place % BUCKET_LAYERS == BUCKET_LAYERS - 1:
                rank.kernel(POINTWISE, 8, "memory", op="aten::copy_")
                reduced.append(
                    rank.collective(job.world, "allreduce", self.bucket, self.bucket, "Float", waited=False)
                )
        return reduced


@dataclass(frozen=True)
class Transformer:
    """A transformer; `clip` is "", "norm" or "read", `evaluated` and `saved` are steps in which that is done too."""

    layers: int
    unit: float
    micro: int
    clip: str
    log: int
    documents: bool = False
    recompute: bool = False
    read_each: bool = False
    evaluated: int | None = None
    saved: int | None = None
    bucket: int = 2 * 10**7

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        drawn = random.Random(job.setting.seed + 5)
        for number in steps:
            lengths = {
                (rank.number, micro): drawn.uniform(0.6, 1.6) if self.documents else 1.0
                for rank in job.ranks
                for micro in range(self.micro)
            }
            for rank in job.ranks:
                with rank.step(number):
                    for micro in range(self.micro):
                        self.micro_batch(job, rank, lengths[rank.number, micro], last=micro == self.micro - 1)
                    self.end(job, rank, number)

    def micro_batch(self, job: Job, rank: Rank, length: float, *, last: bool) -> None:
        """Forward and backward of one micro-batch; the last one reduces."""
        load(rank)
        pause(rank)
        unit = self.unit * (0.7 + 0.3 * length) if self.documents else self.unit
        with rank.span("DistributedDataParallel.forward"):
            for _ in range(self.layers):
                layer(rank, unit, length)
        head_and_loss(rank, self.unit * 2, self.unit * 0.4)
        with rank.autograd():
            reduced = []
            for place in range(self.layers):
                if self.recompute:
                    layer(rank, unit, length)
                layer(rank, unit, length, backward=True)
                if last and place % 2 == 1:
                    reduced.append(
                        rank.collective(
                            job.world, "allreduce", self.bucket, self.bucket, "Float", waited=False
                        )
                    )
            rank.wait(*reduced)
        if self.read_each:
            rank.item()

    def end(self, job: Job, rank: Rank, number: int) -> None:
        """What follows the backward pass."""
        if self.clip:
            rank.kernel(GRADIENT_NORM, self.unit * 0.6, "memory", op="aten::_foreach_norm")
        if self.clip == "read":
            rank.item()
        update(rank, self.unit * 2)
        logged(rank, job.world, self.log, number)
        if self.evaluated == number:
            with rank.span("eval"):
                for _ in range(3):
                    load(rank)
                    for _ in range(self.layers):
                        layer(rank, self.unit)
                logged(rank, job.world, 1, number)
        if self.saved == number:
            if rank.number == 0:
                with rank.span("save_checkpoint"):
                    rank.host(30000, exact=True)
            one_number(rank, job.world)
            rank.sync()
