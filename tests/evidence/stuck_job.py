"""What each rank of a stuck job knows, taken from dumps of a known culprit: the source of all channels.

`states(folder)` reads the pickles as the recorder wrote them, without the program's reader.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.plain_pickle import loads_plain

OPERATIONS = {
    "all_reduce": "ALLREDUCE",
    "_all_gather_base": "_ALLGATHER_BASE",
    "all_gather_into_tensor": "_ALLGATHER_BASE",
    "all_gather": "ALLGATHER",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
    "reduce_scatter_tensor": "_REDUCE_SCATTER_BASE",
    "reduce_scatter": "REDUCE_SCATTER",
    "all_to_all": "ALLTOALL_BASE",
    "barrier": "ALLREDUCE",
}
"""Names of operations in watchdog lines."""


@dataclass
class Call:
    """The oldest unfinished call of a group."""

    seq: int
    op: str
    given: int
    taken: int
    message: bool
    created: int
    frames: list[dict[str, Any]]


@dataclass
class GroupState:
    """One rank's view of one group."""

    name: str
    desc: str
    ranks: list[int]
    local: int
    place: int
    enqueued: int
    completed: int
    open: Call | None = None
    counts: dict[str, int] = field(default_factory=dict)
    started: int = 0
    """The last collective that the device began, where start times are recorded."""
    ops: dict[int, str] = field(default_factory=dict)
    """Names of its collectives by number."""


@dataclass
class RankState:
    """One rank: its groups, and where its host stands."""

    rank: int
    groups: list[GroupState]
    alive: bool = True
    talks: bool = True  # its watchdog answers the dump signal
    frames: list[dict[str, Any]] = field(default_factory=list)

    @property
    def open_groups(self) -> list[GroupState]:
        """The groups with an unfinished call, the one that has waited longest first."""
        open_ = [group for group in self.groups if group.open is not None]
        return sorted(open_, key=lambda g: g.open.created if g.open else 0)


def elements(sizes: Any) -> int:
    """How many elements the tensors of a call have."""
    total = 0
    for shape in sizes or []:
        product = 1
        for n in shape:
            product *= n
        total += product
    return total


def states(folder: Path) -> dict[int, RankState]:
    """By rank what a folder of dumps tells; a rank without a dump is there as a dead one, without groups."""
    found: dict[int, RankState] = {}
    world = 0
    for path in sorted(folder.iterdir()):
        dump = loads_plain(path.read_bytes())
        rank = int(path.name.rpartition("_")[2])
        found[rank] = _state(rank, dump)
        world = max(world, *(max(g.ranks) + 1 for g in found[rank].groups))
    for rank in range(world):
        found.setdefault(rank, RankState(rank, [], alive=False, talks=False))
    return dict(sorted(found.items()))


def _state(rank: int, dump: dict[str, Any]) -> RankState:
    groups: dict[str, GroupState] = {}
    for local, (name, config) in enumerate(dump["pg_config"].items()):
        ranks = json.loads(config["ranks"])
        status = dump.get("pg_status", {}).get(str(local), {})
        enqueued = status.get("last_enqueued_collective", -1)
        completed = status.get("last_completed_collective", -1)
        groups[name] = GroupState(name, config["desc"], ranks, local, ranks.index(rank), enqueued, completed)
    last: dict[str, Any] = {}
    for entry in dump["entries"]:
        last = entry
        group = groups[entry["process_group"][0]]
        message = entry["is_p2p"]
        seq = entry["p2p_seq_id"] if message else entry["collective_seq_id"]
        op = entry["profiling_name"].partition(":")[2]
        if not message:
            kind = {"_all_gather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter"}.get(
                op, "AllReduce"
            )
            group.counts[kind] = group.counts.get(kind, 0) + 1
            group.ops[seq] = OPERATIONS.get(op, op.upper())
            if entry["state"] != "scheduled":
                group.started = max(group.started, seq)
        if not entry["retired"] and group.open is None:
            sizes = elements(entry["input_sizes"]), elements(entry["output_sizes"])
            name = op.split()[0].upper() if message else OPERATIONS.get(op, op.upper())
            group.open = Call(seq, name, *sizes, message, entry["time_created_ns"], entry["frames"])
    return RankState(rank, list(groups.values()), frames=last.get("frames", []))
