"""What one rank's rows say of a communication call, as one version of torch writes it: arguments, title, inputs."""

import json
import zlib
from typing import Any, Final

from reftrain.config.trace_forms import TraceForm, title_of
from reftrain.simulate.grid import Grid, Group
from reftrain.simulate.program import Kind, Op

LIST_LIMIT: Final = 30  # members of a group that Kineto lists
BATCH: Final = "batch_op_issue"
"""Name of a batch of messages in the backend of torch 2.15."""
_COMMS_ID_BASE: Final = 1 << 63  # ids are unsigned: half of them exceed a signed number of 64 bits


def arguments_text(
    form: TraceForm, op: Op, group: Group, grid: Grid, rank: int, *, host: bool, batch: bool = False
) -> str:
    """The arguments that `form` writes, each behind a comma, without `Seq`; empty where it writes none.

    host: the row is the host's record, which has the group's start and stride besides, to make up for lists that are
    cut. batch: the call is the batch that the message is issued in.
    """
    values = form.shown(call_values(op, group, grid, rank), host=host)
    if batch:
        values["Collective name"] = BATCH
    return "".join(f",{json.dumps({k: v}, separators=(',', ':'))[1:-1]}" for k, v in values.items()).replace(
        "%", "%%"
    )


def title_text(op: Op, group: Group, grid: Grid, rank: int) -> str:
    """The title of a message, with the ranks of both ends in the group; of a collective, none."""
    return title_of(call_values(op, group, grid, rank), group.ranks.index(rank)) or ""


def inputs_text(op: Op, group: Group, grid: Grid, rank: int) -> str:
    """What `record_shapes` adds to the call of a message: tensors, group, peer in the group and tag."""
    return f',"Concrete Inputs":["","","{group.ranks.index(_peer(op, grid, rank))}","0"]'


def call_values(op: Op, group: Group, grid: Grid, rank: int) -> dict[str, Any]:
    """All arguments that any version of torch writes of a call, but for `Seq`."""
    members = group.ranks
    size = len(members)
    listed = ", ".join(map(str, members[:LIST_LIMIT])) + (", ..." if size > LIST_LIMIT else "")
    values: dict[str, Any] = {
        "Collective name": op.label,
        "In msg nelems": op.nelems[0],
        "Out msg nelems": op.nelems[1],
        "Group size": size,
        "dtype": op.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.desc,
        "Process Group Ranks": f"[{listed}]",
        "Comms Id": _COMMS_ID_BASE + zlib.crc32(f"{group.name} {members[0]} {size}".encode()),
        "Rank": members.index(rank),
        "Global rank start": members[0],
    }
    if group.stride:
        values["Global rank stride"] = group.stride
    if op.kind in {Kind.SEND, Kind.RECV}:
        peer = _peer(op, grid, rank)
        values["Rank"] = members.index(peer)
        values["Dst Rank" if op.kind is Kind.SEND else "Src Rank"] = peer
    return values


def _peer(op: Op, grid: Grid, rank: int) -> int:
    """The global rank at the other end of a message."""
    return rank + (op.peer - grid.coords(rank)["pp"]) * grid.strides["pp"]
