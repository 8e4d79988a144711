"""Groups of different members under one name, as ranks that call `new_group` unlike each other make them.

torch counts the groups that a process makes, and ranks meet under that count. Where one rank makes another group than
its peers, or in another order, ranks meet that are no members of one group, and its first call ends nowhere. Names that
`split_group` gives repeat in a sound job: its groups say so, and a mesh's, in their descriptions.
"""

from typing import Final

from tracekit.analysis.hang.frontier import Group
from tracekit.analysis.hang.remedies import NEW_GROUPS
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene
from tracekit.text import ranges
from tracekit.thresholds.hang import NAMED_A_SIDE

_REPEATED: Final = ("mesh_", "split")
"""Parts of the descriptions of groups with names that may repeat."""


def shared_name(scene: Scene, _known: Found) -> Found:
    """Give no culprit, but the groups of one name and of different members that explain a first call without an end.

    Looks for: waiting members of a group that has finished no call and shares its name and description with another.
    Excuses: all members of these groups, since the dumps do not show which rank called `new_group` wrongly.
    Returns: a doubt that names the groups, and their ranks as candidates.
    """
    for number in sorted({call.group for call in scene.graph.pending}):
        group = scene.groups[number]
        alike = [g for g in scene.groups if (g.name, g.desc) == (group.name, group.desc)]
        begun = any(frontier.completed > 0 for frontier in group.frontiers.values())
        repeated = any(part in group.desc for part in _REPEATED) or not group.name.isdecimal()
        if len(alike) > 1 and not (begun or repeated or any(g.guessed for g in alike)):
            ranks = frozenset(rank for g in alike for rank in g.frontiers)
            members = frozenset(rank for g in alike for rank in g.ranks)
            return Found(excused=members, doubts=(_doubt(group, alike),), candidates=ranks, decide=NEW_GROUPS)
    return Found()


def _doubt(group: Group, alike: list[Group]) -> str:
    views = [f"{ranges(g.ranks)} on {_ranks(g)}" for g in alike[:NAMED_A_SIDE]]
    more = len(alike) - len(views)
    return (
        f"the name {group.name} belongs to groups with different members ({'; '.join(views)}"
        f"{f'; {more} more' if more else ''}): these ranks made different new_group calls, and the first call of "
        f"ranks {ranges(group.ranks)} cannot end"
    )


def _ranks(group: Group) -> str:
    return ("rank " if len(group.frontiers) == 1 else "ranks ") + ranges(sorted(group.frontiers))
