"""Who the other end of a point-to-point operation is, by the best evidence that the recording holds.

`Src Rank` and `Dst Rank` are global ranks. `Rank` is the peer's rank in the group, as are both numbers in the titles
`nccl:send 0->1` and `nccl:recv 0<-1`, of which the first is one's own. In a group of two the peer is the other one.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.store import Group
from tracekit.tables.event_columns import Values, ints, matches
from tracekit.tables.host_events import Enclosing, Host
from tracekit.tables.intervals import I64
from tracekit.tables.kernel_records import Joined
from tracekit.tables.operation_names import MESSAGES, directed

TITLE = re.compile(r"^nccl:(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
PAIR: Final = 2


class Title(NamedTuple):
    """What the title of a message says: its direction, and the ranks in the group."""

    op: str
    own: int
    peer: int


class Peers:
    """Finds the peers of one rank's messages. `groups` are the process groups of the run, by number."""

    def __init__(
        self, rank: int, events: pa.Table, cat: Values, host: Host, rows: I64, groups: Sequence[Group]
    ) -> None:
        self.rank, self._rows = rank, rows
        self._members = {g.group: g.ranks for g in groups}
        self._src, self._dst = ints(events, "src_rank", -1), ints(events, "dst_rank", -1)
        self._local = ints(events, "group_rank", -1)
        self._group, self._size = ints(events, "group", -1), ints(events, "group_size", -1)
        self._titles = matches(events, "name", lambda v: _title(v or ""))
        titled = np.flatnonzero(self._titles != None)  # noqa: E711
        on_device = np.isin(cat[titled], ["gpu_user_annotation"])
        self._on_host = Enclosing(host, titled[~on_device])
        self._on_device = Enclosing(host, titled[on_device])

    def of(self, joined: Joined, entry: int, op: str) -> tuple[str, int, int, int]:
        """(op, source, destination, group) of an operation; -1 where unknown, `send_recv` where a peer is.

        The group is an index into Run.groups.
        """
        args, record = int(joined.args[entry]), int(joined.host[entry])
        evidence = [args, record] if record >= 0 else [args]
        title = self._title_of(joined, entry)
        op = title.op if title and op == "send_recv" else op
        for row in evidence:
            src, dst = int(self._src[row]), int(self._dst[row])
            named = directed(op, src, dst, self.rank)
            if named in MESSAGES:
                ends = (self.rank, dst) if named == "send" else (src, self.rank)
                return named, *ends, int(self._group[args])
        if op not in MESSAGES:
            return op, -1, -1, int(self._group[args])
        group = next((int(self._group[r]) for r in evidence if self._group[r] >= 0), -1)
        if group < 0 and title:
            group = self._of_size(max(int(self._size[r]) for r in evidence), title.own)
        members = self._members.get(group, ())
        local = [int(self._local[r]) for r in evidence if self._local[r] >= 0]
        if title and members[title.own : title.own + 1] == (self.rank,):
            local.append(title.peer)
        found = [members[n] for n in local if n < len(members)]
        found += [m for m in members if len(members) == PAIR]
        peer = next((p for p in found if p not in {-1, self.rank}), -1)
        if peer < 0:
            return "send_recv", -1, -1, group
        return (op, self.rank, peer, group) if op == "send" else (op, peer, self.rank, group)

    def _title_of(self, joined: Joined, entry: int) -> Title | None:
        """The title around or inside the operation's record, around its launch, or around its kernel."""
        record, launch = int(joined.host[entry]), int(joined.launch[entry])
        kernel = int(self._rows[joined.kernel[entry]])
        row = self._on_host.within(record) if record >= 0 else -1
        row = self._on_host.around(record) if row < 0 <= record else row
        row = self._on_host.around(launch) if row < 0 <= launch else row
        row = self._on_device.around(kernel) if row < 0 else row
        found: Title | None = self._titles[row] if row >= 0 else None
        return found

    def _of_size(self, size: int, own: int) -> int:
        """The one group of `size` members in which the rank stands at place `own`; -1 where several or none fit."""
        fits = [g for g, m in self._members.items() if len(m) == size and m[own : own + 1] == (self.rank,)]
        return fits[0] if len(fits) == 1 else -1


def _title(name: str) -> Title | None:
    found = TITLE.match(name)
    return Title(found[1], int(found[2]), int(found[3])) if found else None
