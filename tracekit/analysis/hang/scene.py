"""The scene of a hang: dumps, groups, wait-for graph and mesh, which every rule looks at together.

A scene is never changed. Where some dumps turn out to be older than their peers', `with_stale` gives another one.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property

from tracekit.analysis.hang.aborted_calls import end_received_messages, undo_aborted_messages
from tracekit.analysis.hang.frontier import Group, Role
from tracekit.analysis.hang.groups import build_groups
from tracekit.analysis.hang.wait_graph import Graph, PendingCall, build_graph
from tracekit.dumps.load import DumpSet
from tracekit.dumps.rank_dump import RankDump
from tracekit.mesh import Mesh
from tracekit.thresholds.hang import MAX_WITNESSES


@dataclass(frozen=True)
class Scene:
    """A job that may hang, as its dumps show it."""

    dumps: Mapping[int, RankDump]
    """Dump of every rank that left one."""
    world: tuple[int, ...]
    """Ranks of the job, sorted."""
    groups: list[Group]
    """Groups of two and more members; a group's number is its place here."""
    graph: Graph
    mesh: Mesh | None = None
    """None where the groups do not determine one."""
    still: bool = False
    """Whether other evidence shows that the job did not move, as a call that timed out does."""

    @property
    def or_moves(self) -> str:
        """The end of a sentence about calls that do not end: the job may move, unless it is known to have stopped."""
        return "" if self.still else ", or the job moves"

    @cached_property
    def places(self) -> dict[int, dict[Role, list[int]]]:
        """Numbers of the groups of every rank with a dump, by role."""
        found: dict[int, dict[Role, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, group in enumerate(self.groups):
            for rank in group.frontiers:
                found[rank][group.role].append(number)
        return {rank: dict(roles) for rank, roles in found.items()}

    @cached_property
    def memberships(self) -> dict[int, list[int]]:
        """Numbers of the groups of every rank, with a dump or without."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            for rank in group.ranks:
                found[rank].append(number)
        return dict(found)

    @cached_property
    def roles(self) -> dict[Role, list[Group]]:
        """Return the groups by role: one role may be that of several replicas, and of several pipeline stages."""
        found: dict[Role, list[Group]] = defaultdict(list)
        for group in self.groups:
            found[group.role].append(group)
        return dict(found)

    @cached_property
    def replicas(self) -> list[list[Group]]:
        """The groups in the same place of all replicas, by number of a group: its members make the same calls as it.

        A group of one pipeline stage has none in another stage, which makes other calls under the same numbers.
        """
        found: dict[object, list[Group]] = defaultdict(list)
        places = [(group.role, self._stage_of(group)) for group in self.groups]
        for place, group in zip(places, self.groups, strict=True):
            found[place].append(group)
        return [found[place] for place in places]

    def _stage_of(self, group: Group) -> object:
        """The stage that all members with a dump share; None where they are of several."""
        stages = {self.stages[rank] for rank in group.frontiers}
        return stages.pop() if len(stages) == 1 and not group.mixed else None

    @cached_property
    def widest(self) -> int:
        """Members of the greatest group; fewer than `world` where no group holds all ranks."""
        return max((len(group.ranks) for group in self.groups), default=0)

    @cached_property
    def stages(self) -> dict[int, tuple[tuple[Role, int], ...]]:
        """The place of every rank with a dump in its groups that send messages, and the roles of its other groups.

        Ranks of one stage run one program; those of another make other calls under the same numbers.
        """
        return {
            rank: tuple(
                sorted(
                    (role, self.groups[number].ranks.index(rank) if self.groups[number].mixed else -1)
                    for role, numbers in roles.items()
                    for number in numbers
                )
            )
            for rank, roles in self.places.items()
        }

    @cached_property
    def idle(self) -> set[int]:
        """Ranks with a dump of the hang itself that have nothing outstanding."""
        return {rank for rank in self.dumps.keys() - self.graph.stale if self.graph.idle(rank)}

    @cached_property
    def shown(self) -> set[int]:
        """Ranks with a ring that shows their calls: an empty one does only if no dump holds a finished call."""
        return {rank for rank, dump in self.dumps.items() if dump.entries or self.outstanding_only}

    @cached_property
    def outstanding_only(self) -> bool:
        """Whether no dump holds a finished call, as where only outstanding ones are written."""
        return not any(dump.finished for dump in self.dumps.values())

    def alike(self, rank: int, number: int) -> list[int]:
        """Return the groups of `rank` that have the same place as group `number`."""
        return self.places.get(rank, {}).get(self.groups[number].role, [])

    def own(self, rank: int, number: int) -> int | None:
        """Give group `number` where `rank` is in it, else its only group in the same place; None without one."""
        alike = self.alike(rank, number)
        return number if number in alike else alike[0] if len(alike) == 1 else None

    def is_narrow(self, group: Group) -> bool:
        """Whether all members run one program: no pipeline's group, and not that of all ranks."""
        return not group.mixed and len(group.ranks) < len(self.world)

    def peers(self, rank: int, wide: int | None = None) -> list[int]:
        """Give ranks that left a dump and run the program of `rank`, those of its smallest groups first.

        They share a group with it that is no pipeline's and has fewer than `wide` members (by default: not all
        ranks). At most MAX_WITNESSES are given.
        """
        wide = len(self.world) if wide is None else wide
        near = [n for alike in self.places.get(rank, {}).values() for n in alike]
        near = [n for n in near if not self.groups[n].mixed and len(self.groups[n].ranks) < wide]
        near.sort(key=lambda n: len(self.groups[n].ranks))
        found = dict.fromkeys(r for n in near for r in sorted(self.groups[n].frontiers) if r != rank)
        return list(found)[:MAX_WITNESSES]

    def pending(self, numbers: set[int] | list[int]) -> list[PendingCall]:
        """Give pending calls by their places in the graph, in the order of `numbers`."""
        return [self.graph.pending[at] for at in numbers]

    def with_stale(
        self, ranks: frozenset[int], issued: Mapping[tuple[int, int], int] | None = None
    ) -> "Scene":
        """Give the scene in which the dumps of `ranks` are old: calls that they lack are unknown, not missing.

        issued: (group, rank) → a call that the rank must have issued, since its peers have done it.
        """
        groups = [_with_stale(group, number, ranks, issued or {}) for number, group in enumerate(self.groups)]
        return changed(self, groups=groups, graph=build_graph(groups, self.dumps, ranks))


def build_scene(dumps: DumpSet) -> Scene:
    """Give the scene that a set of dumps shows, without a mesh."""
    undo_aborted_messages(dumps.dumps)
    end_received_messages(dumps.dumps)
    groups = build_groups(dumps)
    return Scene(dumps.dumps, dumps.world, groups, build_graph(groups, dumps.dumps))


def _with_stale(
    group: Group, number: int, ranks: frozenset[int], issued: Mapping[tuple[int, int], int]
) -> Group:
    old = ranks & group.frontiers.keys()
    if not old:
        return group
    frontiers = dict(group.frontiers)
    for rank in old:
        enqueued = max(frontiers[rank].enqueued, issued.get((number, rank), -1))
        frontiers[rank] = changed(frontiers[rank], stale=True, enqueued=enqueued)
    return changed(group, frontiers=frontiers)
