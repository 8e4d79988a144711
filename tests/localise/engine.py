"""A discrete-event machine: hosts that run ahead, streams, collectives and messages as NCCL runs them.

Times are integer nanoseconds. A host runs through its program until a call blocks it. A GPU operation starts when it is
launched, its stream is free and every awaited event has happened; a host can be `queue` operations ahead. Members of a
collective leave together, when the last has come and the transfer is done. A message below the FIFO's capacity lets its
sender go at once. Compute that runs beside communication is slower by the job's contention.
"""

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

from tests.localise.calls import Call, Collective, Kernel, Messages, Pause, Sync, Wait

LAUNCH_NS = 4_000
LEAVE_NS = 1_500


class Op:
    """One operation on a GPU."""

    __slots__ = (
        "blocks_host",
        "call",
        "done",
        "end",
        "followers",
        "index",
        "launched",
        "left",
        "need",
        "rank",
        "ready",
        "start",
        "update",
    )

    def __init__(self, rank: int, index: int, call: Call, launched: int) -> None:
        self.rank, self.index, self.call, self.launched = rank, index, call, launched
        self.ready = launched
        self.left = 0  # dependencies not yet done, then unfinished messages
        self.need = 0.0  # nanoseconds of compute left at `update`
        self.start = self.end = self.update = 0
        self.done = False
        self.followers: list[Op] = []
        self.blocks_host = False  # until it ends


@dataclass
class Place:
    """One rank while the machine runs."""

    program: list[Call]
    now: int = 0
    at: int = 0
    tails: dict[str, Op] = field(default_factory=dict)
    awaited: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))
    ops: dict[int, Op] = field(default_factory=dict)
    hosts: list[tuple[int, int]] = field(default_factory=list)
    blocked: int = 0
    open: int = 0
    full: bool = False
    began: int = -1
    talking: int = 0
    computing: list[Op] = field(default_factory=list)


