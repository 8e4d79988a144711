"""FSDP1: each unit's parameters lie flat and are gathered on a stream of their own, two units at a time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.job import Job
from tests.shapes.layers import POINTWISE, head_and_loss, layer, load, logged, one_number, pause, update
from tests.shapes.rank import COMPUTE, Rank

UNSHARD, POST = "unshard", "post backward"
"""Streams beside compute."""
IN_FLIGHT = 2
"""Units whose whole parameters the rate limiter allows at once."""
WORDS = "FullyShardedDataParallel."


@dataclass(frozen=True)
class Flat:
    """`unit` is a layer's work in µs, `parameters` are those of a layer.

    `ahead` gathers the next unit before a forward one works, `limited` is the rate limiter, `no_sync` accumulates whole
    gradients and reduces them after the last micro-batch alone.
    """

    layers: int
    unit: float
    parameters: int
    micro: int
    ahead: bool = False
    limited: bool = True
    no_sync: bool = False
    recompute: bool = False
    clip_read: bool = False
    log: int = 1

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    told = Wrapped(self, job, rank)
                    for micro in range(self.micro):
                        told.forward()
                        told.backward(reduces=not self.no_sync or micro == self.micro - 1)
                    told.end(number)


class Wrapped:
    """One rank in one step."""

    def __init__(self, config: Flat, job: Job, rank: Rank) -> None:
        self.config, self.job, self.rank = config, job, rank
        self.freed: deque[int] = deque()
        self.whole: dict[int, int] = {}

    def unshard(self, place: int) -> None:
        """Gather a unit unless it is whole or on its way; the host waits while two others are."""
        rank = self.rank
        if place in self.whole or not 0 <= place < self.config.layers:
            return
        with rank.span(WORDS + "rate_limiter"):
            if self.config.limited and len(self.freed) >= IN_FLIGHT:
                rank.block("cudaEventSynchronize", [self.freed.popleft()])
        rank.kernel(POINTWISE, 5, "memory", stream=UNSHARD, op="aten::_to_copy")
        size = self.config.parameters
        cut = size // self.job.setting.world
        self.whole[place] = rank.collective(self.job.world, "_allgather_base", cut, size, caller=UNSHARD)

    def use(self, place: int) -> None:
        """Let compute wait for a unit."""
        self.unshard(place)
        self.rank.wait(self.whole[place])

    def reshard(self, place: int) -> None:
        """Free a unit's parameters once compute is done with them."""
        self.whole.pop(place)
        self.freed.append(self.rank.tails[COMPUTE])

    def forward(self) -> None:
        """One micro-batch forward."""
        rank, config = self.rank, self.config
        load(rank)
        pause(rank)
        with rank.span(WORDS + "forward"):
            rank.wait_stream(UNSHARD, COMPUTE)
            for place in range(config.layers):
                with rank.span(WORDS + "_pre_forward"):
                    rank.host(30)
                    self.use(place)
                if config.ahead:
                    self.unshard(place + 1)
                layer(rank, config.unit)
                with rank.span(WORDS + "_post_forward"):
                    self.reshard(place)
        head_and_loss(rank, config.unit * 1.5, config.unit * 0.4)

    def backward(self, *, reduces: bool) -> None:
        """One micro-batch backward, each unit gathered while the one above it works."""
        rank, config = self.rank, self.config
        with rank.autograd():
            for place in reversed(range(config.layers)):
                with rank.span(WORDS + "_pre_backward_hook"):
                    self.use(place)
                with rank.span(WORDS + "_pre_backward_prefetch"):
                    self.unshard(place - 1)
                if config.recompute:
                    layer(rank, config.unit)
                layer(rank, config.unit, backward=True)
                with rank.span(WORDS + "_post_backward_hook"):
                    self.post_backward(place, reduces=reduces)
            rank.wait_stream(COMPUTE, POST)

    def post_backward(self, place: int, *, reduces: bool) -> None:
        """Free a unit and sum its gradients, or keep them whole."""
        rank, size = self.rank, self.config.parameters
        rank.host(20)
        self.reshard(place)
        if not reduces:
            rank.kernel(POINTWISE, 25, "memory", op="aten::add_")
            return
        rank.wait_stream(POST, COMPUTE)
        rank.kernel(POINTWISE, 7, "memory", stream=POST, op="aten::div_")
        cut = size // self.job.setting.world
        rank.collective(self.job.world, "_reduce_scatter_base", size, cut, caller=POST)
        rank.kernel(POINTWISE, 6, "memory", stream=POST, op="aten::_to_copy")

    def end(self, number: int) -> None:
        """What follows the backward pass."""
        rank, config = self.rank, self.config
        rank.kernel(POINTWISE, config.unit * 0.3, "memory", op="aten::linalg_vector_norm")
        one_number(rank, self.job.world)
        if config.clip_read:
            rank.item()
        update(rank, config.unit * 1.5)
        logged(rank, self.job.world, config.log, number)
