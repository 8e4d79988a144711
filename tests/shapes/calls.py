"""What a trace shows of a program: calls of the host, and the nodes of the device that they launch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its number, what torch calls its description, its ranks in order."""

    number: int
    description: str
    ranks: tuple[int, ...]

    def place(self, rank: int) -> int:
        """A rank's place in the group."""
        return self.ranks.index(rank)

    def beside(self, rank: int, by: int) -> int:
        """The rank that stands `by` places further in the ring."""
        return self.ranks[(self.place(rank) + by) % len(self.ranks)]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the host: its node and its thread (0 is the main one, 1 autograd's)."""

    host: int
    thread: int


@dataclass(frozen=True, slots=True)
class KernelCall(Call):
    """A call that launches a kernel, or a copy of so many bytes."""

    op: str
    launch: str
    node: int
    name: str
    stream: str
    copied: int


@dataclass(frozen=True, slots=True)
class CollectiveCall(Call):
    """A call of a collective."""

    group: Group
    op: str
    elements: tuple[int, int]
    dtype: str
    enter: int
    leave: int
    stream: str
    number: int
    waited: bool
    splits: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a message."""

    send: bool
    peer: int
    elements: int


@dataclass(frozen=True, slots=True)
class MessagesCall(Call):
    """A call that sends, receives, or does both in one batch."""

    group: Group
    messages: tuple[Message, ...]
    dtype: str
    enter: int
    leave: int
    stream: str
    number: int
    batched: bool


@dataclass(frozen=True, slots=True)
class SpinCall(Call):
    """A call of a kernel that communicates through memory of its peers: neither torch nor NCCL records it."""

    name: str
    enter: int
    leave: int
    stream: str


@dataclass(frozen=True, slots=True)
class GraphCall(Call):
    """A call that launches a CUDA graph: nodes with the names of their kernels, on one stream."""

    nodes: tuple[tuple[int, str], ...]
    stream: str


@dataclass(frozen=True, slots=True)
class SyncCall(Call):
    """A call that waits for the device; it begins when the node `begin` has ended."""

    name: str
    begin: int


@dataclass(frozen=True, slots=True)
class RuntimeCall(Call):
    """A call of the CUDA runtime alone."""

    name: str


@dataclass(frozen=True, slots=True)
class Span:
    """An annotation from the begin of one node to the end of another."""

    name: str
    thread: int
    first: int
    last: int
    category: str = "user_annotation"
