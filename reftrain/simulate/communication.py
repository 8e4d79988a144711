"""Collectives and messages of simulated pipeline ranks: when each begins and ends on every member.

The kernel of a collective first waits for the compute queued before it. It begins on each member when that member
comes, and ends on all together, one transfer after the last one came. A message is a rendezvous of a send and a
receive; receives are posted ahead, and the messages of two ranks share a stream, in both directions
(`schedule.pair_order`). A call that is left out or contradicts the others has an infinite begin, so that its partners
wait for ever.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from reftrain.errors import ScheduleError
from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.grid import F64, Grid
from reftrain.simulate.pipeline_rank import PipelineRank, Post
from reftrain.simulate.program import Kind, Op

_JOINT = frozenset({"world", "pp"})
"""Kinds of process group that reach over all pipeline ranks."""


class Communication:
    """Runs the communication of all pipeline ranks; puts the ranks that it frees into `ready`."""

    def __init__(self, grid: Grid, host: HostCosts, ready: deque[PipelineRank]) -> None:
        self.grid, self.host, self._ready = grid, host, ready
        self._messages: dict[frozenset[int], dict[int, deque[Post]]] = {}  # ends without their other end
        self._joint: dict[tuple[object, ...], list[Post]] = {}  # collectives that wait for pipeline ranks
        self._numbers: dict[tuple[object, ...], int] = {}  # calls so far of a pipeline rank in a joint group

    def collective(self, rank: PipelineRank, op: Op) -> None:
        """Call a collective; over several pipeline ranks it ends when the last of them has called it."""
        row = rank.row
        arrive = self._arrival(rank, op)
        before = rank.streams.get(op.stream)
        if before is not None:
            arrive = np.maximum(arrive, before)
        took = self._transfer_ns(rank, op)
        rank.times.start[row] = arrive
        post = self._disturbed(Post(rank, rank.at, row, rank.step, arrive, took))
        if op.members or op.group in _JOINT:
            self._join(op, post)
        else:
            self._finish_collective(post, op, self._together([post], op))

    def send(self, rank: PipelineRank, op: Op) -> None:
        """Send a message to the pipeline rank `op.peer`."""
        self._post(rank, op, (rank.number, op.peer))

    def receive(self, rank: PipelineRank, op: Op) -> None:
        """Post the receive of a message from the pipeline rank `op.peer`."""
        self._post(rank, op, (op.peer, rank.number))

    def _arrival(self, rank: PipelineRank, op: Op) -> F64:
        """Issue the operation; return when its kernel begins: after the compute queued before it and all of `after`."""
        rank.host = rank.host + self.host.collective
        row = rank.row
        rank.times.issued[row] = rank.host
        ready = np.maximum(rank.host + self.host.latency, rank.free)
        for index in op.after:
            ready = np.maximum(ready, rank.ended(index))
        return ready

    def _transfer_ns(self, rank: PipelineRank, op: Op) -> F64 | float:
        took: F64 | float = op.ns
        noise = rank.transfer_noise
        if noise is not None:
            took = took * noise[rank.order[rank.at]].astype(np.float64)
        return took

    @staticmethod
    def _disturbed(post: Post) -> Post:
        """Return the call as its partners see it: one that is left out or contradicts theirs never comes."""
        conditions = post.rank.conditions
        post.left_out = [place for place, index in conditions.skips if index == post.index]
        never = post.left_out + [place for place, index in conditions.breaks if index == post.index]
        if never:
            post.ready = post.ready.copy()
            post.ready[never] = np.inf
        return post

    def _join(self, op: Op, post: Post) -> None:
        """Add a call to a collective over several pipeline ranks; the last one gives all of them its end."""
        members = op.members or tuple(range(self.grid.stages))
        base = (op.group, op.label, members, post.step)
        nth = self._numbers[*base, post.rank.number] = self._numbers.get((*base, post.rank.number), 0) + 1
        key = (*base, nth)
        posts = self._joint.setdefault(key, [])
        posts.append(post)
        post.rank.streams[op.stream] = None
        if len(posts) < len(members):
            return
        del self._joint[key]
        end = self._together(posts, op)
        for each in posts:
            self._finish_collective(each, op, end)

    def _together(self, posts: Sequence[Post], op: Op) -> F64:
        """Return when a collective is done, ns, (width,): the last member's begin and one transfer."""
        shape, dims = self.grid.folded, self.grid.over(op.group)
        latest = np.full((1, 1, 1, 1), -np.inf)
        for post in posts:
            latest = np.maximum(latest, post.ready.reshape(shape).max(axis=dims, keepdims=True))
            planted = post.rank.conditions
            sends = planted.sends if op.label == "all_to_all" else None
            apart = (self._between_hosts(posts, dims, ns) for ns in (planted.network, sends))
            for delay in (planted.link, *apart):
                if delay is not None:
                    extra = delay.reshape(shape).max(axis=dims, keepdims=True)
                    post.ns = np.asarray(post.ns + np.broadcast_to(extra, shape).reshape(-1))
        took: F64 | float = posts[0].ns
        for post in posts[1:]:
            took = np.maximum(took, post.ns) if post.rank.conditions.delays else took
        if isinstance(took, np.ndarray):
            first = tuple(slice(0, 1) if i in dims else slice(None) for i in range(len(shape)))
            took = took.reshape(shape)[first]
        return np.asarray(np.broadcast_to(latest + took, shape).reshape(-1))

    def _between_hosts(self, posts: Sequence[Post], dims: tuple[int, ...], delay: F64 | None) -> F64 | None:
        """Return the `delay` of transfers, 0 where all members of a group are on one host; (width,)."""
        shape = self.grid.folded
        if delay is None:
            return None
        nodes = np.stack([self.grid.nodes(each.rank.number).reshape(shape) for each in posts])
        over = (0, *(dim + 1 for dim in dims))
        apart = nodes.max(axis=over, keepdims=True) > nodes.min(axis=over, keepdims=True)
        return np.where(np.broadcast_to(apart[0], shape).reshape(-1), delay, 0.0)

    def _finish_collective(self, post: Post, op: Op, end: F64) -> None:
        arrived = post.rank.times.start[post.row].copy()
        post.rank.streams[op.stream] = self._end(post, arrived, end)

    def _post(self, rank: PipelineRank, op: Op, way: tuple[int, int]) -> None:
        """Post one end of a message; `way` is (sender, receiver). Every pair of ends that is there is delivered."""
        if op.kind is Kind.RECV:  # posted ahead of the compute queued before it
            rank.host = rank.host + self.host.collective
            rank.times.issued[rank.row] = rank.host
            ready = rank.host + self.host.latency
        else:
            ready = self._arrival(rank, op)
        post = Post(rank, rank.at, rank.row, rank.step, ready, self._transfer_ns(rank, op))
        rank.times.start[rank.row] = ready
        post = self._disturbed(post)
        if rank.conditions.link is not None:
            post.ns = post.ns + rank.conditions.link
        apart = self.grid.nodes(way[0]) != self.grid.nodes(way[1])
        for delay in (rank.conditions.network, rank.conditions.sends if op.kind is Kind.SEND else None):
            if delay is not None:
                post.ns = post.ns + np.where(apart, delay, 0.0)
        posts = self._messages.setdefault(frozenset(way), {number: deque() for number in way})
        posts[rank.number].append(post)
        one, other = (posts[number] for number in way)
        while one and other and _kind(one[0]) is not _kind(other[0]):
            ends = one.popleft(), other.popleft()
            self._deliver(*(ends if _kind(ends[0]) is Kind.SEND else ends[::-1]))

    def _deliver(self, send: Post, receive: Post) -> None:
        """End a message on both sides, one transfer after the later side; a side begins when its stream is free."""
        a, b = send.rank.program.ops[send.index], receive.rank.program.ops[receive.index]
        if (a.micro_batch, a.backward) != (b.micro_batch, b.backward):
            raise ScheduleError(
                "schedule",
                f"pipeline rank {receive.rank.number} receives micro-batch {b.micro_batch} where "
                f"rank {send.rank.number} sends {a.micro_batch}",
                "receive in the order of the sends",
            )
        took = np.maximum(send.ns, receive.ns) if receive.rank.conditions.delays else send.ns
        sides = [(post, op.stream, _free(post.rank, op.stream)) for post, op in ((send, a), (receive, b))]
        end = np.maximum(*(np.maximum(post.ready, free) for post, _, free in sides)) + took
        receive.rank.transfers[receive.index] = took
        for post, stream, free in sides:
            started = np.maximum(post.rank.times.start[post.row], free)
            post.rank.times.start[post.row] = started
            post.rank.streams[stream] = self._end(post, started, end)

    def _end(self, post: Post, arrived: F64, end: F64) -> F64:
        """Note the end of a communication; return it as the streams of the rank see it, ns.

        A rank that left the call out goes on as if the call had been made and had ended.
        """
        tails = post.rank.leaving_ns
        if tails is not None:
            end = end + tails[post.row % len(tails)]
        times = post.rank.times
        if post.left_out:
            end = end.copy()
            end[post.left_out] = arrived[post.left_out]
        post.rank.finish(post.index, post.row, end)
        if post.left_out:
            for table in (times.issued, times.start, times.end):
                table[post.row, post.left_out] = np.inf
        self._wake(post.rank)
        return end

    def _wake(self, rank: PipelineRank) -> None:
        if rank.parked:
            rank.parked = False
            self._ready.append(rank)


def _free(rank: PipelineRank, stream: str) -> F64 | float:
    """Return when the last communication of a stream has ended on its rank, ns."""
    ended = rank.streams.get(stream)
    return 0.0 if ended is None else ended


def _kind(post: Post) -> Kind:
    return post.rank.program.ops[post.index].kind
