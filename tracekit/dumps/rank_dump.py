"""One flight-recorder dump, reduced to plain columns, since these travel from worker processes.

Of every group the frontier (how far enqueued, how far completed) and the last calls, of point-to-point operations the
outstanding ones, and, where asked for, the timings of all calls. Made by `entries` and `timing`; read by the
analysis of hangs and by `ingest.flight_recorder`.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tracekit.dumps.calls import CallKind, Signature

SCHEDULED, STARTED, DONE = 0, 1, 2

Stack = tuple[str, ...]
"""Frames as "file:line function", innermost first."""

Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
Float64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class GroupTail:
    """One group as one rank's dump shows it. -1 is unknown; sequence numbers begin at 1."""

    name: str
    desc: str
    ranks: tuple[int, ...]  # sorted; empty where the dump does not tell
    status_enqueued: int = -1  # pg_status; of a group with p2p this may count p2p operations
    status_completed: int = -1
    entry_enqueued: int = -1  # greatest sequence number among entries
    entry_completed: int = -1  # all entries up to here are done
    entry_seen_done: bool = False  # and the ring still holds that call: it is no mere upper bound
    has_p2p: bool = False
    open_end: bool = False  # a damaged entry may be its newest call
    partial: bool = False  # made of a log that does not tell all members
    seq: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))  # (tail,) ascending
    state: Int8 = field(default_factory=lambda: np.zeros(0, np.int8))  # (tail,)
    created: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))  # (tail,) ns, 0 unknown
    duration: Float64 = field(
        default_factory=lambda: np.zeros(0, np.float64)
    )  # (tail,) ms, nan unknown; or (0,)
    calls: tuple[Signature, ...] = ()  # (tail,)
    stacks: tuple[Stack, ...] = ()  # (tail,) of the program that made each call; or (0,): none is recorded
    ended_late: int = -1  # the first call that reads as done and may have been ended by a time-out


@dataclass(slots=True)
class P2P:
    """An outstanding send or receive."""

    group: int  # index into RankDump.groups; ends are positions in its sorted members, as torch numbers them
    peer: int
    me: int
    send: bool
    state: int
    seq: int
    text: str
    created: int
    call: Signature
    nth: int  # as in Messages
    stack: Stack = ()


@dataclass(slots=True)
class Messages:
    """The last sends and receives of one rank, and all from the first unfinished one on, in the order of issue."""

    group: Int64  # (messages,) index into RankDump.groups
    seq: Int64  # (messages,) numbers within the group
    nth: Int64  # (messages,) position among the messages of this name in the ring, from 0
    created: Int64  # (messages,) ns, 0 unknown
    names: tuple[str, ...]  # (messages,)
    calls: tuple[Signature, ...]  # (messages,)

    def place(self, group: int, seq: int, name: str | None = None) -> int | None:
        """Give the row of the message with that number (and name); None where it is not kept."""
        found = np.flatnonzero((self.group == group) & (self.seq == seq)).tolist()
        return next((i for i in found if name is None or self.names[i] == name), None)


def no_messages() -> Messages:
    """Give the messages of a rank that has none."""
    none = np.zeros(0, np.int64)
    return Messages(none, none, none, none, (), ())


@dataclass(slots=True)
class TimedCalls:
    """Calls of one dump with a known duration, sorted by start; times in ns of the writer's clock."""

    start: Int64  # (calls,)
    dur: Int64  # (calls,)
    group: Int64  # (calls,) index into RankDump.groups
    seq: Int64  # (calls,) -1 for sends and receives
    kind: Int64  # (calls,) index into kinds
    kinds: tuple[CallKind, ...]
    laid_out: int  # calls placed to within a poll
    poll_ns: int  # the usual time between polls, 0 where none was needed
    untimed: int  # calls without a duration
    outstanding: int  # of these, calls that were not done

    def between(self, begin: int, end: int) -> "TimedCalls":
        """Give the calls from `begin` to before `end`."""
        kept = {n: getattr(self, n)[begin:end] for n in ("start", "dur", "group", "seq", "kind")}
        return replace(self, **kept)


@dataclass(slots=True)
class RankDump:
    """One dump, reduced. `rank` is -1 until `assign` has decided it."""

    path: str
    version: str
    host: str | None
    groups: list[GroupTail]
    p2p: list[P2P]
    aborted: list[P2P] = field(default_factory=list)  # read as done, may have been ended by a time-out
    messages: Messages = field(default_factory=no_messages)
    rank: int = -1
    claimed: int | None = None  # a rank written in the dump itself
    candidates: tuple[int, ...] | None = None  # ranks that its groups leave possible; None: no idea
    entries: int = 0
    malformed: int = 0
    backend: str = ""
    timed: bool = False  # start times are recorded
    moved_lately: bool = False  # its device finished calls just before it was written
    wrapped: bool = False  # the ring has overwritten entries, or some were left out
    has_status: bool = False
    cut: bool = (
        False  # the oldest entry kept is outstanding: older outstanding ones may have been overwritten
    )
    finished: bool = False  # it holds calls that are done
    gapless: bool = False  # its entries follow one another: none was left out
    whole_since: int = 0  # time (ns) from which on this is so; MAX_INTEGER where that is unknown
    unlisted: bool = False  # calls name groups that the dump does not list
    damaged_end: bool = False  # damaged entries may be its newest calls or messages
    truncated: bool = False  # the file ends too early: the newest entries are not in it
    unmapped_status: int = 0
    last_created: int = 0
    heartbeat: int = 0  # when its recorder last ran, ns since 1970; 0 where it does not tell
    last_group: int = -1  # index into groups, of the last entry
    stack: tuple[str, ...] = ()  # of the last entry
    timing: TimedCalls | None = None  # where asked for
    sha256: str = ""  # of the file, and its length
    bytes: int = 0


def without_end(dump: RankDump) -> None:
    """Mark a dump as cut off, and remove its last call from it: that is not the last one of the rank."""
    dump.truncated = True
    dump.cut = False
    dump.last_group, dump.last_created, dump.stack = -1, 0, ()
