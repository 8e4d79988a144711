"""FSDP2 as torchtitan builds it: alone, with tensor parallelism, in replicas (HSDP), with ring attention or Ulysses."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.calls import Group, Message
from tests.shapes.job import Job
from tests.shapes.layers import (
    FLASH,
    FLASH_OP,
    GEMM_OUT,
    POINTWISE,
    SUM_OP,
    attention,
    head_and_loss,
    load,
    logged,
    mlp,
    norm_and_projection,
    one_number,
    pause,
    scale,
    update,
)
from tests.shapes.rank import CALLERS_STREAM, COMPUTE, Rank

COPY_IN, GATHER, REDUCE = "gather copy in", "gather", "reduce"
"""Streams beside compute."""
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>, unsigned int, 1, 128, 1>()"
SPLIT = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel()"
CHUNK = "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>()"


@dataclass(frozen=True)
class Sharded:
    """Axes from the inside: tp, cp, shards, replicas. `unit` is a layer's work in µs; sizes are elements of a layer."""

    layers: int
    unit: float
    parameters: int
    activations: int
    micro: int = 1
    tp: int = 1
    cp: int = 1
    replicas: int = 1
    ring: bool = False
    recompute: bool = False
    log: int = 1
    clip_read: bool = False
    twin: bool = False
    documents: bool = False

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        meshes = Meshes(self, job)
        drawn = random.Random(job.setting.seed + 5)
        for number in steps:
            lengths = {
                (place, micro): drawn.uniform(0.5, 1.7) if self.documents else 1.0
                for place in range(job.setting.world // self.tp)
                for micro in range(self.micro)
            }
            for rank in job.ranks:
                told = self.member(meshes, rank)
                with rank.step(number):
                    for micro in range(self.micro):
                        told.micro_batch(lengths[rank.number // self.tp, micro])
                    told.end(number)

    def member(self, meshes: "Meshes", rank: Rank) -> "Member":
        """One rank in one step."""
        return Member(self, meshes, rank)


class Meshes:
    """The groups of a job, by rank; an axis of size one has none."""

    def __init__(self, config: Sharded, job: Job) -> None:
        world, tp, cp, replicas = job.setting.world, config.tp, config.cp, config.replicas
        shards = world // tp // replicas
        size = shards * tp
        self.tp = job.split("mesh_tp", [range(first, first + tp) for first in range(0, world, tp)])
        self.logging = job.group("undefined", range(world)) if config.twin else job.world
        blocks = range(0, world, tp * cp)
        self.cp = job.split(
            "mesh_cp", [range(first + t, first + tp * cp, tp) for first in blocks for t in range(tp)]
        )
        name = "mesh_dp_shard_cp" if cp > 1 else "mesh_dp_shard"
        ranks = [range(r * size + t, (r + 1) * size, tp) for r in range(replicas) for t in range(tp)]
        self.shard = job.split(name, ranks) if shards < world else dict.fromkeys(range(world), job.world)
        self.replica = job.split("mesh_dp_replicate", [range(place, world, size) for place in range(size)])


class Member:
    """One rank in one step."""

    def __init__(self, config: Sharded, meshes: Meshes, rank: Rank) -> None:
        self.config, self.meshes, self.rank = config, meshes, rank
        self.shard = meshes.shard[rank.number]
        self.tp = meshes.tp.get(rank.number)
        self.cp = meshes.cp.get(rank.number)
        self.replica = meshes.replica.get(rank.number)
        self.in_place = rank.setting.torch >= CALLERS_STREAM

    def micro_batch(self, length: float) -> None:
        """Forward and backward of one micro-batch."""
        rank, config = self.rank, self.config
        load(rank)
        pause(rank)
        for place in range(config.layers):
            self.unpack(self.gather(place))
            self.block(length)
        head_and_loss(rank, config.unit * 1.5, config.unit * 0.4)
        if self.tp is not None:
            rank.collective(self.tp, "allreduce", 4096, 4096, "Float")
        with rank.autograd():
            reduced: int | None = None
            gathered = self.gather(config.layers - 1)
            for place in reversed(range(config.layers)):
                self.unpack(gathered)
                if place > 0:
                    gathered = self.gather(place - 1)
                if config.recompute:
                    self.block(length)
                self.block_backward(length)
                reduced = self.reduce(place, reduced)
            if reduced is not None:
                rank.wait(reduced)

    def gather(self, place: int) -> int:
        """The node at which a layer's parameters are whole."""
        rank, whole = self.rank, self.config.parameters
        with rank.span(f"FSDP::all_gather (layers.{place})"):
            rank.kernel(CAT, 6, "memory", stream=COPY_IN, op="fsdp::all_gather_copy_in")
            if self.in_place:
                rank.wait_stream(GATHER, COPY_IN)
            caller = GATHER if self.in_place else COPY_IN
            cut = whole // len(self.shard.ranks)
            return rank.collective(
                self.shard, "_allgather_base", cut, whole, waited=self.in_place, caller=caller
            )

    def unpack(self, gathered: int) -> None:
        """Wait for a layer's parameters and put them into place."""
        self.rank.wait(gathered)
        self.rank.kernel(SPLIT, 10, "memory", op="fsdp::split_with_sizes_copy")
        self.rank.wait_stream(COPY_IN, COMPUTE)

    def reduce(self, place: int, before: int | None) -> int:
        """The node at which a layer's gradients are with their owners, after those of the layer `before`."""
        rank, whole = self.rank, self.config.parameters
        cut = whole // len(self.shard.ranks)
        with rank.span(f"FSDP::post_backward_reduce (layers.{place})"):
            rank.wait_stream(REDUCE, COMPUTE)
            if before is not None:
                rank.wait_stream(REDUCE, node=before)
            rank.kernel(CHUNK, 9, "memory", stream=REDUCE, op="fsdp::chunk_cat")
            self.summed(self.shard, "_reduce_scatter_base", whole, cut)
            if self.replica is not None:
                self.summed(self.replica, "allreduce", cut, cut)
            return rank.kernel(POINTWISE, 6, "memory", stream=REDUCE, op="aten::div_")

    def summed(self, group: Group, op: str, before: int, after: int) -> None:
        """A sum of gradients, which the stream of reductions waits for."""
        left = self.rank.collective(group, op, before, after, "Float", waited=self.in_place, caller=REDUCE)
        if not self.in_place:
            self.rank.wait_stream(REDUCE, node=left)

    def block(self, length: float) -> None:
        """A layer forward."""
        self.attention(length, backward=False)
        self.sequence_gather()
        mlp(self.rank, self.config.unit)
        self.sequence_scatter()

    def block_backward(self, length: float) -> None:
        """A layer backward."""
        self.sequence_gather()
        mlp(self.rank, self.config.unit, backward=True)
        self.sequence_scatter()
        self.attention(length, backward=True)

    def sequence_gather(self) -> None:
        """The whole sequence from the tensor group."""
        if self.tp is not None:
            size = self.config.activations
            self.rank.collective(self.tp, "_allgather_base", size // self.config.tp, size)

    def sequence_scatter(self) -> None:
        """Partial sums back to the tensor group."""
        if self.tp is not None:
            size = self.config.activations
            self.rank.collective(self.tp, "_reduce_scatter_base", size, size // self.config.tp)

    def attention(self, length: float, *, backward: bool) -> None:
        """Attention, over the context group where there is one."""
        rank, unit = self.rank, self.config.unit
        if self.cp is None:
            self.sequence_gather()
            attention(rank, unit, length, backward=backward)
            self.sequence_scatter()
            return
        more = scale(backward=backward)
        norm_and_projection(rank, unit, backward=backward)
        if self.config.ring:
            self.ring(self.cp, length, backward=backward)
        else:
            size = self.config.activations
            rank.collective(self.cp, "all_to_all", size, size)
            rank.kernel(FLASH[backward], unit * 0.9 * more * length, op=FLASH_OP[backward])
            rank.collective(self.cp, "all_to_all", size, size)
        rank.kernel(GEMM_OUT, unit * 0.35 * more)
        rank.kernel(POINTWISE, unit * 0.1 * more, "memory", op=SUM_OP)

    def ring(self, group: Group, length: float, *, backward: bool) -> None:
        """Ring attention: keys and values go round while each part is worked on."""
        rank, size = self.rank, self.config.activations // self.config.cp
        following, before = group.beside(rank.number, 1), group.beside(rank.number, -1)
        us = self.config.unit * 0.9 / self.config.cp * scale(backward=backward) * 1.1 * length
        for turn in range(self.config.cp):
            under_way = []
            if turn < self.config.cp - 1:
                ends = [Message(True, following, size), Message(False, before, size)]
                under_way = rank.messages(group, ends, waited=False)
            rank.kernel(FLASH[backward], us, op=FLASH_OP[backward])
            rank.wait(*under_way)

    def end(self, number: int) -> None:
        """What follows the backward pass."""
        rank, config = self.rank, self.config
        rank.kernel(POINTWISE, config.unit * 0.3, "memory", op="aten::_foreach_norm")
        one_number(rank, self.shard)
        one_number(rank, self.tp)
        if config.clip_read:
            rank.item()
        update(rank, config.unit * 1.5)
        logged(rank, self.meshes.logging, config.log, number)
