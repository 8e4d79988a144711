"""Megatron-LM: tensor, pipeline and data parallelism, one forward and one backward in turn, messages in batches."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.calls import Group, Message
from tests.shapes.job import Job
from tests.shapes.layers import (
    HEAD,
    LOSS,
    POINTWISE,
    attention,
    load,
    mlp,
    one_number,
    pause,
    update,
)
from tests.shapes.rank import Rank


@dataclass(frozen=True)
class Megatron:
    """Axes from the inside: tp, dp, pp. `unit` is a layer's work in µs, `logit` the head's part of it.

    `sequence` is sequence parallelism, `overlap` reduces gradients during the last backward pass, `shared_state` is the
    distributed optimizer, `synchronous` lets the host wait after each message.
    """

    tp: int
    pp: int
    micro: int
    layers: int
    unit: float
    activations: int
    parameters: int
    synchronous: bool
    sequence: bool = True
    overlap: bool = True
    shared_state: bool = True
    recompute: bool = False
    logit: float = 0.8
    documents: bool = False
    stage_layers: tuple[int, ...] = ()
    stage_pace: tuple[float, ...] = ()

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

    def __init__(self, config: Megatron, job: Job) -> None:
        tp, pp = config.tp, config.pp
        self.dp_size = dp = job.setting.world // tp // pp
        stage = tp * dp
        first = range(stage)
        stages = range(0, job.setting.world, stage)
        self.tp = job.split(
            "TENSOR_MODEL_PARALLEL_GROUP", [range(r, r + tp) for r in range(0, job.setting.world, tp)]
        )
        self.dp = job.split(
            "DATA_PARALLEL_GROUP_WITH_CP", [range(s + t, s + stage, tp) for s in stages for t in range(tp)]
        )
        self.pp = job.split(
            "PIPELINE_MODEL_PARALLEL_GROUP", [range(r, job.setting.world, stage) for r in first]
        )
        self.model = job.split(
            "MODEL_PARALLEL_GROUP", [[s + d * tp + t for s in stages for t in range(tp)] for d in range(dp)]
        )
        self.embedding = job.split("EMBEDDING_GROUP", [[r, r + stages[-1]] for r in first])


class Stage:
    """One rank in one step."""

    def __init__(
        self, config: Megatron, meshes: Meshes, rank: Rank, lengths: dict[tuple[int, int], float]
    ) -> None:
        self.config, self.meshes, self.rank, self.lengths = config, meshes, rank, lengths
        size = config.tp * meshes.dp_size
        self.replica = rank.number // config.tp % meshes.dp_size
        self.stage = rank.number // size
        self.first, self.last = self.stage == 0, self.stage == config.pp - 1
        self.following, self.before = rank.number + size, rank.number - size
        self.layers = config.stage_layers[self.stage] if config.stage_layers else config.layers
        self.unit = config.unit * (config.stage_pace[self.stage] if config.stage_pace else 1.0)
        self.tp, self.dp = meshes.tp.get(rank.number), meshes.dp.get(rank.number)
        self.forwards = self.backwards = 0
        self.reduced: list[int] = []

    def schedule(self) -> None:
        """All micro-batches: some forward, then one forward and one backward in turn, then the rest backward."""
        warm = min(self.config.pp - 1 - self.stage, self.config.micro)
        steady = self.config.micro - warm
        for _ in range(warm):
            self.talk(receive_forward=True)
            self.forward()
            self.talk(send_forward=True)
        if steady:
            self.talk(receive_forward=True)
        for place in range(steady):
            self.forward()
            self.talk(send_forward=True, receive_backward=True)
            self.backward()
            self.talk(send_backward=True, receive_forward=place < steady - 1)
        for _ in range(warm):
            self.talk(receive_backward=True)
            self.backward()
            self.talk(send_backward=True)
        self.rank.wait(*self.reduced)

    def talk(
        self,
        *,
        send_forward: bool = False,
        receive_forward: bool = False,
        send_backward: bool = False,
        receive_backward: bool = False,
    ) -> None:
        """One batch of messages with the neighbours that there are."""
        size = self.config.activations // (self.config.tp if self.config.sequence else 1)
        ends = []
        if not self.last:
            ends += [Message(True, self.following, size)] if send_forward else []
            ends += [Message(False, self.following, size)] if receive_backward else []
        if not self.first:
            ends += [Message(True, self.before, size)] if send_backward else []
            ends += [Message(False, self.before, size)] if receive_forward else []
        if ends:
            self.rank.messages(self.meshes.pp[self.rank.number], ends)
            if self.config.synchronous:
                self.rank.sync()

    def gather(self) -> None:
        """The whole sequence from the tensor group."""
        if self.tp is not None and self.config.sequence:
            size = self.config.activations
            self.rank.collective(self.tp, "_allgather_base", size // self.config.tp, size)

    def scatter(self) -> None:
        """Partial sums back to the tensor group, or summed for all where sequences are whole."""
        size = self.config.activations
        if self.tp is not None and self.config.sequence:
            self.rank.collective(self.tp, "_reduce_scatter_base", size, size // self.config.tp)
        elif self.tp is not None:
            self.rank.collective(self.tp, "allreduce", size, size)

    def attention(self, length: float, *, backward: bool) -> None:
        """A layer's attention."""
        self.gather()
        attention(self.rank, self.unit, length, backward=backward)
        self.scatter()

    def mlp(self, *, backward: bool) -> None:
        """A layer's feed-forward part."""
        self.gather()
        mlp(self.rank, self.unit, backward=backward)
        self.scatter()

    def forward(self) -> None:
        """One micro-batch forward."""
        rank, unit = self.rank, self.config.unit
        length = self.lengths[self.replica, self.forwards]
        self.forwards += 1
        pause(rank)
        if self.first or self.last:
            rank.host(60)
        if self.first:
            if rank.number % self.config.tp == 0:
                load(rank, 60.0)
            if self.tp is not None:
                rank.collective(self.tp, "broadcast", 4097, 4097, "Long")
            rank.kernel(POINTWISE, unit * 0.3, "memory", op="aten::embedding")
        for _ in range(self.layers):
            self.attention(length, backward=False)
            self.mlp(backward=False)
        if self.last:
            rank.kernel(HEAD, unit * self.config.logit)
            if self.tp is not None:
                rank.collective(self.tp, "allreduce", 4096, 4096, "Float")
            rank.kernel(LOSS, unit * 0.3, "memory", op="aten::cross_entropy_loss")

    def backward(self) -> None:
        """One micro-batch backward."""
        rank, unit = self.rank, self.config.unit
        length = self.lengths[self.replica, self.backwards]
        self.backwards += 1
        with rank.autograd():
            if self.last:
                rank.kernel(HEAD, unit * 2 * self.config.logit)
            for _ in range(self.layers):
                if self.config.recompute:
                    self.attention(length, backward=False)
                    self.mlp(backward=False)
                self.mlp(backward=True)
                self.attention(length, backward=True)
                if self.backwards == self.config.micro and self.config.overlap and self.dp is not None:
                    self.reduced.append(self.reduce(self.dp, 1, waited=False))
            if self.first:
                rank.kernel(POINTWISE, unit * 0.5, "memory", op="aten::embedding_dense_backward")

    def reduce(self, group: Group, layers: int, *, waited: bool) -> int:
        """The node at which gradients of some layers are summed over the replicas."""
        before = self.config.parameters * layers // self.config.tp
        if not self.config.shared_state:
            return self.rank.collective(group, "allreduce", before, before, "Float", waited=waited)
        after = before // self.meshes.dp_size
        return self.rank.collective(group, "_reduce_scatter_base", before, after, "Float", waited=waited)

    def end(self, world: Group, number: int) -> None:
        """What follows the last backward pass."""
        rank, config = self.rank, self.config
        if self.dp is not None and not config.overlap:
            self.reduce(self.dp, self.layers, waited=True)
        if self.tp is not None and config.sequence:
            rank.collective(self.tp, "allreduce", 8192 * self.layers, 8192 * self.layers, "Float")
        if self.first or self.last:
            tied = config.parameters // config.tp
            rank.collective(self.meshes.embedding[rank.number], "allreduce", tied, tied, "Float")
        rank.kernel(POINTWISE, config.unit * 0.3, "memory", op="aten::norm")
        one_number(rank, world if config.shared_state else self.meshes.model[rank.number])
        rank.item()
        update(rank, config.unit * 1.2)
        if self.dp is not None and config.shared_state:
            whole = config.parameters * self.layers // config.tp
            rank.collective(self.dp, "_allgather_base", whole // self.meshes.dp_size, whole)
        if self.last and self.dp is not None:
            rank.collective(self.dp, "allreduce", 2, 2, "Float")
            rank.item()
