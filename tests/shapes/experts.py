"""A mixture of experts: tokens go to their experts and back by all-to-all, in uneven numbers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.shapes.calls import Group
from tests.shapes.job import Job
from tests.shapes.layers import (
    GEMM,
    GEMM_OUT,
    LOSS,
    POINTWISE,
    attention,
    head_and_loss,
    load,
    logged,
    pause,
    scale,
    update,
)
from tests.shapes.rank import Rank

Tokens = dict[tuple[int, int, int], list[float]]
"""By block of experts, layer and micro-batch, each expert's tokens beside an even share."""
HOT = 1.5
"""What an expert gets that is hot throughout."""


@dataclass(frozen=True)
class Experts:
    """`ep` experts to a block; `uneven` is how far an expert's tokens are off an even share."""

    ep: int
    layers: int
    unit: float
    activations: int
    parameters: int
    micro: int
    uneven: float
    hot: int | None = None

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        world, ep = job.setting.world, self.ep
        block = job.split(
            "EXPERT_MODEL_PARALLEL_GROUP", [range(first, first + ep) for first in range(0, world, ep)]
        )
        replicas = job.split("EXPERT_DATA_PARALLEL_GROUP", [range(place, world, ep) for place in range(ep)])
        drawn = random.Random(job.setting.seed + 9)
        loads = self.loads(drawn)
        for number in steps:
            tokens = {
                (b, place, micro): [loads[place, e] * drawn.uniform(0.95, 1.05) for e in range(ep)]
                for b in range(world // ep)
                for place in range(self.layers)
                for micro in range(self.micro)
            }
            for rank in job.ranks:
                groups = (block[rank.number], job.world, replicas.get(rank.number))
                with rank.step(number):
                    self.member(rank, groups, tokens).work()
                    rank.kernel(POINTWISE, self.unit * 0.3, "memory", op="aten::norm")
                    logged(rank, job.world, 1, number)
                    update(rank, self.unit * 1.5)

    def member(self, rank: Rank, groups: tuple[Group, Group, Group | None], tokens: Tokens) -> "Expert":
        """One rank in one step."""
        return Expert(self, rank, groups, tokens)

    def loads(self, drawn: random.Random) -> dict[tuple[int, int], float]:
        """By layer and expert, its tokens beside an even share."""
        loads = {
            (place, expert): drawn.uniform(1 - self.uneven, 1 + self.uneven)
            for place in range(self.layers)
            for expert in range(self.ep)
        }
        if self.hot is not None:
            loads |= {(place, self.hot): HOT for place in range(self.layers)}
        return loads


class Expert:
    """One rank in one step."""

    def __init__(
        self, config: Experts, rank: Rank, groups: tuple[Group, Group, Group | None], tokens: Tokens
    ) -> None:
        self.config, self.rank, self.tokens = config, rank, tokens
        self.block, self.world, self.replicas = groups

    def work(self) -> None:
        """All micro-batches; the last one reduces."""
        rank, config = self.rank, self.config
        for micro in range(config.micro):
            load(rank)
            pause(rank)
            for place in range(config.layers):
                attention(rank, config.unit)
                self.route()
                self.experts(place, micro, backward=False)
            head_and_loss(rank, config.unit * 1.5, config.unit * 0.3)
            reduced: list[int] = []
            with rank.autograd():
                for place in reversed(range(config.layers)):
                    self.experts(place, micro, backward=True)
                    attention(rank, config.unit, backward=True)
                    if micro == config.micro - 1:
                        reduced += self.reduce()
                rank.wait(*reduced)

    def route(self) -> None:
        """Choose experts and tell everybody how many tokens come."""
        rank, ep = self.rank, self.config.ep
        rank.kernel(LOSS, self.config.unit * 0.1, "memory", op="aten::topk")
        rank.collective(self.block, "_allgather_base", ep * 4, ep * ep * 4, "Long")
        rank.item()

    def experts(self, place: int, micro: int, *, backward: bool) -> None:
        """Send tokens, work on those that came, send them back."""
        rank, config = self.rank, self.config
        shares = self.tokens[rank.number // config.ep, place, micro]
        work = config.unit * scale(backward=backward)
        share = shares[rank.number % config.ep]
        mine, came = config.activations, int(config.activations * share)
        moved = int(config.activations * 2 * max(shares))
        own, others = (str([size // config.ep] * config.ep) for size in (mine, came))
        rank.collective(self.block, "all_to_allv", mine, came, moved=moved, splits=(own, others))
        rank.kernel(GEMM, work * 1.1 * share)
        rank.kernel(POINTWISE, work * 0.2 * share, "memory")
        rank.kernel(GEMM_OUT, work * 0.9 * share)
        rank.collective(self.block, "all_to_allv", came, mine, moved=moved, splits=(others, own))

    def reduce(self) -> list[int]:
        """Nodes at which gradients of a layer are summed: attention's over all ranks, experts' over replicas."""
        size = self.config.parameters
        left = [self.rank.collective(self.world, "allreduce", size, size, "Float", waited=False)]
        if self.replicas is not None:
            left.append(
                self.rank.collective(self.replicas, "allreduce", 2 * size, 2 * size, "Float", waited=False)
            )
        return left
