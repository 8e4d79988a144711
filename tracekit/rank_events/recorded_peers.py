"""Finds the other end of a point-to-point operation, by the best evidence that the recording holds.

`Src Rank` and `Dst Rank` are global ranks. `Rank` is the peer's rank in the group, as are both numbers in the titles
`nccl:send 0->1` and `nccl:recv 0<-1` (the rank's own comes first), and the peer among the inputs of `c10d::send`
and `c10d::recv_`. In a group of two the peer is the other one.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.axes import PIPELINE
from tracekit.mesh.group_descriptions import hinted_dims
from tracekit.rank_events.event_columns import Values, filled, holds, ints, matches
from tracekit.rank_events.host_events import Enclosing, Host
from tracekit.rank_events.kernel_records import Joined
from tracekit.rank_events.operation_names import CALL_OPS, MESSAGES, WAYS, directed
from tracekit.store import Group
from tracekit.units import I64

TITLE = re.compile(r"^nccl:(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
PAIR: Final = 2


class Title(NamedTuple):
    """What the title of a message records: its direction, and both group ranks."""

    op: str
    own: int
    peer: int


class Ends(NamedTuple):
    """The known kind of an operation, its ends (global ranks, -1 unknown), group and direction.

    A message with an unknown peer is a `send_recv` without ends; its direction may be known all the same.
    """

    op: str
    src: int
    dst: int
    group: int  # index into Run.groups, -1 unknown
    way: int = 0  # SENDS, RECEIVES, or 0 unknown
    place: int = -1  # the peer's group rank in an unnamed group, -1 unknown
    own: int = -1  # the rank's own group rank there


class Peers:
    """Finds the peers of one rank's messages. `groups` are the process groups of the run, by number."""

    def __init__(
        self, rank: int, events: pa.Table, cat: Values, host: Host, rows: I64, groups: Sequence[Group]
    ) -> None:
        self.rank, self._rows = rank, rows
        self._members = {g.group: g.ranks for g in groups}
        self._piped = {g.group for g in groups if PIPELINE in hinted_dims(g.descs)}
        self._src, self._dst = ints(events, "src_rank", -1), ints(events, "dst_rank", -1)
        self._local = ints(events, "group_rank", -1)
        self._group, self._size = ints(events, "group", -1), ints(events, "group_size", -1)
        self._titles = matches(events, "name", _title)
        titled = np.flatnonzero(filled(events, "name", _title))
        on_device = np.isin(cat[titled], ["gpu_user_annotation"])
        self._inputs = ints(events, "input_peer", -1)
        self._call = matches(events, "name", lambda v: CALL_OPS.get(v or ""))
        self._calls = Enclosing(host, np.flatnonzero(holds(events, "name", lambda v: CALL_OPS.get(v or ""))))
        self._on_host = Enclosing(host, titled[~on_device])
        self._on_device = Enclosing(host, titled[on_device])

    def of(self, joined: Joined, entry: int, op: str) -> Ends:
        """Return the ends of an operation; `op` is its kind by its arguments or its kernel's name."""
        args, record = int(joined.args[entry]), int(joined.host[entry])
        kernel = int(self._rows[joined.kernel[entry]])
        evidence = [args, record, kernel] if record >= 0 else [args, kernel]
        title = self._title_of(joined, entry)
        call = self._call_of(joined, entry)
        if op == "send_recv":
            op = title.op if title else self._call[call] if call >= 0 else op
        for row in evidence:
            src, dst = int(self._src[row]), int(self._dst[row])
            named = directed(op, src, dst, self.rank)
            if named in MESSAGES:
                ends = (self.rank, dst) if named == "send" else (src, self.rank)
                return Ends(named, *ends, int(self._group[args]), WAYS[named])
        if op not in MESSAGES:
            return Ends(op, -1, -1, int(self._group[args]))
        group = next((int(self._group[r]) for r in evidence if self._group[r] >= 0), -1)
        if group < 0 and title:
            group = self._of_size(max(int(self._size[r]) for r in evidence), title.own)
        members = self._members.get(group, ())
        local = [int(self._local[r]) for r in evidence if self._local[r] >= 0]
        if title and members[title.own : title.own + 1] == (self.rank,):
            local.append(title.peer)
        if call >= 0 and self._inputs[call] >= 0:
            local.append(int(self._inputs[call]))
        found = [members[n] for n in local if n < len(members)]
        found += [m for m in members if len(members) == PAIR]
        peer = next((p for p in found if p not in {-1, self.rank}), -1)
        if peer < 0:
            place = next(iter([title.peer] if title else local), -1) if group < 0 else -1
            own = title.own if title and group < 0 else -1
            return Ends("send_recv", -1, -1, group, WAYS[op], place, own)
        ends = (self.rank, peer) if op == "send" else (peer, self.rank)
        return Ends(op, *ends, group, WAYS[op])

    def called(self, joined: Joined, entry: int) -> str | None:
        """Return `send` or `recv` where a call of that name encloses the operation's record; else None."""
        call = self._call_of(joined, entry) if int(joined.host[entry]) >= 0 else -1
        return str(self._call[call]) if call >= 0 else None

    def _title_of(self, joined: Joined, entry: int) -> Title | None:
        """Return the title around or inside the operation's record, around its launch, or around its kernel."""
        record, launch = int(joined.host[entry]), int(joined.launch[entry])
        kernel = int(self._rows[joined.kernel[entry]])
        row = self._on_host.within(record) if record >= 0 else -1
        row = self._on_host.around(record) if row < 0 <= record else row
        row = self._on_host.around(launch) if row < 0 <= launch else row
        row = self._on_device.around(kernel) if row < 0 else row
        found: Title | None = self._titles[row] if row >= 0 else None
        return found

    def _call_of(self, joined: Joined, entry: int) -> int:
        """Return the row of the call around the operation's record, else around its launch; -1 without one."""
        record, launch = int(joined.host[entry]), int(joined.launch[entry])
        row = self._calls.around(record) if record >= 0 else -1
        return self._calls.around(launch) if row < 0 <= launch and record < 0 else row

    def _of_size(self, size: int, own: int) -> int:
        """Return the one group of `size` members with the rank at place `own`; -1 if several or none fit.

        Among several, the one that calls itself a pipeline counts.
        """
        fits = [g for g, m in self._members.items() if len(m) == size and m[own : own + 1] == (self.rank,)]
        fits = [g for g in fits if g in self._piped] if len(fits) > 1 else fits
        return fits[0] if len(fits) == 1 else -1


def _title(name: str | None) -> Title | None:
    found = TITLE.match(name or "")
    return Title(found[1], int(found[2]), int(found[3])) if found else None