class Machine:
    """Runs programs, one a rank; `places` then hold the times of every call and operation."""

    def __init__(self, programs: dict[int, list[Call]], contention: float, capacity: int, queue: int) -> None:
        self.places = {rank: Place(program) for rank, program in programs.items()}
        self.contention, self.capacity, self.queue = contention, capacity, queue
        self.heap: list[tuple[int, int, int, Op]] = []
        self.count = 0
        self.meetings: dict[tuple, list[Op]] = defaultdict(list)
        self.sends: dict[tuple, deque] = defaultdict(deque)
        self.receives: dict[tuple, deque] = defaultdict(deque)

    def run(self) -> "Machine":
        """This machine when all programs have ended; RuntimeError where they block each other."""
        for rank in self.places:
            self.advance(rank)
        while self.heap:
            now, _, version, op = heapq.heappop(self.heap)
            if version < 0:
                self.begin(op, now)
            elif not op.done and version == op.update:
                self.finish(op, now)
        stuck = [rank for rank, place in self.places.items() if place.at < len(place.program)]
        stuck += [op.rank for place in self.places.values() for op in place.ops.values() if not op.done][:5]
        if stuck:
            raise RuntimeError(f"the programs block each other at ranks {stuck[:8]}")
        return self

    def advance(self, rank: int) -> None:
        """Run a rank's host until it ends or must wait for its GPU."""
        place = self.places[rank]
        while place.at < len(place.program):
            call = place.program[place.at]
            began = place.now if place.began < 0 else place.began
            if isinstance(call, Kernel | Collective | Messages) and place.open >= self.queue:
                place.full, place.began = True, began
                return
            place.began = -1
            if isinstance(call, Sync):
                if not self.synced(place, call):
                    return
            elif isinstance(call, Wait):
                place.awaited[call.stream].append(place.ops[call.handle])
                place.now += call.host
            elif isinstance(call, Pause):
                place.now += call.host
            else:
                place.now += call.host
                self.enqueue(rank, place, call)
            place.hosts.append((began, place.now))
            place.at += 1

    def synced(self, place: Place, call: Sync) -> bool:
        """Whether the host may go on; else it is woken when what it waits for has ended."""
        if call.stream is None:
            pending = list(place.tails.values())
        elif call.stream in place.tails:
            pending = [place.tails[call.stream], *place.awaited[call.stream]]
        else:
            pending = []
        open_ops = {op.index: op for op in pending if not op.done}.values()
        if open_ops:
            place.blocked = len(open_ops)
            for op in open_ops:
                op.blocks_host = True
            return False
        place.now = max([place.now + call.host, *(op.end + call.host for op in pending)])
        return True

    def enqueue(self, rank: int, place: Place, call: Kernel | Collective | Messages) -> None:
        """Put an operation on its stream."""
        op = Op(rank, place.at, call, place.now + LAUNCH_NS)
        place.ops[place.at] = op
        place.open += 1
        waits = place.awaited.pop(call.stream, [])
        before = place.tails.get(call.stream)
        if before is not None:
            waits.append(before)
        caller = getattr(call, "caller", call.stream)
        if caller != call.stream:
            waits += [*([place.tails[caller]] if caller in place.tails else []), *place.awaited[caller]]
        place.tails[call.stream] = op
        for other in waits:
            if other.done:
                op.ready = max(op.ready, other.end)
            else:
                op.left += 1
                other.followers.append(op)
        if not op.left:
            self.push(op.ready, -1, op)

    def push(self, when: int, version: int, op: Op) -> None:
        """Note an event."""
        self.count += 1
        heapq.heappush(self.heap, (when, self.count, version, op))

    def begin(self, op: Op, now: int) -> None:
        """Start an operation."""
        op.start = now
        place = self.places[op.rank]
        if isinstance(op.call, Kernel):
            op.need = float(op.call.work)
            place.computing.append(op)
            self.pace(place, op, now, place.talking)
            return
        self.talk(place, now, 1)
        if isinstance(op.call, Collective):
            self.meet(op, now)
        else:
            self.exchange(op, now)

    def pace(self, place: Place, op: Op, now: int, talking: int) -> None:
        """(Re)schedule the end of a compute kernel for the present number of communication kernels beside it."""
        slow = 1 + self.contention * op.call.touched if talking else 1.0
        op.update += 1
        op.end = now + max(1, round(op.need * slow))
        self.push(op.end, op.update, op)

    def talk(self, place: Place, now: int, change: int) -> None:
        """Count communication kernels that run on a GPU and pace its compute again where that matters."""
        before, place.talking = place.talking, place.talking + change
        if bool(before) == bool(place.talking) or not place.computing:
            return
        for op in place.computing:
            slow = 1 + self.contention * op.call.touched if before else 1.0
            op.need = max((op.end - now) / slow, 0.0)
            self.pace(place, op, now, place.talking)

    def meet(self, op: Op, now: int) -> None:
        """Join a collective; the last member ends it for all."""
        met = self.meetings[op.call.key]
        met.append(op)
        if len(met) == len(op.call.group):
            del self.meetings[op.call.key]
            transfer = max(member.call.transfer for member in met)
            for member in met:
                self.end_at(member, now + transfer + (member.rank * 37 + now) % LEAVE_NS)

    def end_at(self, op: Op, when: int) -> None:
        """Schedule the end of a communication kernel."""
        op.update += 1
        op.end = when
        self.push(when, op.update, op)

    def exchange(self, op: Op, now: int) -> None:
        """Start the messages of one kernel; it ends with the last of them."""
        op.left = len(op.call.parts)
        op.end = now
        for part in op.call.parts:
            channel = (
                op.call.channel,
                *((op.rank, part.peer) if part.send else (part.peer, op.rank)),
                part.tag,
            )
            mine, theirs = (self.sends, self.receives) if part.send else (self.receives, self.sends)
            if part.send and part.size <= self.capacity:
                self.arrive(op, now + part.transfer)
            if theirs[channel]:
                self.settle(part, op, *theirs[channel].popleft(), now)
            else:
                mine[channel].append((part, op))

    def settle(self, part, op, other_part, other, now: int) -> None:
        """Both ends of a message are there: end them, but for an eager sender that has left."""
        if part.size != other_part.size:
            raise RuntimeError(f"ranks {op.rank} and {other.rank} disagree about a message")
        end = now + max(part.transfer, other_part.transfer)
        for one, whose in ((part, op), (other_part, other)):
            if not (one.send and one.size <= self.capacity):
                self.arrive(whose, end)

    def arrive(self, op: Op, when: int) -> None:
        """One message of a kernel ends."""
        op.left -= 1
        op.end = max(op.end, when)
        if not op.left:
            self.end_at(op, op.end)

    def finish(self, op: Op, now: int) -> None:
        """End an operation and release what waited for it."""
        op.done, op.end = True, now
        place = self.places[op.rank]
        place.open -= 1
        if isinstance(op.call, Kernel):
            place.computing.remove(op)
        else:
            self.talk(place, now, -1)
        for follower in op.followers:
            follower.left -= 1
            follower.ready = max(follower.ready, now)
            if not follower.left:
                self.push(follower.ready, -1, follower)
        op.followers = []
        if op.blocks_host:
            op.blocks_host = False
            place.blocked -= 1
            if not place.blocked:
                self.advance(op.rank)
        if place.full and place.open < self.queue:
            place.full = False
            place.now = max(place.now, now)
            self.advance(op.rank)
