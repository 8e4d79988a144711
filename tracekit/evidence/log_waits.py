"""Lines of a log about ranks that wait outside NCCL's watchdog: rendezvous, store, communicators, Gloo; and warnings.

Used by `logs`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tracekit.evidence.log_lines import Message, When, clean_text, operation, tasks_after
from tracekit.evidence.log_reports import longer_message
from tracekit.thresholds.evidence import MAX_LOG_RANKS, MAX_MARKS, MAX_PREFIX, MAX_SIGNS

_INIT: Final = re.compile(
    rb"(?:(\S{1,200}?):(\d{1,9}):\d{1,9} \[\d{1,3}\] NCCL INFO [^\n]{0,80}?)?rank (\d{1,7}) nranks (\d{1,7})"
    rb"(?:[^\n]{0,200}? commId (0x[0-9a-f]{1,16}))?[^\n]{0,80}? ?- Init (START|COMPLETE)"
)
_UNIQUE_ID: Final = re.compile(
    rb"\[(\d{1,7})\] is setting up NCCL communicator and retr\w{2,3}ving ncclUniqueId from \[(\d{1,7})\]"
)
_BARRIER: Final = re.compile(
    rb"in store based barrier[^\n]{0,90}?rank:? (\d{1,7}), (?:for )?key: store_based_barrier_key:([^\s:]{1,100})"
    rb"(?: \(world_size=(\d{1,7}), \w{1,20}=(\d{1,7}))?"
)
"""A rank that waits or gives up: torch 1.8 to 2.0, then with other words, and without a space or a colon."""
_ADDED: Final = re.compile(
    rb"Added key: store_based_barrier_key:([^\s:]{1,100}) to store for rank: (\d{1,7})"
)
_COMPLETED: Final = re.compile(
    rb"Completed store-based barrier for (?:key:store_based_barrier_key:([^\s:]{1,100}) with )?(\d{1,7}) nodes"
)
_JOINED: Final = re.compile(rb"(\d{1,7})/(\d{1,7}) (?:clients|workers) joined")
_UNREACHED: Final = re.compile(
    rb"has timed out after \S{1,20} while trying to connect to \(([^,()]{1,200}), (\d{1,5})\)"
)
_FAILED: Final = re.compile(rb"Rank(s?) (\d[\d, ]{0,200}) failed to pass monitoredBarrier in (\d{1,12})")
"""All ranks that did not come, or the first in their order: `Ranks` and `Rank`."""
_RAN_OUT: Final = re.compile(rb"Rank \d{1,7} timed out in monitoredBarrier after")
"""The first rank of a barrier, where its time was over before it had asked all others."""
_WRAPPER: Final = b"ProcessGroupWrapper: Monitored Barrier"
"""The barrier that torch's DETAIL mode puts before each call of each group."""
_TASKS: Final = re.compile(rb"[Tt]imed out task names:")
"""JAX's coordinator, of the processes that did not come to a barrier; their names follow, one a line."""
_REACHED: Final = re.compile(rb"Rank (\d{1,7}) successfully reached monitoredBarrier")
"""A rank that came to a monitored barrier and heard nothing more from its first rank."""
_GLOO: Final = re.compile(rb"Timed out waiting (\d{1,12})ms for (send|recv) operation")
_UNNUMBERED: Final = re.compile(
    rb"\[Rank (\d{1,7})\] (?:Watchdog caught|Caught) collective operation timeout: WorkNCCL\(OpType=(\w{1,40}), "
)
"""A call that timed out, as torch 1.9 to 1.12 write it: without a number, by the rank's place in an unnamed group."""
_ENDED: Final = re.compile(rb"Sending process \d{1,9} closing signal SIG")
"""torchrun's agent, of a process that lived when another one had failed."""
_AWAITED: Final = re.compile(rb"for the following ranks to join the \S{1,100} call: \[(\d[\d, ]{0,200})\]")
"""Ray Train's controller, of a barrier of its own, while it still waits."""
_LOST_STORE: Final = re.compile(rb"flag (?:on TCPStore|from the global store)")
"""A rank's watchdog that cannot ask the store for the signal to dump: 2.4 to 2.5, and later."""
_WARN: Final = re.compile(
    rb"(?:(\S{1,200}?):(\d{1,9}):\d{1,9} )?\[\d{1,3}\] (?:\S{1,200} )?NCCL WARN ([^\n]{1,400})"
)
_DATED: Final = re.compile(
    rb"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?"
    rb"(?P<zone>[-+]\d\d:?\d\d)?"
    rb"|(?P<named>[A-Z][a-z]{2}) {1,2}(?P<date>\d{1,2}) (?P<at>\d\d:\d\d:\d\d) (?P<of>\d{4})"
)
"""A time with its year, as `dmesg` and `journalctl` write it."""
_OF_KERNEL: Final = re.compile(rb"(\S{1,100}) kernel: ")
_XID: Final = re.compile(rb"NVRM: Xid \(([^()]{1,60})\): (\d{1,5})([^\n]{0,200})")


