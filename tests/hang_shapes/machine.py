"""Hosts that enqueue and devices that work, until the job ends or nothing moves any more."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from tests.hang_shapes.calls import (
    Await,
    Collective,
    Compute,
    HostStuck,
    HostSync,
    Message,
    Messages,
    Program,
    StepEnd,
)
from tests.hang_shapes.mesh import Group
from tests.hang_shapes.task import Meeting, Task

LAUNCH_US = 12.0
TRANSFER_US = 90.0


@dataclass
class Made:
    """A call that a host has made: the item or a message of it, when, and its task; `wrapped` for a batch's parts."""

    item: Collective | Messages
    message: Message | None
    at: float
    task: Task
    batch: bool = False
    place: int = 0
    """Behind which item of its program."""


@dataclass
class Host:
    """A rank's process."""

    program: Program
    depth: int
    at: float = 0.0
    place: int = 0
    compute: Task | None = None
    streams: dict[object, Task] = field(default_factory=dict)
    keyed: dict[str, Task] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    queue: deque[Task] = field(default_factory=deque)
    done: bool = False
    step: int = -1


class Machine:
    """A job that runs; `dead` are meetings that never end, by group and number, with the member that is spared."""

    def __init__(
        self, programs: Sequence[Program], depth: int, dead: dict[tuple[str, int], int | None]
    ) -> None:
        self.hosts = [Host(program, depth) for program in programs]
        self.dead = dead
        self.meetings: dict[object, Meeting] = {}
        self.counts: dict[tuple[object, int], int] = {}
        self.ready = deque(self.hosts)

    def run(self) -> None:
        """Let all hosts run as far as they come."""
        while self.ready:
            host = self.ready.popleft()
            while not host.done and self.step(host):
                pass

    def resume(self, host: Host, task: Task) -> None:
        """A host waits for a task."""

        def again() -> None:
            host.at = max(host.at, task.end)
            self.ready.append(host)

        task.on_end(again)

    def step(self, host: Host) -> bool:
        """One item of a host; false if it now waits, for a device or for ever."""
        if len(host.queue) > host.depth and not host.queue[0].end < inf:
            self.resume(host, host.queue[0])
            return False
        if len(host.queue) > host.depth:
            host.at = max(host.at, host.queue.popleft().end)
        if host.place == len(host.program.items):
            host.done = True
            return False
        item = host.program.items[host.place]
        if isinstance(item, HostStuck):
            host.done = True
            return False
        host.place += 1
        if isinstance(item, HostSync):
            if host.compute is not None and host.compute.end == inf:
                self.resume(host, host.compute)
                return False
            host.at = max(host.at, host.compute.end if host.compute else 0.0)
            return True
        self.enqueue(host, item)
        return True

    def enqueue(self, host: Host, item: Collective | Messages | Compute | Await | StepEnd) -> None:
        """Hand an item to the device."""
        host.at += LAUNCH_US
        if isinstance(item, StepEnd):
            host.step = item.step
        elif isinstance(item, Compute):
            self.computed(host, Task(item.us), [host.compute])
        elif isinstance(item, Await):
            if item.key in host.keyed:
                self.computed(host, Task(), [host.compute, host.keyed[item.key]])
        elif isinstance(item, Collective):
            self.collective(host, item)
        else:
            self.messages(host, item)

    def computed(self, host: Host, task: Task, before: list[Task | None]) -> None:
        """A task becomes the last on the compute stream."""
        task.enqueue(host.at, before)
        host.compute = task
        host.queue.append(task)

    def collective(self, host: Host, item: Collective) -> None:
        """A collective, for which later kernels wait unless it is asynchronous."""
        rank, name = host.program.rank, item.group.name
        number = self.counted(name, rank)
        meeting = self.meeting((name, number), len(item.group.ranks))
        meeting.signatures.append(item.signature)
        task = Task(meetings=[meeting])
        if (name, number) in self.dead:
            meeting.dead = True
            if self.dead[name, number] == rank:
                meeting.spared = task
        host.made.append(Made(item, None, host.at, task, place=host.place))
        before = [host.compute, host.streams.get(name), host.keyed.get(item.after)]
        host.streams[name] = task
        task.enqueue(host.at, before)
        if item.key:
            host.keyed[item.key] = task
        else:
            self.computed(host, Task(), [host.compute, task])

    def messages(self, host: Host, item: Messages) -> None:
        """Sends and receives; a batch is one kernel, others have a stream for each pair."""
        rank = host.program.rank
        meetings = [self.pair(rank, item.group, message) for message in item.messages]
        if item.batched:
            task = Task(meetings=meetings)
            host.made.extend(
                Made(item, message, host.at, task, batch=True, place=host.place) for message in item.messages
            )
            host.made.append(Made(item, None, host.at, task, place=host.place))
            before = [host.compute, host.streams.get(item.group.name)]
            host.streams[item.group.name] = task
            task.enqueue(host.at, before)
            self.computed(host, Task(), [host.compute, task])
            return
        began, tasks = host.compute, []
        for message, meeting in zip(item.messages, meetings, strict=True):
            stream = (item.group.name, message.peer)
            task = Task(meetings=[meeting])
            host.made.append(Made(item, message, host.at, task, place=host.place))
            before = [began, host.streams.get(stream)]
            host.streams[stream] = task
            task.enqueue(host.at, before)
            tasks.append(task)
            host.at += LAUNCH_US
        self.computed(host, Task(), [began, *tasks])

    def pair(self, rank: int, group: Group, message: Message) -> Meeting:
        """Where a send and its receive meet."""
        ends = (rank, message.peer) if message.sends else (message.peer, rank)
        number = self.counted((group.name, ends), rank)
        meeting = self.meeting((group.name, ends, number), 2)
        meeting.dead = meeting.dead or (f"{group.name}:{ends[0]}>{ends[1]}", number) in self.dead
        meeting.signatures.append((message.shape, message.dtype))
        return meeting

    def counted(self, key: object, rank: int) -> int:
        """The number of a rank's next call under a key."""
        number = self.counts.get((key, rank), 0)
        self.counts[key, rank] = number + 1
        return number

    def meeting(self, key: object, size: int) -> Meeting:
        """The meeting of a key."""
        if key not in self.meetings:
            self.meetings[key] = Meeting(size, TRANSFER_US)
        return self.meetings[key]
