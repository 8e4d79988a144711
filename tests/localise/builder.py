"""Builds the program of one rank: kernels, collectives, messages and waits, with noise and faults in their times."""

from collections import defaultdict
from random import Random

from tests.localise.calls import Call, Collective, Kernel, Messages, Part, Pause, Sync, Wait
from tests.localise.faults import Faults
from tests.localise.job import US, Job

OWN_STREAM_UP_TO = (2, 7)
CLASSES = {"gemm": 1.0, "attention": 0.7, "norm": 0.5, "elementwise": 0.4, "adam": 0.5}
AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dpi", "dpo"),
    "dpcp": ("dpi", "dpo", "cp"),
    "shard": ("dpi", "cp"),
    "replicate": ("dpo",),
    "ep": ("dpi",),
    "edp": ("dpo",),
    "mp": ("tp", "pp"),
    "world": ("tp", "cp", "pp", "dpi", "dpo"),
}
"""Families of groups and the axes along which their members differ."""


class Builder:
    """Collects the calls of one rank."""

    def __init__(self, job: Job, rank: int, faults: Faults) -> None:
        self.job, self.rank, self.faults = job, rank, faults
        self.random = Random(f"{job.seed}-{rank}")
        self.coords = job.layout.coords(rank)
        self.stage = self.coords["pp"]
        self.chip = 1 + Random(f"{job.seed}-chip-{rank}").gauss(0, 0.003)
        self.calls: list[Call] = []
        self.counts: dict[tuple, int] = defaultdict(int)
        self.groups = {family: job.layout.group(rank, axes) for family, axes in AXES.items()}
        self.step, self.thread, self.note = 0, "main", ""
        self.stumble = 0
        self.hiccups: dict[tuple, int] = {}

    def host(self, base: int) -> int:
        """Host time of a call, in ns; nodes of a CUDA graph cost none of their own."""
        if self.note == "graph":
            return 300
        jitter = min(max(self.random.gauss(1, 0.15), 0.6), 3.0)
        return round(base * jitter * self.faults.host(self.rank, self.step))

    def kernel(self, what: str, work: float, stream: str = "compute") -> int:
        """Launch compute of `work` ns; its handle."""
        jitter = max(self.random.gauss(1, self.job.costs.noise), 0.9)
        factor = self.faults.compute(self.rank, self.step)
        ns = round(work * jitter * self.chip * factor) + self.stumble
        self.stumble = 0
        host = self.host(self.job.costs.kernel_host)
        return self.add(
            Kernel(host, self.thread, self.note, stream, max(ns, US), what, touched=CLASSES[what])
        )

    def add(self, call: Call) -> int:
        """Append a call; its handle."""
        self.calls.append(call)
        return len(self.calls) - 1

    def collective(
        self,
        op: str,
        family: str,
        elements: int,
        transfer: float,
        *,
        sync: bool = True,
        side: str | None = None,
        caller: str = "compute",
        splits: tuple = ((), ()),
    ) -> int | None:
        """Launch a collective of this rank's group of a family; its handle, or None in a group of one.

        With `sync` the caller's stream waits at once. `side` is a stream that the framework itself gives it.
        """
        group = self.groups[family]
        if len(group) == 1:
            return None
        self.counts[group, "c"] += 1
        own = side or f"nccl:{family}"
        inline = sync and side is None and self.job.torch > OWN_STREAM_UP_TO
        slow = self.faults.transfer(group, self.step)
        transfer += self.hiccup(group)
        jitter = Random(f"{self.job.seed}-{group}-{self.counts[group, 'c']}").uniform(0.95, 1.05)
        handle = self.add(
            Collective(
                self.host(self.job.costs.comm_host),
                self.thread,
                self.note,
                caller if inline else own,
                caller,
                group,
                (group, self.counts[group, "c"]),
                family,
                op,
                round(transfer * slow * jitter) + 8 * US,
                elements,
                splits,
                sync,
            )
        )
        if sync and not inline:
            self.wait(handle, caller)
        return handle

    def wait(self, handle: int | None, stream: str = "compute") -> None:
        """Let a stream wait for an operation."""
        if handle is not None:
            self.add(Wait(self.host(4 * US), self.thread, self.note, stream, handle))

    def exchange(self, messages: list[tuple[bool, int]], *, batched: bool, family: str = "pp") -> list[int]:
        """Launch messages `(send, peer)` as one batch, or each alone; handles."""
        costs = self.job.costs
        handles = []
        for several in [messages] if batched else [[message] for message in messages]:
            parts = [self.part(send, peer) for send, peer in several]
            group = self.groups[family]
            pair = tuple(sorted((self.rank, several[0][1])))
            apart = batched if self.job.lazy else None
            alone = self.job.lazy and not batched
            handles.append(
                self.add(
                    Messages(
                        self.host(costs.comm_host * (1 + len(parts)) // 2),
                        "main",
                        self.note,
                        f"p2p:{family}:{pair}" if alone else f"p2p:{family}",
                        "compute",
                        group,
                        family,
                        (family, group, apart),
                        parts,
                        batched,
                    )
                )
            )
        return handles

    def hiccup(self, group: tuple[int, ...]) -> int:
        """Ns that a group's first operation of the step takes once more than usual."""
        if self.hiccups.get(group) == self.step:
            return 0
        self.hiccups[group] = self.step
        return sum(
            fault.ns
            for fault in self.faults.faults
            if fault.kind == "hiccup" and fault.ranks == frozenset(group) and fault.active(self.step)
        )

    def part(self, send: bool, peer: int) -> Part:
        """One message to or from a rank."""
        elements = self.job.costs.message_elements
        pair = (min(self.rank, peer), max(self.rank, peer))
        slow = self.faults.transfer(pair, self.step)
        transfer = (
            round(self.job.costs.message * slow)
            + 12 * US
            + (self.hiccup(pair) if send and self.rank == pair[0] else 0)
        )
        return Part(send, peer, elements * 2, elements, transfer)

    def pause(self, ns: int, what: str) -> None:
        """Host work that launches nothing."""
        self.add(Pause(ns, self.thread, self.note, what))

    def sync(self, stream: str | None = None, what: str = "cudaDeviceSynchronize") -> None:
        """Block the host until a stream or the device is idle."""
        self.add(Sync(3 * US, self.thread, self.note, stream, what))