@dataclass(frozen=True, slots=True)
class Sign:
    """A warning that supports a cause and names no culprit: NCCL's, or a fault that the kernel reports of a GPU."""

    kind: str
    text: str
    rank: int | None
    host: str | None
    when: When | None
    ms: int = 0  # since 1970, of a line that bears its year; without a zone as if it were UTC; 0 unknown


@dataclass(slots=True)
class StoreBarrier:
    """One barrier of the store: ranks that are known to have reached it, how many must and have, whether it is over.

    joined: the last count that a rank printed; it counts ranks without a line, too.
    """

    reached: set[int] = field(default_factory=set)
    size: int | None = None
    joined: int = 0
    over: bool = False

    def with_lines_of(self, other: "StoreBarrier") -> "StoreBarrier":
        """Return what two logs show of one barrier."""
        return StoreBarrier(
            self.reached | other.reached,
            self.size or other.size,
            max(self.joined, other.joined),
            self.over or other.over,
        )


@dataclass(slots=True)
class Waits:
    """What a log tells of ranks that wait for others to join.

    started, joined: ranks of each communicator (by id) that began and completed its initialisation; sizes: its ranks.
    for_first: ranks that wait for the id that the first rank of their group makes; in_groups: the same of ranks with
    another place in their group. several: sizes that communicators of several processes at one place have. barriers: of
    the store, by key.
    joined_store: (joined, of) clients, the last report. unreached: addresses without an answer.
    failed_barrier: ranks that a monitored barrier names; failed_first: the first such rank of one that names no more;
    reached_barrier: ranks that came to one and got no answer from its first rank; identical: the last place in its
    group that is a rank's own number; in_group: whether places of a barrier are no ranks; wrapped: whether it is one of
    torch's DETAIL mode, of any group; ran_out: whether its first rank had no time to ask all. absent_tasks: processes
    that JAX's coordinator names. awaited: ranks that a controller still waits for. lost_store: ranks that lost the
    connection to the store. in_gloo: ranks whose Gloo call timed out. ended: processes that a launcher ended.
    unnumbered: operations that timed out in lines without a number, by the rank's place in its group. longer: messages
    longer than the buffer
    for them, by the rank that received one (None: unknown), as (bytes came, bytes expected).
    """

    started: dict[str, set[int]] = field(default_factory=dict)
    joined: dict[str, set[int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    for_first: set[int] = field(default_factory=set)
    in_groups: set[int] = field(default_factory=set)
    several: set[int] = field(default_factory=set)
    places: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The first process seen at each place of communicators of a size."""
    barriers: dict[str, StoreBarrier] = field(default_factory=dict)
    joined_store: tuple[int, int] | None = None
    unreached: list[str] = field(default_factory=list)
    unreached_by: set[int] = field(default_factory=set)
    failed_barrier: set[int] = field(default_factory=set)
    failed_first: set[int] = field(default_factory=set)
    reached_barrier: set[int] = field(default_factory=set)
    identical: int = 0
    in_group: bool = False
    wrapped: bool = False
    ran_out: bool = False
    absent_tasks: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    lost_store: set[int] = field(default_factory=set)
    in_gloo: set[int] = field(default_factory=set)
    ended: int = 0
    unnumbered: dict[int, str] = field(default_factory=dict)
    longer: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    signs: list[Sign] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    """Ranks of the widest communicator by process id."""
    widest: int = 0

    def take(self, message: Message) -> bool:
        """Take what one rank's part of a line reports; return whether it reported anything."""
        part = message.text
        rank = message.rank if message.rank is not None else message.task
        if found := _INIT.search(part):
            self._communicator(found)
        elif found := _UNIQUE_ID.search(part):
            place = _bounded(found[1])
            (self.for_first if rank in {None, place} else self.in_groups).add(place if rank is None else rank)
        elif self._barrier(part):
            pass
        elif found := _JOINED.search(part):
            self.joined_store = _bounded(found[1]), _bounded(found[2])
        elif found := _UNREACHED.search(part):
            self.unreached.extend(
                [f"{clean_text(found[1])}:{int(found[2])}"][: MAX_SIGNS - len(self.unreached)]
            )
            self.unreached_by.update([] if rank is None else [rank])
        elif self._monitored(part, rank):
            pass
        elif found := _AWAITED.search(part):
            self.awaited = {_bounded(n) for n in re.findall(rb"\d{1,7}", found[1])}
        elif _ENDED.search(part):
            self.ended += 1
        elif found := _UNNUMBERED.search(part):
            self.unnumbered.setdefault(_bounded(found[1]), operation(clean_text(found[2])))
        elif _LOST_STORE.search(part):
            self.lost_store.update([] if rank is None else [rank])
        elif found := _GLOO.search(part):
            self.in_gloo.update([] if rank is None else [rank])
        elif (lengths := longer_message(part)) is not None:
            self.longer.setdefault(rank, lengths)
        else:
            return self._warning(part, message, rank)
        return True

    def take_tasks(self, text: bytes, after: Sequence[bytes]) -> bool:
        """Take the processes that did not come to a barrier of JAX; return whether the line begins their list."""
        if _TASKS.search(text) is None:
            return False
        self.absent_tasks.update(tasks_after(after))
        return True

    def _monitored(self, part: bytes, rank: int | None) -> bool:
        """Note what one member writes of a monitored barrier, by places in its group; return whether it writes of one.

        rank: the writer, where it is known. Its first member alone writes who did not come.
        """
        if found := _FAILED.search(part):
            absent = {_bounded(n) for n in re.findall(rb"\d{1,7}", found[2])}
            (self.failed_barrier if found[1] else self.failed_first).update(absent)
            self.in_group |= rank is not None and rank > 0
        elif found := _REACHED.search(part):
            place = _bounded(found[1])
            self.reached_barrier.add(place if rank is None else rank)
            self.in_group |= rank is not None and rank != place
            self.identical = max(self.identical, place if rank == place else 0)
        elif _RAN_OUT.search(part):
            self.ran_out = True
        elif _WRAPPER in part:
            self.wrapped = True
        else:
            return False
        return True

    @property
    def store_size(self) -> int | None:
        """Return the ranks of the job by the store's barriers of all ranks: these have a number for a name."""
        return max(
            (one.size for key, one in self.barriers.items() if key.isdigit() and one.size), default=None
        )

    def _barrier(self, part: bytes) -> bool:
        """Note a rank in a barrier of the store, or that a barrier is over; return whether the part holds either."""
        if found := _COMPLETED.search(part):
            for key in [clean_text(found[1])] if found[1] else list(self.barriers):
                self.barriers.setdefault(key, StoreBarrier()).over = True
        elif (found := _BARRIER.search(part)) and len(self.barriers) < MAX_MARKS:
            one = self.barriers.setdefault(clean_text(found[2]), StoreBarrier())
            one.reached.add(_bounded(found[1]))
            one.size = _bounded(found[3]) if found[3] else one.size
            one.joined = max(one.joined, _bounded(found[4] or b"0"))
        elif (found := _ADDED.search(part)) and len(self.barriers) < MAX_MARKS:
            self.barriers.setdefault(clean_text(found[1]), StoreBarrier()).reached.add(_bounded(found[2]))
        else:
            return False
        return True

    def _communicator(self, found: re.Match[bytes]) -> None:
        """Note the initialisation of one communicator by one rank."""
        rank, size, name = _bounded(found[3]), _bounded(found[4]), (found[5] or b"of " + found[4]).decode()
        stage = self.started if found[6] == b"START" else self.joined
        if len(self.sizes) * max(self.widest, 1) < MAX_MARKS or name in self.sizes:
            stage.setdefault(name, set()).add(rank)
            self.sizes[name] = size
        if found[2]:
            process = found[1] + b":" + found[2]
            if len(self.places) < MAX_MARKS and self.places.setdefault((size, rank), process) != process:
                self.several.add(size)
            if size > self.widest:
                self.widest = size
                self.pids.clear()
            if size == self.widest and len(self.pids) < MAX_MARKS:
                self.pids[int(found[2])] = rank

    def _warning(self, part: bytes, message: Message, rank: int | None) -> bool:
        """Note a warning of NCCL or of the kernel."""
        if found := _WARN.search(part):
            sign = Sign("nccl_warn", clean_text(found[3]), rank, _text(found[1]), message.when)
        elif found := _XID.search(part):
            text = f"Xid {int(found[2])} on {clean_text(found[1])}{clean_text(found[3])}"
            host = _OF_KERNEL.search(part[max(found.start() - MAX_PREFIX, 0) : found.start()])
            sign = Sign("xid", text, rank, _text(host and host[1]), message.when, _dated_ms(part))
        else:
            return False
        if len(self.signs) < MAX_SIGNS:
            self.signs.append(sign)
        return True


def _dated_ms(part: bytes) -> int:
    """Return the time of a line of the kernel as dmesg or journalctl write it with its year, ms since 1970; else 0."""
    found = _DATED.search(part[:200])
    if found is None:
        return 0
    named = found["named"] is not None
    keys = ("of", "named", "date", "at") if named else ("year", "month", "day", "time")
    parts = [found[key].decode() for key in keys]
    try:
        text = " ".join([*parts, (found["zone"] or b"+0000").decode()])
        return int(datetime.strptime(text, f"%Y %{'b' if named else 'm'} %d %H:%M:%S %z").timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def _bounded(number: bytes) -> int:
    return min(int(number), MAX_LOG_RANKS)


def _text(found: bytes | None) -> str | None:
    return None if found is None else clean_text(found)
