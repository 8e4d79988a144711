"""DeepSpeed's ZeRO: stage 3 gathers each layer ahead, stage 1 reduces gradients and gathers the updated parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.job import Job
from tests.shapes.layers import POINTWISE, head_and_loss, layer, load, logged, pause, update
from tests.shapes.rank import COMPUTE, Rank

GATHER, REDUCE = "gather", "reduce"
"""Streams beside compute."""
NORM_OP = "aten::norm"


@dataclass(frozen=True)
class Stage3:
    """Parameters are cut over all ranks; `unit` is a layer's work in µs, `parameters` are those of a layer."""

    layers: int
    unit: float
    parameters: int
    micro: int
    recompute: bool = False

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    for _ in range(self.micro):
                        self.micro_batch(job, rank)
                    rank.sync("cudaStreamSynchronize")
                    rank.kernel(POINTWISE, self.unit * 0.3, "memory", op=NORM_OP)
                    logged(rank, job.world, 1, number)
                    logged(rank, job.world, 1, number)
                    update(rank, self.unit * 2)

    def fetch(self, job: Job, rank: Rank, place: int, ahead: dict[int, int]) -> None:
        """Gather a layer unless it is on its way."""
        if 0 <= place < self.layers and place not in ahead:
            rank.host(40)
            cut = self.parameters // job.setting.world
            ahead[place] = rank.collective(
                job.world, "_allgather_base", cut, self.parameters, waited=False, caller=GATHER
            )

    def micro_batch(self, job: Job, rank: Rank) -> None:
        """Forward and backward of one micro-batch."""
        load(rank)
        pause(rank)
        ahead: dict[int, int] = {}
        with rank.span("DeepSpeedEngine.forward"):
            for place in range(self.layers):
                self.fetched(job, rank, place, place + 1, ahead)
                layer(rank, self.unit)
                rank.wait_stream(GATHER, COMPUTE)
        head_and_loss(rank, self.unit * 1.5, self.unit * 0.4)
        with rank.autograd():
            ahead.clear()
            for place in reversed(range(self.layers)):
                self.fetched(job, rank, place, place - 1, ahead)
                self.backward(job, rank)
            rank.wait_stream(COMPUTE, REDUCE)

    def fetched(self, job: Job, rank: Rank, place: int, following: int, ahead: dict[int, int]) -> None:
        """Gather this layer and the next, and wait for this one."""
        self.fetch(job, rank, place, ahead)
        self.fetch(job, rank, following, ahead)
        rank.host(60)
        rank.wait(ahead.pop(place))

    def backward(self, job: Job, rank: Rank) -> None:
        """One layer backward, its gradients reduced to their owners."""
        if self.recompute:
            layer(rank, self.unit)
        layer(rank, self.unit, backward=True)
        rank.wait_stream(GATHER, COMPUTE)
        rank.wait_stream(REDUCE, COMPUTE)
        rank.kernel(POINTWISE, 8, "memory", stream=REDUCE, op="aten::cat")
        cut = self.parameters // job.setting.world
        rank.collective(job.world, "_reduce_scatter_base", self.parameters, cut, caller=REDUCE)
        rank.kernel(POINTWISE, 5, "memory", stream=REDUCE, op="aten::copy_")


@dataclass(frozen=True)
class Small(Stage3):
    """Stage 3 of a layer in `pieces`, each gathered by a call of its own, with what Python does around it."""

    pieces: int = 9

    def fetch(self, job: Job, rank: Rank, place: int, ahead: dict[int, int]) -> None:
        """Gather a layer's pieces unless they are on their way."""
        if 0 <= place < self.layers and place not in ahead:
            cut = self.parameters // self.pieces // job.setting.world
            whole = cut * job.setting.world
            with rank.span("DeepSpeedZeRoOffload.fetch_sub_module"):
                for _ in range(self.pieces):
                    rank.host(35)
                    ahead[place] = rank.collective(
                        job.world, "_allgather_base", cut, whole, waited=False, caller=GATHER
                    )


@dataclass(frozen=True)
class Stage1:
    """The optimizer's state is cut over all ranks."""

    layers: int
    unit: float
    parameters: int
    micro: int
    read_each: bool = False

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        total = self.parameters * self.layers
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    for micro in range(self.micro):
                        self.micro_batch(job, rank, last=micro == self.micro - 1)
                    rank.kernel(POINTWISE, self.unit * 0.3, "memory", op=NORM_OP)
                    logged(rank, job.world, 1, number)
                    update(rank, self.unit * 1.0)
                    for _ in range(2):
                        rank.collective(
                            job.world, "_allgather_base", total // job.setting.world // 2, total // 2
                        )

    def micro_batch(self, job: Job, rank: Rank, *, last: bool) -> None:
        """Forward and backward of one micro-batch; the last one reduces two layers at a time."""
        load(rank)
        pause(rank)
        for _ in range(self.layers):
            layer(rank, self.unit)
        head_and_loss(rank, self.unit * 1.5, self.unit * 0.4)
        with rank.autograd():
            for place in range(self.layers):
                layer(rank, self.unit, backward=True)
                if last and place % 2 == 1:
                    rank.wait_stream(REDUCE, COMPUTE)
                    size = 2 * self.parameters
                    rank.collective(job.world, "allreduce", size, size, caller=REDUCE)
                    rank.kernel(POINTWISE, 8, "memory", stream=REDUCE, op="aten::div_")
            rank.wait_stream(COMPUTE, REDUCE)
        if self.read_each:
            rank.item()
