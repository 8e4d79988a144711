"""Pipelines beside context parallelism, several chunks a rank: Megatron's virtual stages and torch's pipelining."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.shapes.calls import Group, Message
from tests.shapes.job import Job
from tests.shapes.layers import (
    FLASH,
    FLASH_OP,
    GEMM_OUT,
    HEAD,
    LOSS,
    POINTWISE,
    SUM_OP,
    attention,
    load,
    logged,
    mlp,
    norm_and_projection,
    one_number,
    pause,
    scale,
    update,
)
from tests.shapes.order import Action, order
from tests.shapes.rank import CALLERS_STREAM, COMPUTE, Rank

GATHER, REDUCE = "gather", "reduce"
"""Streams beside compute."""


@dataclass(frozen=True)
class Interleaved:
    """Axes from the inside: tp, cp, dp, pp. `titan` is torchtitan with FSDP2 and torch's pipelining, else Megatron.

    `batched` puts messages of the pipeline into batches, `ring_batched` those of ring attention.
    """

    tp: int
    cp: int
    pp: int
    chunks: int
    micro: int
    layers: int
    unit: float
    parameters: int
    titan: bool = False
    batched: bool = False
    ring_batched: bool = False
    documents: bool = False
    log: int = 5
    activations: int = 1024 * 2048

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        meshes = Meshes(self, job)
        drawn = random.Random(job.setting.seed + 5)
        for number in steps:
            lengths = {
                (replica, micro): drawn.uniform(0.6, 1.6) if self.documents else 1.0
                for replica in range(meshes.dp_size)
                for micro in range(self.micro)
            }
            for rank in job.ranks:
                told = self.member(meshes, rank, lengths)
                with rank.step(number):
                    told.schedule()
                    told.end(job.world, number)

    def member(self, meshes: "Meshes", rank: Rank, lengths: dict[tuple[int, int], float]) -> "Stage":
        """One rank in one step."""
        return Stage(self, meshes, rank, lengths)


class Meshes:
    """The groups of a job, by rank; an axis of size one has none."""

    def __init__(self, config: Interleaved, job: Job) -> None:
        world, tp, inner = job.setting.world, config.tp, config.tp * config.cp
        self.stage_size = stage = world // config.pp
        self.dp_size = stage // inner
        titan, sharded = config.titan, "mesh_dp_shard_cp" if config.cp > 1 else "mesh_dp_shard"
        stages, first = range(0, world, stage), range(stage)
        self.tp = job.split(
            "mesh_tp" if titan else "TENSOR_MODEL_PARALLEL_GROUP",
            [range(r, r + tp) for r in range(0, world, tp)],
        )
        blocks = [s + d * inner for s in stages for d in range(self.dp_size)]
        self.cp = job.split(
            "mesh_cp" if titan else "CONTEXT_PARALLEL_GROUP",
            [range(b + t, b + inner, tp) for b in blocks for t in range(tp)],
        )
        self.dp = job.split(
            sharded if titan else "DATA_PARALLEL_GROUP_WITH_CP",
            [range(s + t, s + stage, tp) for s in stages for t in range(tp)],
        )
        self.pp = job.split(
            "mesh_pp" if titan else "PIPELINE_MODEL_PARALLEL_GROUP", [range(r, world, stage) for r in first]
        )
        self.embedding: dict[int, Group] = {}
        if not titan:
            replicas = range(0, stage, tp)
            job.split(
                "MODEL_PARALLEL_GROUP", [[s + r + t for s in stages for t in range(tp)] for r in replicas]
            )
            self.embedding = job.split("EMBEDDING_GROUP", [[r, r + stages[-1]] for r in first])


class Stage:
    """One rank in one step."""

    def __init__(
        self, config: Interleaved, meshes: Meshes, rank: Rank, lengths: dict[tuple[int, int], float]
    ) -> None:
        self.config, self.rank, self.lengths = config, rank, lengths
        self.stage = rank.number // meshes.stage_size
        self.first, self.last = self.stage == 0, self.stage == config.pp - 1
        self.replica = rank.number % meshes.stage_size // (config.tp * config.cp)
        self.tp, self.cp = meshes.tp.get(rank.number), meshes.cp.get(rank.number)
        self.dp, self.pp = meshes.dp.get(rank.number), meshes.pp[rank.number]
        self.embedding = meshes.embedding.get(rank.number)
        self.following, self.before = (self.pp.beside(rank.number, by) for by in (1, -1))
        self.in_place = rank.setting.torch >= CALLERS_STREAM
        self.done = [0] * config.chunks
        self.reduced: list[int] = []

    def schedule(self) -> None:
        """All actions."""
        for action in order(self.stage, self.config.pp, self.config.chunks, self.config.micro):
            self.act(action)

    def act(self, action: Action) -> None:
        """One action with its messages."""
        ends = self.last and action.chunk == self.config.chunks - 1
        begins = self.first and action.chunk == 0
        if action.forward:
            self.forward(action, begins=begins, ends=ends)
        else:
            self.backward(action, begins=begins, ends=ends)

    def talk(self, peer: int, *, send: bool) -> None:
        """One message of the pipeline; only a receiver waits."""
        message = Message(send, peer, self.config.activations // self.config.tp)
        self.rank.messages(self.pp, [message], batched=self.config.batched, waited=not send)

    def name(self, action: Action) -> str:
        """The annotation of an action."""
        if not self.config.titan:
            return "forward-compute" if action.forward else "backward-compute"
        number = action.chunk * self.config.pp + self.stage
        return f"PP:{number}{'F' if action.forward else 'B'}{action.micro}"

    def forward(self, action: Action, *, begins: bool, ends: bool) -> None:
        """One micro-batch of a chunk forward."""
        rank, config = self.rank, self.config
        pause(rank)
        with rank.span(self.name(action)):
            if begins:
                self.embed()
            else:
                self.talk(self.before, send=False)
            if action.micro == 0:
                self.unshard(action.chunk)
            for _ in range(config.layers):
                self.attention(self.lengths[self.replica, action.micro], backward=False)
                self.mlp(backward=False)
            if ends:
                rank.kernel(HEAD, config.unit * 0.5)
                rank.kernel(LOSS, config.unit * 0.3, "memory", op="aten::cross_entropy_loss")
        if not ends:
            self.talk(self.following, send=True)

    def embed(self) -> None:
        """A batch comes in, and is told to the tensor group."""
        if self.rank.number % self.config.tp == 0:
            load(self.rank, 60.0)
        if self.tp is not None and not self.config.titan:
            self.rank.collective(self.tp, "broadcast", 4097, 4097, "Long")
        self.rank.kernel(POINTWISE, self.config.unit * 0.3, "memory", op="aten::embedding")

    def unshard(self, _chunk: int) -> None:
        """Gather a chunk's parameters, under FSDP2."""
        if self.config.titan and self.dp is not None:
            whole = self.config.parameters
            cut = whole // len(self.dp.ranks)
            self.rank.wait(
                self.rank.collective(
                    self.dp, "_allgather_base", cut, whole, waited=self.in_place, caller=GATHER
                )
            )

    def backward(self, action: Action, *, begins: bool, ends: bool) -> None:
        """One micro-batch of a chunk backward; the chunk's last one reduces."""
        if not ends:
            self.talk(self.following, send=False)
        with self.rank.span(self.name(action)), self.rank.autograd():
            for _ in range(self.config.layers):
                self.mlp(backward=True)
                self.attention(self.lengths[self.replica, action.micro], backward=True)
        self.done[action.chunk] += 1
        if self.done[action.chunk] == self.config.micro and self.dp is not None:
            self.reduced.append(self.reduce(self.dp))
        if not begins:
            self.talk(self.before, send=True)

    def reduce(self, group: Group) -> int:
        """The node at which a chunk's gradients are with their owners."""
        rank, before = self.rank, self.config.parameters // self.config.tp
        after = before // len(group.ranks)
        if not self.config.titan:
            return rank.collective(group, "_reduce_scatter_base", before, after, "Float", waited=False)
        rank.wait_stream(REDUCE, COMPUTE)
        return rank.collective(
            group, "_reduce_scatter_base", before, after, "Float", waited=self.in_place, caller=REDUCE
        )

    def gather(self) -> None:
        """The whole sequence from the tensor group."""
        if self.tp is not None:
            size = self.config.activations
            self.rank.collective(self.tp, "_allgather_base", size // self.config.tp, size)

    def scatter(self) -> None:
        """Partial sums back to the tensor group."""
        if self.tp is not None:
            size = self.config.activations
            self.rank.collective(self.tp, "_reduce_scatter_base", size, size // self.config.tp)

    def mlp(self, *, backward: bool) -> None:
        """A layer's feed-forward part."""
        self.gather()
        mlp(self.rank, self.config.unit, backward=backward)
        self.scatter()

    def attention(self, length: float, *, backward: bool) -> None:
        """A layer's attention, in a ring over the context group where there is one."""
        rank, unit = self.rank, self.config.unit
        self.gather()
        if self.cp is None:
            attention(rank, unit, length, backward=backward)
        else:
            norm_and_projection(rank, unit, backward=backward)
            us = unit * 0.9 / self.config.cp * scale(backward=backward) * 1.1 * length
            for under_way in self.ring(self.cp):
                rank.kernel(FLASH[backward], us, op=FLASH_OP[backward])
                rank.wait(*under_way)
            rank.kernel(GEMM_OUT, unit * 0.35 * scale(backward=backward))
            rank.kernel(POINTWISE, unit * 0.1 * scale(backward=backward), "memory", op=SUM_OP)
        self.scatter()

    def ring(self, group: Group) -> Iterator[list[int]]:
        """By turn, nodes of what is sent round meanwhile; neighbours send and receive in opposite orders."""
        rank, size = self.rank, self.config.activations // self.config.tp // 2
        ends = [
            Message(True, group.beside(rank.number, 1), size),
            Message(False, group.beside(rank.number, -1), size),
        ]
        batched = self.config.ring_batched or self.config.cp == 2
        if not batched and group.place(rank.number) % 2:
            ends.reverse()
        for _ in range(self.config.cp - 1):
            yield rank.messages(group, ends, batched=batched, waited=False)
        yield []

    def end(self, world: Group, number: int) -> None:
        """What follows the last backward pass."""
        rank, config = self.rank, self.config
        rank.wait(*self.reduced)
        rank.wait_stream(COMPUTE, f"nccl {self.pp.number}")
        if self.embedding is not None and (self.first or self.last):
            tied = config.parameters // config.tp
            rank.collective(self.embedding, "allreduce", tied, tied, "Float")
        rank.kernel(POINTWISE, config.unit * 0.3, "memory", op="aten::norm")
        if config.titan:
            for group in (self.dp, self.tp, self.pp):
                one_number(rank, group)
        else:
            logged(rank, world, 1, number)
        update(rank, config.unit * 1.2)
        if config.titan:
            logged(rank, world, config.log, number)
        elif self.dp is not None:
            self.gather_updated(self.dp)

    def gather_updated(self, group: Group) -> None:
        """All parameters to all replicas, once they are updated."""
        whole = self.config.parameters * self.config.chunks // self.config.tp
        self.rank.collective(group, "_allgather_base", whole // len(group.ranks), whole)
