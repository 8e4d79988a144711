"""Calls beyond launches and NCCL: kernels that wait for peers' memory, CUDA graphs, work and waits of the host."""

from collections.abc import Sequence

from tests.shapes.calls import GraphCall, Group, SpinCall
from tests.shapes.graph import ENTER, HOST, KERNEL, LEAVE
from tests.shapes.network import NVLINK, chance, collective_us, message_us
from tests.shapes.rank import COMPUTE, QUEUE, Rank

SPIN = -7
"""What counts such kernels apart from NCCL's."""
PUSH = -8
"""What counts messages through a peer's memory."""
LEAST_US = 1.4
"""How long such a kernel takes that finds everything there."""
QUICKER = 0.8
"""How long a kernel of its own takes beside NCCL's."""
COPY_US = 4.0
"""How long a copy of nothing takes."""
COPIED = 0.8
"""The part of NVLINK that a copy engine reaches."""


def entered(rank: Rank, stream: str, host_us: float) -> tuple[int, int]:
    """The host's call and the node at which a kernel that waits for peers begins."""
    host = rank.host(host_us)
    enter = rank.graph.add(ENTER, rank.number, 0.0, [host, *rank.after(stream)])
    rank.waits.pop(stream, None)
    return host, enter


def left(rank: Rank, stream: str, name: str, nodes: tuple[int, int, int]) -> int:
    """The node at which a kernel ends, told as a call; nodes are host, enter, what it waits for."""
    host, enter, together = nodes
    jitter = rank.graph.add(HOST, rank.number, rank.chance.random() * 1.5, [together])
    least = rank.graph.add(HOST, rank.number, LEAST_US, [enter])
    leave = rank.graph.add(LEAVE, rank.number, 0.0, [least, jitter])
    rank.tails[stream] = leave
    rank.launched.append(leave)
    rank.calls.append(SpinCall(host, rank.thread, name, enter, leave, stream))
    return leave


def together(rank: Rank, group: Group, name: str, size: int, stream: str = COMPUTE) -> int:
    """The node at which a rank leaves a kernel that all members of a group leave together, `size` bytes moved."""
    host, enter = entered(rank, stream, rank.setting.host_us * 1.3)
    key = (group.number, SPIN, rank.count(group.number, SPIN))

    def lasting() -> float:
        least = collective_us(group.ranks, "_allgather_base", 0, rank.setting.per_host) * QUICKER
        us = collective_us(group.ranks, "_allgather_base", size, rank.setting.per_host) * QUICKER
        us *= chance(rank.setting.seed * 31, key, 0.03)
        return rank.slow_link(us, group.ranks, key, least)

    moved = rank.transfer(key, lasting)
    rank.graph.follow(enter, moved)
    return left(rank, stream, name, (host, enter, moved))


def push(rank: Rank, group: Group, name: str, peer: int, size: int, stream: str) -> int:
    """The node at which a rank has written `size` bytes to a peer; it waits for nobody."""
    host, enter = entered(rank, stream, rank.setting.host_us * 1.1)
    moved = pushed(rank, group, (rank.number, peer), size)
    rank.graph.follow(enter, moved)
    return left(rank, stream, name, (host, enter, moved))


def pull(rank: Rank, group: Group, name: str, peer: int, size: int, stream: str) -> int:
    """The node at which a rank has seen what its peer writes; it spins until then."""
    host, enter = entered(rank, stream, rank.setting.host_us * 1.1)
    return left(rank, stream, name, (host, enter, pushed(rank, group, (peer, rank.number), size)))


def pushed(rank: Rank, group: Group, ends: tuple[int, int], size: int) -> int:
    """The transfer of the next message from one rank to another."""
    number = rank.count(group.number, PUSH, *ends)
    key = (group.number, PUSH, *ends, number)

    def lasting() -> float:
        us = message_us(*ends, size, rank.setting.per_host) * chance(rank.setting.seed * 37, key, 0.04)
        least = message_us(*ends, 0, rank.setting.per_host)
        return rank.slow_link(us, ends, key, least, message=True)

    return rank.transfer(key, lasting)


def peer_copy(rank: Rank, peer: int, size: int, stream: str) -> int:
    """The node of a copy from a peer's memory."""
    key = (SPIN, rank.number, peer, rank.count(SPIN, peer))
    us = COPY_US + size / (NVLINK * COPIED)
    us = rank.slow_link(us, (peer, rank.number), key, COPY_US, message=True)
    name = "Memcpy PtoP (Device -> Device)"
    return rank.kernel(
        name, us, "link", stream=stream, op="aten::copy_", launch="cudaMemcpyAsync", copied=size
    )


def replay(rank: Rank, kernels: Sequence[tuple[str, float, str]], stream: str = COMPUTE) -> int:
    """The last node of a CUDA graph of kernels (name, µs, `gemm` or `memory`), launched by one call."""
    full = rank.launched[-QUEUE] if len(rank.launched) >= QUEUE else None
    host = rank.host(rank.setting.host_us * 1.6 + 0.3 * len(kernels), [full])
    nodes = []
    for name, us, kind in kernels:
        lasting = us * rank.noise() * rank.gpu_pace * rank.factor("gpu") * rank.factor(kind)
        waits = [host, *rank.after(stream)]
        rank.waits.pop(stream, None)
        node = rank.graph.add(KERNEL, rank.number, lasting, waits, compute=True)
        rank.tails[stream] = node
        nodes.append((node, name))
    rank.launched.append(nodes[-1][0])
    rank.calls.append(GraphCall(host, rank.thread, tuple(nodes), stream))
    return nodes[-1][0]


def on_host(rank: Rank, op: str, us: float) -> None:
    """Work of an operator on the host itself."""
    with rank.span(op, "cpu_op"):
        rank.host(us)


def poll(rank: Rank, node: int) -> None:
    """Let the host read memory until a kernel has written it, which no call shows."""
    rank.host(1.0, [node])
