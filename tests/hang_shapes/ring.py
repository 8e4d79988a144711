"""A rank's ring: the entries NCCL's recorder holds of its calls, and how far its groups have come."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from random import Random

from tests.hang_shapes.calls import Collective, Shape
from tests.hang_shapes.machine import Host, Made
from tests.hang_shapes.mesh import Group

POLL_US = 100_000.0
"""The watchdog looks this often."""
MESSAGED = {"PIPELINE_MODEL_PARALLEL_GROUP", "CONTEXT_PARALLEL_GROUP"}
"""Groups that send messages."""
UNEVEN = {"PIPELINE_MODEL_PARALLEL_GROUP"}
"""Those whose members send as many as their place asks for."""


@dataclass(frozen=True)
class Recorder:
    """How the dumps of a job are recorded; `bumped` counts batches of messages as collectives, as torch 2.4 does."""

    version: tuple[int, int]
    timing: bool
    capacity: int
    began: bool
    bumped: bool
    frames: bool
    json: bool
    active: bool
    status: bool
    timeout_ms: int
    names: str
    seed: int
    base_ns: int


@dataclass
class Count:
    """Counters of a group on a rank."""

    collectives: int
    messages: int
    ops: int
    enqueued: int = -1
    started: int = -1
    completed: int = -1


@dataclass
class Ring:
    """The entries of a rank as of a moment (µs of the job's clock)."""

    host: Host
    recorder: Recorder
    local: dict[str, int]
    past: dict[str, str]
    skew_ns: int
    until: float
    last: float
    blind: int
    """The place in the program behind which no end is seen."""
    entries: list[dict[str, object]] = field(default_factory=list)
    counts: dict[str, Count] = field(default_factory=dict)
    drawn: Random = field(init=False)
    in_batch: bool = False

    def __post_init__(self) -> None:
        self.drawn = Random(self.recorder.seed * 7919 + self.host.program.rank)
        self.calls: dict[str, list[tuple[int, Made]]] = defaultdict(list)
        self.retired: dict[str, set[int]] = defaultdict(set)
        first = 0 if self.recorder.began else 5000 + self.drawn.randrange(90000)
        for made in self.host.made:
            if made.at <= self.until:
                self.record(made)
        for number, entry in enumerate(self.entries):
            entry["record_id"] = first + number
        if self.recorder.capacity < len(self.entries):
            self.entries = self.entries[-self.recorder.capacity :]
        self.settle()

    def count(self, group: Group) -> Count:
        """The counters of a group; groups of one past have made the same number of collectives before."""
        if group.name not in self.counts:
            before = own = 0
            if not self.recorder.began:
                before = Random(f"{self.recorder.seed}{self.past[group.name]}").randrange(200, 40000)
                stage = group.ranks.index(self.host.program.rank) if group.desc in UNEVEN else 0
                own = (
                    Random(f"{self.recorder.seed}{stage}").randrange(200, 20000)
                    if group.desc in MESSAGED
                    else 0
                )
            made = before + own * self.recorder.bumped
            self.counts[group.name] = count = Count(made, own, before + own)
            if not self.recorder.began:  # the watchdog has long seen the end of what was called before
                count.completed = own or made
                count.started = count.completed if self.recorder.timing else -1
        return self.counts[group.name]

    def record(self, made: Made) -> None:
        """Enter a call."""
        count = self.count(made.item.group)
        message = made.message
        if made.batch or (message is None and not isinstance(made.item, Collective)):
            self.batched(made, count)
        elif message is not None:
            count.messages += 1
            count.ops += 1
            self.enter(
                made, count, self.title(made), [message.shape], [message.shape], message.dtype, p2p=True
            )
            self.calls[made.item.group.name].append((count.messages, made))
        elif isinstance(made.item, Collective):
            self.collective(made, made.item, count)

    def collective(self, made: Made, item: Collective, count: Count) -> None:
        """Enter a collective, or the parts that a manager coalesces and their whole."""
        count.collectives += 1
        inputs, outputs = list(item.inputs), list(item.outputs)
        if item.parts:
            for _ in range(item.parts):
                count.ops += 1
                self.enter(made, count, f"nccl:{item.op}", inputs, outputs, item.dtype, alone=False)
            self.enter(made, count, "nccl:coalesced", [], [], item.dtype)
        else:
            count.ops += 1
            self.enter(made, count, f"nccl:{item.op}", inputs, outputs, item.dtype)
        self.calls[item.group.name].append((count.collectives, made))

    def batched(self, made: Made, count: Count) -> None:
        """Enter a part of a batch, or the batch itself; all share one number."""
        if made.message is not None:
            if not self.in_batch:
                count.messages += 1
                count.collectives += self.recorder.bumped
                self.in_batch = True
            count.ops += 1
            shape = [made.message.shape]
            self.enter(made, count, self.title(made), shape, shape, made.message.dtype, p2p=True, alone=False)
            return
        self.in_batch = False
        self.enter(made, count, "nccl:coalesced", [], [], "", p2p=True)
        self.calls[made.item.group.name].append((count.messages, made))

    def title(self, made: Made) -> str:
        """A message's name, with places in its group."""
        assert made.message is not None
        ranks = made.item.group.ranks
        own, other = ranks.index(self.host.program.rank), ranks.index(made.message.peer)
        return f"nccl:send {own}->{other}" if made.message.sends else f"nccl:recv {own}<-{other}"

    def enter(
        self,
        made: Made,
        count: Count,
        name: str,
        inputs: list[Shape],
        outputs: list[Shape],
        dtype: str,
        *,
        p2p: bool = False,
        alone: bool = True,
    ) -> None:
        """Add an entry; a part of a batch (not `alone`) never changes its state."""
        group = made.item.group
        entry: dict[str, object] = {
            "record_id": 0,
            "pg_id": self.local[group.name],
            "process_group": (group.name, group.desc),
            "collective_seq_id": count.collectives,
            "p2p_seq_id": count.messages,
            "op_id": count.ops,
            "profiling_name": name,
            "time_created_ns": self.clock(made.at),
            "input_sizes": [list(shape) for shape in inputs],
            "output_sizes": [list(shape) for shape in outputs],
            "input_dtypes": [dtype] * len(inputs),
            "output_dtypes": [dtype] * len(outputs),
            "state": "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": False,
            "timeout_ms": self.recorder.timeout_ms,
            "is_p2p": p2p,
            "where": made.item.where,
        }
        if alone:
            self.progress(entry, made)
        self.entries.append(entry)

    def progress(self, entry: dict[str, object], made: Made) -> None:
        """How far a call is at this moment."""
        start, end, until = made.task.start, made.task.end, self.until
        seen = end + self.drawn.uniform(0, POLL_US)
        if made.place > self.blind:
            return
        if end <= until and end < inf:
            self.retired[made.item.group.name] |= {id(made)} if seen <= until else set()
            entry["state"] = "completed"
            entry["retired"] = seen <= until
            entry["time_discovered_completed_ns"] = self.clock(min(seen, until))
            if self.recorder.timing:
                entry["time_discovered_started_ns"] = entry["time_discovered_completed_ns"]
                if entry["retired"]:
                    entry["duration_ms"] = round((end - start) / 1e3, 5)
        elif self.recorder.timing and start <= until and start < inf:
            entry["state"] = "started"
            entry["time_discovered_started_ns"] = self.clock(until)

    def settle(self) -> None:
        """What the watchdog knew of each group when it last looked: the last number enqueued, started and completed."""
        for name, calls in self.calls.items():
            count = self.counts[name]
            count.enqueued = calls[-1][0]
            for number, made in calls:
                begun = made.task.start <= self.until and made.task.start < inf
                if self.recorder.timing and begun and made.place <= self.blind:
                    count.started = number
                if id(made) in self.retired[name]:
                    count.completed = number

    def clock(self, at: float) -> int:
        """A time of the job on this host's clock."""
        at = self.last if at == inf else at
        return self.recorder.base_ns + self.skew_ns + int(at * 1000)
