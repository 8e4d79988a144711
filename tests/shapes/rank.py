"""A rank's program: each call puts nodes into the job's graph."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.shapes.afflicted import Afflicted
from tests.shapes.calls import (
    Call,
    CollectiveCall,
    Group,
    KernelCall,
    Message,
    MessagesCall,
    RuntimeCall,
    Span,
    SyncCall,
)
from tests.shapes.graph import ENTER, HOST, KERNEL, LEAVE, TRANSFER, Graph
from tests.shapes.network import SIZES, chance, collective_us, eager, message_us, slowed
from tests.shapes.setting import Setting

COMPUTE = "compute"
QUEUE = 1000
"""Launches that wait on a device before the host has to wait."""
CALLERS_STREAM = (2, 8)
"""Since this torch, a collective that is waited for at once runs on its caller's stream."""


class Rank(Afflicted):
    """The program of one rank."""

    def __init__(
        self,
        setting: Setting,
        graph: Graph,
        transfers: dict[tuple[int, ...], int],
        number: int,
        shared: random.Random,
    ) -> None:
        super().__init__(setting, number)
        self.graph, self.transfers = graph, transfers
        self.chance = random.Random(setting.seed * 100003 + number)
        self.gpu_pace = 1 + shared.gauss(0, 0.004)
        self.host_pace = 1 + abs(shared.gauss(0, 0.04))
        self.thread = 0
        self.last: int | None = None
        self.window_end: int | None = None
        self.tails: dict[str, int] = {}
        self.waits: dict[str, list[int]] = {}
        self.last_of: dict[int, int] = {}
        self.launched: list[int] = []
        self.counts: dict[tuple[int, ...], int] = {}
        self.calls: list[Call] = []
        self.spans: list[Span] = []
        self.step_begins: dict[int, int] = {}
        self.updated: list[int] = []

    def noise(self, sigma: float | None = None) -> float:
        """A factor around 1; one in 250 is longer by up to 30 % more."""
        near = self.chance.gauss(0, self.setting.noise if sigma is None else sigma)
        rare, more = self.chance.random(), self.chance.random()
        return max(0.5, 1 + near) + (0.3 * more if rare < 0.004 else 0)

    def stall(self, what: str, luck: float = 0.5) -> None:
        """Stall the host as the fault says, and as happens without it."""
        us, always = self.stall_us(what), self.always_us(what)
        if us:
            self.host(0 if self.setting.clean else us * (0.6 + 0.8 * luck), exact=True)
        if always and self.turn():
            self.host(always * (0.6 + 0.8 * luck), exact=True)

    def host(self, us: float, after: Sequence[int | None] = (), *, exact: bool = False) -> int:
        """The node of a host call; `exact` is neither slowed nor subject to chance."""
        chance_of_call = self.noise(0.12)
        if not exact:
            us = us * chance_of_call * self.host_pace * self.factor("host")
        self.last = self.graph.add(HOST, self.number, us, [self.last, *after])
        return self.last

    @contextmanager
    def span(self, name: str, category: str = "user_annotation") -> Iterator[int]:
        """An annotation (or an operator) around calls; gives its first node."""
        thread, first = self.thread, self.host(0.8, exact=True)
        yield first
        self.spans.append(Span(name, thread, first, self.host(0.8, exact=True), category))

    @contextmanager
    def autograd(self) -> Iterator[None]:
        """Calls of autograd's thread."""
        self.thread = 1
        yield
        self.thread = 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A step of the profiler."""
        self.step_number = number
        with self.span(f"ProfilerStep#{number}") as first:
            self.step_begins[number] = first
            self.chance.random()  # for its place in the order of draws alone, by which seeds keep their jobs
            yield
            self.stall("log")
            self.updated.append(self.tails[COMPUTE])
        self.ended()
        if number in self.setting.saved:
            self.sync()

    def after(self, stream: str) -> list[int | None]:
        """What work on a stream waits for: the work before it, and what the stream was told to wait for."""
        return [self.tails.get(stream), *self.waits.get(stream, ())]

    def kernel(
        self,
        name: str,
        us: float,
        kind: str = "gemm",
        *,
        stream: str = COMPUTE,
        op: str = "aten::mm",
        launch: str = "cudaLaunchKernel",
        copied: int = 0,
    ) -> int:
        """The node of a kernel (`kind`: `gemm` or `memory`), or of a copy of so many bytes."""
        us = us * self.noise() * self.gpu_pace * self.factor("gpu")
        us *= self.factor("copy" if copied and kind == "gemm" else kind)
        full = self.launched[-QUEUE] if len(self.launched) >= QUEUE else None
        host = self.host(self.setting.host_us, [full])
        waits = [host, *self.after(stream)]
        self.waits.pop(stream, None)
        node = self.graph.add(KERNEL, self.number, us, waits, compute=not copied)
        self.tails[stream] = node
        self.launched.append(node)
        self.calls.append(KernelCall(host, self.thread, op, launch, node, name, stream, copied))
        return node

    def wait_stream(self, stream: str, other: str = "", node: int | None = None) -> None:
        """Let a stream wait for a node, or for the end of another stream as it is now."""
        node = self.tails.get(other) if node is None else node
        if node is not None:
            self.waits.setdefault(stream, []).append(node)

    def count(self, *key: int) -> int:
        """How often this was counted, with this time."""
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key]

    def transfer(self, key: tuple[int, ...], us: Callable[[], float]) -> int:
        """The node of a transfer, which its first member makes."""
        if key not in self.transfers:
            self.transfers[key] = self.graph.add(TRANSFER, -1, us())
        return self.transfers[key]

    def collective(
        self,
        group: Group,
        op: str,
        elements_in: int,
        elements_out: int,
        dtype: str = "BFloat16",
        *,
        waited: bool = True,
        caller: str = COMPUTE,
        moved: int | None = None,
        splits: tuple[str, str] = ("[]", "[]"),
    ) -> int:
        """The node at which this rank leaves a collective; `waited` lets its caller's stream wait for it at once."""
        number = self.count(group.number)
        in_place = self.setting.torch >= CALLERS_STREAM and waited
        stream = caller if in_place else f"nccl {group.number}"
        host = self.host(self.setting.host_us * 3.2)
        waits = [host, *self.after(stream), self.last_of.get(group.number)]
        self.waits.pop(stream, None)
        enter = self.graph.add(ENTER, self.number, 0.0, waits if in_place else waits + self.after(caller))
        size = max(elements_in, elements_out) * SIZES[dtype] if moved is None else moved
        together = self.ring(group, op, size, number)
        self.graph.follow(enter, together)
        leave = self.graph.add(LEAVE, self.number, 0.0, [together])
        jitter = self.graph.add(HOST, self.number, self.chance.random() * 1.5, [together])
        self.graph.follow(jitter, leave)
        self.tails[stream] = leave
        if self.setting.serial:
            self.last_of[group.number] = leave
        self.launched.append(leave)
        sizes = (elements_in, elements_out)
        self.calls.append(
            CollectiveCall(
                host, self.thread, group, op, sizes, dtype, enter, leave, stream, number, waited, splits
            )
        )
        if waited and not in_place:
            self.wait_stream(caller, node=leave)
        return leave

    def ring(self, group: Group, op: str, size: int, number: int) -> int:
        """The node of a collective's transfer."""
        key = (group.number, number)

        def lasting() -> float:
            us = collective_us(group.ranks, op, size, self.setting.per_host)
            us *= chance(self.setting.seed * 31, key, 0.03)
            least = collective_us(group.ranks, op, 0, self.setting.per_host)
            return self.slow_link(us, group.ranks, key, least)

        return self.transfer(key, lasting)

    def slow_link(
        self, us: float, ranks: Sequence[int], key: tuple[int, ...], least: float, *, message: bool = False
    ) -> float:
        """The time of a transfer, which is `least` without bytes, with the fault of this job."""
        fault = None if self.setting.clean else self.setting.fault
        if fault is None:
            return us
        near, luck = self.setting.per_host, random.Random(self.setting.seed * 41 + hash(key) % 99989).random()
        return slowed(
            us, fault, ranks, self.step_number, message=message, per_host=near, luck=luck, least=least
        )

    def wait(self, *nodes: int) -> None:
        """Let the stream of compute wait for each node."""
        for node in nodes:
            self.wait_stream(COMPUTE, node=node)
            self.calls.append(RuntimeCall(self.host(4.0), self.thread, "cudaStreamWaitEvent"))

    def messages(
        self, group: Group, messages: Sequence[Message], *, batched: bool = True, waited: bool = True
    ) -> list[int]:
        """Nodes at which messages are over: one of a batch, one each otherwise."""
        parts = [tuple(messages)] if batched else [(message,) for message in messages]
        left = [self.exchange(group, part, batched=batched) for part in parts]
        if waited:
            self.wait(*left)
        return left

    def exchange(self, group: Group, messages: tuple[Message, ...], *, batched: bool) -> int:
        """The node at which this rank leaves one kernel of messages."""
        ends = sorted((self.number, messages[0].peer))
        stream = f"nccl {group.number}" if batched else f"pair {group.number} {ends}"
        host = self.host(self.setting.host_us * (2.5 + 1.2 * len(messages)))
        waits = [host, *self.after(stream)]
        self.waits.pop(stream, None)
        enter = self.graph.add(ENTER, self.number, 0.0, waits + self.after(COMPUTE))
        leave = self.graph.add(LEAVE, self.number, 0.5, [enter])
        for message in messages:
            self.pass_on(group, message, enter, leave)
        self.tails[stream] = leave
        self.launched.append(leave)
        number = self.count(group.number, -1)
        self.calls.append(
            MessagesCall(
                host, self.thread, group, messages, "BFloat16", enter, leave, stream, number, batched
            )
        )
        return leave

    def pass_on(self, group: Group, message: Message, enter: int, leave: int) -> None:
        """Put one message between the nodes of this end."""
        ends = (self.number, message.peer) if message.send else (message.peer, self.number)
        key = (group.number, *ends, self.count(group.number, *ends, int(message.send)))
        size = message.elements * SIZES["BFloat16"]

        def lasting() -> float:
            us = message_us(*ends, size, self.setting.per_host)
            us *= chance(self.setting.seed * 37, key, 0.04)
            least = message_us(*ends, 0, self.setting.per_host)
            return self.slow_link(us, ends, key, least, message=True)

        together = self.transfer(key, lasting)
        self.graph.follow(enter, together)
        if message.send and eager(*ends, size, self.setting.per_host):
            together = self.graph.add(HOST, self.number, self.graph.duration[together], [enter])
        self.graph.follow(together, leave)

    def sync(self, name: str = "cudaDeviceSynchronize") -> None:
        """Let the host wait for everything on the device."""
        self.block(name, list(self.tails.values()))

    def item(self) -> None:
        """Let the host read one number from the device."""
        read = self.kernel(
            "Memcpy DtoH (Device -> Pageable)", 1.6, op="aten::item", launch="cudaMemcpyAsync", copied=4
        )
        self.block("cudaStreamSynchronize", [read])

    def block(self, name: str, nodes: Sequence[int]) -> None:
        """A call that returns when nodes have ended."""
        begin = self.host(0.5, exact=True)
        self.calls.append(SyncCall(self.host(1.5, nodes, exact=True), self.thread, name, begin))
