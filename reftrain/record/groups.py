"""Process groups as the evidence names them: members, description, and the number of each call.

NCCL traces carry a `Seq` that is equal on all members for one collective. Gloo has none, so it is counted
here as NCCL does: per group for collectives, and apart from them per group for messages, so that a rank between
two others counts twice as fast as one at an end.
"""

from dataclasses import dataclass
from typing import TypedDict

import torch.distributed as dist


@dataclass(frozen=True)
class GroupInfo:
    """One process group of this rank. `ranks` are global ranks in group order; `rank` is ours within it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    rank: int
    backend: str

    @property
    def stride(self) -> int:
        """Distance between neighbouring members where it is uniform, else 0 (as NCCL traces have it)."""
        steps = {b - a for a, b in zip(self.ranks, self.ranks[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else 0


class Groups:
    """Looks process groups up, and counts the calls of each."""

    def __init__(self) -> None:
        self._infos: dict[str, GroupInfo] = {}
        self._collectives: dict[str, int] = {}
        self._messages: dict[str, int] = {}

    def info(self, group: dist.ProcessGroup | None) -> GroupInfo:
        """Members and description of `group` (None: the default group)."""
        group = group if group is not None else dist.group.WORLD
        if group is None:
            raise RuntimeError("torch.distributed is not initialised: no default group")
        known = self._infos.get(group.group_name)
        if known is None:
            ranks = tuple(dist.get_process_group_ranks(group))
            known = GroupInfo(
                group.group_name, group.group_desc or "undefined", ranks, group.rank(), group.name()
            )
            self._infos[group.group_name] = known
        return known

    def next_collective(self, group: GroupInfo) -> int:
        """Number of the next collective in `group`, from 1."""
        number = self._collectives.get(group.name, 0) + 1
        self._collectives[group.name] = number
        return number

    def next_message(self, group: GroupInfo) -> int:
        """Number of the next send or receive of this rank in `group`, from 1."""
        number = self._messages.get(group.name, 0) + 1
        self._messages[group.name] = number
        return number


class GroupConfig(TypedDict):
    """A process group as `distributedInfo.pg_config` has it."""

    pg_name: str
    pg_desc: str
    backend_config: str
    pg_size: int
    ranks: list[int]


def pg_config() -> list[GroupConfig]:
    """All process groups this rank knows, as `distributedInfo.pg_config` has them, member lists uncut."""
    world = dist.distributed_c10d._world  # noqa: SLF001 - the only place that lists every group
    rows: list[GroupConfig] = []
    for group, members in world.pg_group_ranks.items():
        if isinstance(group, int):  # stands for the groups that this rank is not a member of
            continue
        ranks = sorted(members, key=members.__getitem__)
        rows.append(
            {
                "pg_name": group.group_name,
                "pg_desc": group.group_desc or "undefined",
                "backend_config": world.pg_backend_config.get(group, ""),
                "pg_size": len(ranks),
                "ranks": ranks,
            }
        )
    return rows
