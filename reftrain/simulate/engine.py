"""Discrete-event simulation of programs: when every operation of every rank is issued, starts and ends.

All ranks of a pipeline rank execute one program, so each operation is computed for all of them at once, as an
array over (dp, cp, tp); jitter and faults are arrays too. What is specific to a rank costs nothing extra, and a
step of 16 384 ranks takes seconds.

The rules are those of CUDA streams under torch: the host issues operations in order and runs ahead of its
device; a kernel starts when it was issued, the one before it on its stream has ended, and what it waits for has
ended; a collective's kernel first waits for the compute queued before it, begins on each member when that
member comes, and ends on all together, a transfer after the last one came; a message is a rendezvous. An
operation that never happens has infinite times: a hang is simulated like any other run.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from reftrain.errors import ScheduleError
from reftrain.simulate.grid import F64, Grid
from reftrain.simulate.lane import (
    LAUNCH_QUEUE,
    Channel,
    Conditions,
    HostCosts,
    Lane,
    Noise,
    Post,
    StageTimes,
)
from reftrain.simulate.program import Kind, Op, Program


class Engine:
    """Runs programs. `width` is the number of ranks of a pipeline rank."""

    def __init__(
        self,
        programs: Sequence[Program],
        grid: Grid,
        steps: int,
        *,
        host: HostCosts,
        noise: Noise | None = None,
        conditions: dict[tuple[int, int], Conditions] | None = None,
    ) -> None:
        self.grid, self.steps, self.host, self.noise = grid, steps, host, noise
        self.conditions = conditions or {}
        self.lanes = [Lane(i, p, grid.width, steps) for i, p in enumerate(programs)]
        self._channels: dict[tuple[int, int], Channel] = {}
        self._hubs: dict[tuple[object, ...], list[Post]] = {}
        self._calls: dict[tuple[object, ...], int] = {}
        self._ready: deque[Lane] = deque()

    def run(self) -> list[StageTimes]:
        """Times of all pipeline ranks. Raises ScheduleError where ranks wait in a circle."""
        for lane in self.lanes:
            self._begin_step(lane)
        self._ready.extend(self.lanes)
        with np.errstate(invalid="ignore"):
            while self._ready:
                lane = self._ready.popleft()
                lane.parked = False
                self._advance(lane)
        stuck = [lane for lane in self.lanes if lane.step < self.steps]
        if stuck:
            op = stuck[0].program.ops[stuck[0].at]
            raise ScheduleError(
                "schedule", f"pipeline rank {stuck[0].number} never gets past {op.label} of stage {op.stage}",
                "correct the table",
            )  # fmt: skip
        return [lane.times for lane in self.lanes]

    def _begin_step(self, lane: Lane) -> None:
        key = (lane.number, lane.step)
        lane.conditions = self.conditions.get(key, Conditions())
        lane.times.bounds[lane.step] = lane.host
        if self.noise is None:
            return
        kinds = [op.kind for op in lane.program.ops]
        kernels = kinds.count(Kind.COMPUTE)
        messages = sum(k in (Kind.COLLECTIVE, Kind.SEND, Kind.RECV) for k in kinds)
        lane.tables = [
            self.noise.compute(*key, kernels),
            self.noise.transfer(*key, messages),
            self.noise.tail(*key),
        ]
        lane.load = self.noise.load(*key)

    def _advance(self, lane: Lane) -> None:
        while lane.step < self.steps:
            while lane.at < lane.count:
                op = lane.program.ops[lane.at]
                if self._must_wait(lane, op):
                    lane.parked = True
                    return
                self._stops(lane)
                _RUN[op.kind](self, lane, op)
                lane.at += 1
            lane.step, lane.at = lane.step + 1, 0
            lane.times.bounds[lane.step] = lane.host
            lane.ends = [None] * lane.count
            if lane.step < self.steps:
                self._begin_step(lane)

    @staticmethod
    def _must_wait(lane: Lane, op: Op) -> bool:
        """Whether something that decides the operation's start is not known yet."""
        if op.kind is Kind.COLLECTIVE and lane.streams.get(op.stream, lane.free) is None:
            return True
        return any(lane.ends[i] is None for i in op.after)

    def _stops(self, lane: Lane) -> None:
        for place, index in lane.conditions.stops:
            if index == lane.at:
                lane.host = lane.host.copy()
                lane.host[place] = np.inf

    # -- what the host does alone
    def _load(self, lane: Lane, op: Op) -> None:
        cost: F64 | float = op.ns if lane.load is None else op.ns * lane.load
        if lane.conditions.late is not None:
            cost = cost + lane.conditions.late
        row = lane.row
        lane.times.issued[row] = lane.times.start[row] = lane.host
        lane.host = lane.host + cost
        self._set(lane, lane.at, row, lane.host)

    def _sync(self, lane: Lane, op: Op) -> None:
        row = lane.row
        lane.times.issued[row] = lane.times.start[row] = lane.host
        done = lane.host if op.label == "wait" else np.maximum(lane.host, lane.free)
        for index in op.after:
            end = lane.ends[index]
            if end is not None:
                done = np.maximum(done, end)
        lane.host = done
        self._set(lane, lane.at, row, done)

    def _set(self, lane: Lane, index: int, row: int, end: F64) -> None:
        lane.times.end[row] = end
        if row >= lane.step * lane.count:
            lane.ends[index] = end

    # -- kernels
    def _compute(self, lane: Lane, op: Op) -> None:
        told, row = lane.conditions, lane.row
        if op.segment and told.pauses:
            lane.segments += 1
            for pause, every in told.pauses:
                if lane.segments % every == 0:
                    lane.host = lane.host + pause
        self._queue(lane, op.launches)
        each: F64 | float = self.host.launch if told.launch is None else self.host.launch + told.launch
        first = lane.host + each
        lane.host = lane.host + each * op.launches
        took = self._kernel_ns(lane, op)
        begin = np.maximum(first + self.host.latency, lane.free)
        for index in op.after:
            begin = np.maximum(begin, lane.ended(index))
        finish = begin + took
        if op.launches > 1:  # the last kernel cannot start before its own launch
            finish = np.maximum(finish, lane.host + self.host.latency + took / op.launches)
        lane.times.issued[row] = lane.host
        start = lane.times.start[row]
        np.subtract(finish, took, out=start)
        self._account(lane, op, start)
        lane.queued.append((lane.launched, start))
        lane.free = finish
        self._set(lane, lane.at, row, finish)

    @staticmethod
    def _queue(lane: Lane, launches: int) -> None:
        """Let the host wait while the launch queue is full: until what it launched that long ago has started."""
        lane.launched += launches
        while lane.queued and lane.launched - lane.queued[0][0] >= LAUNCH_QUEUE:
            lane.host = np.maximum(lane.host, lane.queued.popleft()[1])

    def _kernel_ns(self, lane: Lane, op: Op) -> F64 | float:
        took: F64 | float = op.ns
        noise = lane.tables[0]
        if noise is not None:
            took = took * noise[lane.order[lane.at]].astype(np.float64)
        if lane.conditions.factor is not None:
            took = took * lane.conditions.factor
        if op.attention and op.micro_batch in lane.conditions.attention:
            took = took * lane.conditions.attention[op.micro_batch]
        return took

    def _account(self, lane: Lane, op: Op, start: F64) -> None:
        """Charge the gap before a kernel to what it waited for: what ended last of all."""
        gap = np.maximum(start - lane.free, 0.0)
        waits, step = lane.times.waits, lane.step
        left = gap
        for index in sorted(op.after):
            end, other = lane.ends[index], lane.program.ops[index]
            if end is None:
                continue
            share = np.minimum(left, np.maximum(end - lane.free, 0.0))
            left = left - share
            name = other.group if other.group in waits else "dp"
            if other.kind is Kind.RECV:
                moved = np.minimum(share, lane.transfers.get(index, 0.0))
                waits["pp"][step] += moved
                waits["bubble"][step] += share - moved
            else:
                waits[name][step] += share
        waits["host"][step] += left

    # -- communication
    def _arrival(self, lane: Lane, op: Op) -> F64:
        """When the operation's kernel begins: issued, its stream free, and compute queued before it done."""
        lane.host = lane.host + self.host.collective
        row = lane.row
        lane.times.issued[row] = lane.host
        ready = np.maximum(lane.host + self.host.latency, lane.free)
        for index in op.after:
            ready = np.maximum(ready, lane.ended(index))
        return ready

    def _transfer_ns(self, lane: Lane, op: Op) -> F64 | float:
        took: F64 | float = op.ns
        noise = lane.tables[1]
        if noise is not None:
            took = took * noise[lane.order[lane.at]].astype(np.float64)
        return took

    def _collective(self, lane: Lane, op: Op) -> None:
        row, told = lane.row, lane.conditions
        arrive = self._arrival(lane, op)
        before = lane.streams.get(op.stream)
        if before is not None:
            arrive = np.maximum(arrive, before)
        took = self._transfer_ns(lane, op)
        lane.times.start[row] = arrive
        post = self._disturbed(Post(lane, lane.at, row, lane.step, arrive, took), told)
        if op.members or op.group == "world":
            self._join(op, post)
        else:
            self._finish_collective(post, op, self._together([post], op))

    @staticmethod
    def _disturbed(post: Post, told: Conditions) -> Post:
        """The call as those see it who wait for it: what is left out or contradicts them never comes."""
        post.left_out = [place for place, index in told.skips if index == post.index]
        never = post.left_out + [place for place, index in told.breaks if index == post.index]
        if never:
            post.ready = post.ready.copy()
            post.ready[never] = np.inf
        return post

    def _end(self, post: Post, arrived: F64, end: F64) -> F64:
        """Note a communication's start and end; gives the end as the rank's own streams see it.

        A rank that left the call out goes on as if it had been made and done.
        """
        tails = post.lane.tables[2]
        if tails is not None:
            end = end + tails[post.row % len(tails)]
        times = post.lane.times
        if post.left_out:
            end = end.copy()
            end[post.left_out] = arrived[post.left_out]
        self._set(post.lane, post.index, post.row, end)
        if post.left_out:
            for table in (times.issued, times.start, times.end):
                table[post.row, post.left_out] = np.inf
        self._wake(post.lane)
        return end

    def _join(self, op: Op, post: Post) -> None:
        """A collective over several pipeline ranks: it ends when the last of them has come."""
        members = op.members or tuple(range(self.grid.stages))
        base = (op.group, op.label, members, post.step)
        nth = self._calls[*base, post.lane.number] = self._calls.get((*base, post.lane.number), 0) + 1
        key = (*base, nth)
        posts = self._hubs.setdefault(key, [])
        posts.append(post)
        post.lane.streams[op.stream] = None
        if len(posts) < len(members):
            return
        del self._hubs[key]
        end = self._together(posts, op)
        for each in posts:
            self._finish_collective(each, op, end)

    def _together(self, posts: Sequence[Post], op: Op) -> F64:
        """When a collective is done, before each member has left it."""
        shape, dims = self.grid.shape, self.grid.over(op.group)
        latest = np.full((1, 1, 1), -np.inf)
        for post in posts:
            link = post.lane.conditions.link
            latest = np.maximum(latest, post.ready.reshape(shape).max(axis=dims, keepdims=True))
            if link is not None:
                extra = link.reshape(shape).max(axis=dims, keepdims=True)
                post.ns = np.asarray(post.ns + np.broadcast_to(extra, shape).reshape(-1))
        took: F64 | float = posts[0].ns
        for post in posts[1:]:
            took = np.maximum(took, post.ns) if post.lane.conditions.link is not None else took
        if isinstance(took, np.ndarray):
            first = tuple(slice(0, 1) if i in dims else slice(None) for i in range(3))
            took = took.reshape(shape)[first]
        return np.asarray(np.broadcast_to(latest + took, shape).reshape(-1))

    def _finish_collective(self, post: Post, op: Op, end: F64) -> None:
        arrived = post.lane.times.start[post.row].copy()
        post.lane.streams[op.stream] = self._end(post, arrived, end)

    def _wake(self, lane: Lane) -> None:
        if lane.parked:
            lane.parked = False
            self._ready.append(lane)

    def _send(self, lane: Lane, op: Op) -> None:
        self._post(lane, op, (lane.number, op.peer))

    def _receive(self, lane: Lane, op: Op) -> None:
        self._post(lane, op, (op.peer, lane.number))

    def _post(self, lane: Lane, op: Op, way: tuple[int, int]) -> None:
        if op.kind is Kind.RECV:  # posted ahead of the compute queued before it
            lane.host = lane.host + self.host.collective
            lane.times.issued[lane.row] = lane.host
            ready = lane.host + self.host.latency
        else:
            ready = self._arrival(lane, op)
        post = Post(lane, lane.at, lane.row, lane.step, ready, self._transfer_ns(lane, op))
        lane.times.start[lane.row] = ready
        post = self._disturbed(post, lane.conditions)
        if lane.conditions.link is not None:
            post.ns = post.ns + lane.conditions.link
        channel = self._channels.setdefault(way, Channel())
        (channel.sends if op.kind is Kind.SEND else channel.receives).append(post)
        while channel.sends and channel.receives:
            self._deliver(channel, channel.sends.popleft(), channel.receives.popleft())

    def _deliver(self, channel: Channel, send: Post, receive: Post) -> None:
        a, b = send.lane.program.ops[send.index], receive.lane.program.ops[receive.index]
        if (a.micro_batch, a.backward) != (b.micro_batch, b.backward):
            raise ScheduleError(
                "schedule",
                f"pipeline rank {receive.lane.number} receives micro-batch {b.micro_batch} where "
                f"rank {send.lane.number} sends {a.micro_batch}",
                "receive in the order of the sends",
            )
        sent = np.maximum(send.ready, channel.sent)
        received = np.maximum(receive.ready, channel.received)
        took = np.maximum(send.ns, receive.ns) if receive.lane.conditions.link is not None else send.ns
        end = np.maximum(sent, received) + took
        receive.lane.transfers[receive.index] = took
        for post, before in ((send, channel.sent), (receive, channel.received)):
            started = np.maximum(post.lane.times.start[post.row], before)
            post.lane.times.start[post.row] = started
            self._end(post, started, end)
        channel.sent = channel.received = end


_RUN = {
    Kind.COMPUTE: Engine._compute,  # noqa: SLF001 - the table of the class's own methods
    Kind.COLLECTIVE: Engine._collective,  # noqa: SLF001 - as above
    Kind.SEND: Engine._send,  # noqa: SLF001 - as above
    Kind.RECV: Engine._receive,  # noqa: SLF001 - as above
    Kind.LOAD: Engine._load,  # noqa: SLF001 - as above
    Kind.SYNC: Engine._sync,  # noqa: SLF001 - as above
}
