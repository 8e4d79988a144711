"""Nodes of time: each begins when the last of those that it waits for has ended."""

import heapq
from collections.abc import Iterable

HOST, KERNEL, ENTER, TRANSFER, LEAVE = range(5)
"""A host call, a kernel, a member that enters a transfer, the transfer, a member that leaves it."""


class Graph:
    """Nodes by number; times are in µs."""

    def __init__(self, ranks: int, contention: float) -> None:
        self.contention = contention
        self.communicating = [0] * ranks
        self.kind: list[int] = []
        self.rank: list[int] = []
        self.duration: list[float] = []
        self.compute: list[bool] = []
        self.waits_for: list[int] = []
        self.followers: list[list[int]] = []
        self.begin: list[float] = []
        self.end: list[float] = []

    def add(
        self,
        kind: int,
        rank: int,
        duration: float,
        after: Iterable[int | None] = (),
        *,
        compute: bool = False,
    ) -> int:
        """The number of a new node, which waits for those `after` it; None among these is nothing to wait for."""
        node = len(self.kind)
        self.kind.append(kind)
        self.rank.append(rank)
        self.duration.append(duration)
        self.compute.append(compute)
        self.waits_for.append(0)
        self.followers.append([])
        for earlier in after:
            if earlier is not None:
                self.follow(earlier, node)
        return node

    def follow(self, earlier: int, later: int) -> None:
        """Let a node wait for another."""
        self.followers[earlier].append(later)
        self.waits_for[later] += 1

    def run(self) -> None:
        """Fill in `begin` and `end`; raises RuntimeError where nodes wait for each other in a circle."""
        self.begin = [0.0] * len(self.kind)
        self.end = [0.0] * len(self.kind)
        left = self.waits_for.copy()
        ready = [(0.0, node) for node, count in enumerate(left) if not count]
        done = 0
        while ready:
            now, node = heapq.heappop(ready)
            done += 1
            ended = self.end[node] = now + self.lasting(node)
            for later in self.followers[node]:
                self.begin[later] = max(self.begin[later], ended)
                left[later] -= 1
                if not left[later]:
                    heapq.heappush(ready, (self.begin[later], later))
        if done != len(self.kind):
            raise RuntimeError(f"{len(self.kind) - done} of {len(self.kind)} nodes wait for each other")

    def lasting(self, node: int) -> float:
        """The duration of a node that begins now: compute is slower while its rank communicates."""
        rank, kind = self.rank[node], self.kind[node]
        if kind == KERNEL and self.compute[node] and self.communicating[rank]:
            return self.duration[node] * self.contention
        self.communicating[rank] += (kind == ENTER) - (kind == LEAVE)
        return self.duration[node]
