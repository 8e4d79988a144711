"""What one log tells, by global rank: how far groups are, what timed out, what died, what waits. Made by `logs`."""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tracekit.evidence.log_deaths import Death
from tracekit.evidence.log_lines import MESSAGES, Message, When, Work
from tracekit.evidence.log_reports import Report
from tracekit.evidence.log_waits import Waits
from tracekit.evidence.nccl_calls import Process
from tracekit.evidence.stack_places import RankStack
from tracekit.units import NS_PER_S

GroupKey = tuple[str, str]
"""Name and description of a group; ("", "") where the lines name none."""
_RANK_IN_NAME: Final = re.compile(r"(?:rank|task|proc|worker)[_\-=.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_RANK_FOLDER: Final = re.compile(
    r"^(.*?)(?:/attempt_(\d{1,6}))?/(\d{1,7})/(?:std(?:out|err)\.log|error\.json)$"
)
"""torchrun's `--log-dir`: a folder for each start of an agent, in it one for each attempt and each local rank."""


@dataclass(slots=True)
class Mark:
    """How far one rank is in one group, as its lines tell; None where they do not.

    place: the rank's place in the group. size: members that an initialisation, the elements of a call or a report of
    all members show. started: the last call that the device began. stack: of the call that timed out, innermost first.
    """

    place: int | None
    unique: bool = False
    enqueued: int | None = None
    completed: int | None = None
    work: Work | None = None
    size: int | None = None
    messages: bool = False
    started: int | None = None
    stack: tuple[str, ...] = ()

    def begins_again(self, message: Message) -> bool:
        """Return whether a group counts from the start again, as after a restart."""
        state = message.state
        if state is None or state[0] is None or self.enqueued is None:
            return False
        same = message.group is None or self.place in {None, message.group.place}  # else another rank's line
        return same and state[0] < self.enqueued

    def take(self, message: Message) -> None:
        """Take the numbers and the call of a later message."""
        if message.state is not None:
            enqueued, completed = message.state
            self.enqueued = enqueued
            self.completed = self.completed if completed is None else completed
        if message.work is not None:
            self.take_work(message.work)
        self.started = message.started if message.started is not None else self.started
        self.size = message.size or self.size

    def take_work(self, work: Work) -> None:
        """Take a call of the group that timed out; the first of several counts."""
        if self.work is None or work.seq < self.work.seq:
            self.work = work
            self.messages |= work.call.op in MESSAGES
            self.size = self.size or work.group_size


Key = tuple[str, int]
"""How a line names its process: by global rank, local rank, place within a group, or by its file."""


@dataclass
class Attempt:
    """What the lines of one attempt show, by the key of the process that wrote them."""

    marks: dict[Key, dict[GroupKey, Mark]] = field(default_factory=lambda: defaultdict(dict))
    loose: dict[Key, list[Work]] = field(default_factory=lambda: defaultdict(list))
    places: dict[Key, int] = field(default_factory=dict)  # of each with loose calls, in its unnamed group
    deaths: list[tuple[Key, Death]] = field(default_factory=list)
    stuck: set[Key] = field(default_factory=set)
    asked_by: set[int] = field(default_factory=set)
    waits: Waits = field(default_factory=Waits)
    timed_out: tuple[When | None, int] | None = None
    last: dict[Key, When] = field(default_factory=dict)
    ended: dict[Key, When] = field(default_factory=dict)
    """When the first call of a process timed out."""
    failed: dict[Key, list[Mark]] = field(default_factory=lambda: defaultdict(list))
    """Marks whose call timed out and has no stack yet."""
    group: dict[Key, GroupKey] = field(default_factory=dict)
    """The group in the last line of a process that names one."""
    reports: list[tuple[Key, GroupKey, Report]] = field(default_factory=list)

    def begins_again(self, key: Key, message: Message) -> bool:
        """Return whether a process waited in a call that it issued after another one of its calls had timed out.

        A time-out ends the process, so that the call is of the next attempt.
        """
        if message.work is None or message.when is None or key[0] not in {"rank", "local"}:
            return False
        ended = self.ended.setdefault(key, message.when)
        return ended.clock == message.when.clock and message.work.created_ns > ended.seconds * NS_PER_S


@dataclass
class LogFile:
    """What one log tells. Ranks are global where `marks`, `deaths` and `stuck` name one."""

    path: str
    size: int = 0
    damage: str | None = None
    first: When | None = None
    last: When | None = None
    marks: dict[int, dict[GroupKey, Mark]] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    waits: Waits = field(default_factory=Waits)
    stuck: set[int] = field(default_factory=set)
    asked_by: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    reports: list[tuple[int | None, GroupKey, Report]] = field(default_factory=list)
    """States of a group's members that a rank printed: the rank (None: unknown), its group, the report."""
    stacks: list[RankStack] = field(default_factory=list)
    nccl: list[Process] = field(default_factory=list)
    """Processes with lines of NCCL, and the calls and communicators that these show."""
    attempts: int = 1
    unresolved: int = 0
    timed_out: tuple[When | None, int] | None = None
    """When the first call timed out, and where in the file."""
    lines: int = 0
    watchdog: bool = False
    by_place: bool = False
    """Whether ranks are those within a group, which lines before torch 2.2 tell alone."""

    @property
    def world(self) -> int | None:
        """Return the ranks of the job, as a line tells; None where none does."""
        stated = [
            mark.size for marks in self.marks.values() for (_, d), mark in marks.items() if d == "default_pg"
        ]
        joined = self.waits.joined_store[1] if self.waits.joined_store else None
        known = [n for n in (*stated, joined, self.waits.store_size, self.waits.widest or None) if n]
        called = (one.size for process in self.nccl for one in process.communicators.values())
        return max((*known, *called), default=None)


def agent_of_path(path: str) -> tuple[str, int] | None:
    """Return the folder of the launcher's agent in which a log is, and the attempt; None outside of such folders."""
    found = _RANK_FOLDER.match(path.replace("\\", "/"))
    return None if found is None else (found[1], int(found[2] or 0))


def rank_of_path(path: str, *, agents: int = 1) -> int | None:
    """Return the rank in a log's name or folder; None where it names none. agents: folders of agents among the files.

    An agent names folders by local ranks, which are those of the job where it is the only one.
    """
    slashes = path.replace("\\", "/")
    if found := _RANK_FOLDER.match(slashes):
        return int(found[3]) if agents == 1 else None
    named = _RANK_IN_NAME.findall(slashes.rpartition("/")[2])
    return int(named[-1]) if named else None
