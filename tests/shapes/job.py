"""A job: its ranks, its groups, and the graph that their calls make."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.shapes.calls import Group
from tests.shapes.graph import Graph
from tests.shapes.rank import Rank
from tests.shapes.setting import Setting


@dataclass
class Job:
    """Ranks whose programs are told call by call, and then run."""

    setting: Setting
    groups: list[Group] = field(default_factory=list)
    transfers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = Graph(self.setting.world, self.setting.contention)
        self.world = self.group("default_pg", range(self.setting.world))
        shared = random.Random(self.setting.seed * 7919 + 1)
        self.ranks = [
            Rank(self.setting, self.graph, self.transfers, r, shared) for r in range(self.setting.world)
        ]

    def group(self, description: str, ranks: Iterable[int]) -> Group:
        """A new process group."""
        self.groups.append(Group(len(self.groups), description, tuple(ranks)))
        return self.groups[-1]

    def split(self, description: str, members: Sequence[Sequence[int]]) -> dict[int, Group]:
        """By rank, its group of those whose members are listed; groups of one are none."""
        if len(members[0]) == 1:
            return {}
        groups = [self.group(description, ranks) for ranks in members]
        return {rank: group for group in groups for rank in group.ranks}

    def run(self) -> None:
        """End every rank's program and give all nodes their times."""
        for rank in self.ranks:
            rank.sync()
            rank.window_end = rank.last
        self.graph.run()

    def step_us(self, warm: int) -> float:
        """The mean time of a step after the first `warm` ones, by the last rank to finish its update."""
        first, last = (
            max(self.graph.end[rank.updated[place]] for rank in self.ranks) for place in (warm - 1, -1)
        )
        return (last - first) / (len(self.ranks[0].updated) - warm)
