"""Lines of a log about ranks that wait outside NCCL's watchdog: rendezvous, store, communicators, Gloo; and warnings.

Used by `logs`.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tracekit.evidence.log_lines import Message, When, clean_text
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
    rb"store.based.barrier[^\n]{0,80}? rank: (\d{1,7})(?:[^\n]{0,120}?world_size=(\d{1,7}), \w{1,20}=(\d{1,7}))?"
    rb"|store_based_barrier_key:\d+ to store for rank: (\d{1,7})"
)
_JOINED: Final = re.compile(rb"(\d{1,7})/(\d{1,7}) (?:clients|workers) joined")
_UNREACHED: Final = re.compile(
    rb"has timed out after \S{1,20} while trying to connect to \(([^,()]{1,200}), (\d{1,5})\)"
)
_FAILED: Final = re.compile(rb"Ranks? (\d[\d, ]{0,200}) failed to pass monitoredBarrier in (\d{1,12})")
_GLOO: Final = re.compile(rb"Timed out waiting (\d{1,12})ms for (send|recv) operation")
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
class Waits:
    """What a log tells of ranks that wait for others to join.

    started, joined: ranks of each communicator (by id) that began and completed its initialisation; sizes: its ranks.
    for_first: ranks that wait for the id that the first rank of their group makes. in_store: ranks that wait in the
    store's barrier. joined_store: (joined, of) clients, the last report. unreached: addresses that nobody answers at.
    failed_barrier: ranks that a monitored barrier names. awaited: ranks that a controller still waits for.
    lost_store: ranks that lost the connection to the store. in_gloo: ranks whose Gloo call timed out. longer: messages
    longer than the buffer for them, by the rank that received one (None: unknown), as (bytes came, bytes expected).
    """

    started: dict[str, set[int]] = field(default_factory=dict)
    joined: dict[str, set[int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    for_first: set[int] = field(default_factory=set)
    in_store: set[int] = field(default_factory=set)
    store_size: int | None = None
    joined_store: tuple[int, int] | None = None
    unreached: list[str] = field(default_factory=list)
    unreached_by: set[int] = field(default_factory=set)
    failed_barrier: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    lost_store: set[int] = field(default_factory=set)
    in_gloo: set[int] = field(default_factory=set)
    longer: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    signs: list[Sign] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    """Ranks of the widest communicator by process id."""
    widest: int = 0

    def take(self, message: Message) -> bool:
        """Take what one rank's part of a line tells; return whether it told anything."""
        part = message.text
        rank = message.rank if message.rank is not None else message.task
        if found := _INIT.search(part):
            self._communicator(found)
        elif found := _UNIQUE_ID.search(part):
            self.for_first.add(_bounded(found[1]))
        elif found := _BARRIER.search(part):
            self.in_store.add(_bounded(found[1] or found[4]))
            self.store_size = _bounded(found[2]) if found[2] else self.store_size
        elif found := _JOINED.search(part):
            self.joined_store = _bounded(found[1]), _bounded(found[2])
        elif found := _UNREACHED.search(part):
            self.unreached.extend(
                [f"{clean_text(found[1])}:{int(found[2])}"][: MAX_SIGNS - len(self.unreached)]
            )
            self.unreached_by.update([] if rank is None else [rank])
        elif found := _FAILED.search(part):
            self.failed_barrier.update(_bounded(n) for n in re.findall(rb"\d{1,7}", found[1]))
        elif found := _AWAITED.search(part):
            self.awaited = {_bounded(n) for n in re.findall(rb"\d{1,7}", found[1])}
        elif _LOST_STORE.search(part):
            self.lost_store.update([] if rank is None else [rank])
        elif found := _GLOO.search(part):
            self.in_gloo.update([] if rank is None else [rank])
        elif (lengths := longer_message(part)) is not None:
            self.longer.setdefault(rank, lengths)
        else:
            return self._warning(part, message, rank)
        return True

    def _communicator(self, found: re.Match[bytes]) -> None:
        """Note the initialisation of one communicator by one rank."""
        rank, size, name = _bounded(found[3]), _bounded(found[4]), (found[5] or b"of " + found[4]).decode()
        stage = self.started if found[6] == b"START" else self.joined
        if len(self.sizes) * max(self.widest, 1) < MAX_MARKS or name in self.sizes:
            stage.setdefault(name, set()).add(rank)
            self.sizes[name] = size
        if found[2]:
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
