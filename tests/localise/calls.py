"""What a host does, one call after another: the instructions that a program is made of."""

from dataclasses import dataclass, field


@dataclass
class Call:
    """A call that takes the host `host` ns; `thread` is "main" or "backward"."""

    host: int
    thread: str = "main"
    note: str = ""
    """A span that encloses the call in the trace (several calls with one note make one span)."""


@dataclass
class Kernel(Call):
    """Compute: `work` ns on `stream`; `touched` is how much contention stretches it."""

    stream: str = "compute"
    work: int = 0
    what: str = "gemm"
    touched: float = 1.0


@dataclass
class Collective(Call):
    """A collective among `group`; `key` is the same on all members and on nobody else."""

    stream: str = "compute"
    caller: str = "compute"
    group: tuple[int, ...] = ()
    key: tuple = ()
    family: str = ""
    op: str = "all_reduce"
    transfer: int = 0
    elements: int = 0
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    sync: bool = False
    """Whether the caller waits at once (async_op=False)."""


@dataclass
class Part:
    """One message of a kernel."""

    send: bool
    peer: int
    size: int
    elements: int
    transfer: int
    tag: int = 0


@dataclass
class Messages(Call):
    """One SendRecv kernel: a batch, or one message."""

    stream: str = "p2p"
    caller: str = "compute"
    group: tuple[int, ...] = ()
    family: str = ""
    channel: tuple = ()
    parts: list[Part] = field(default_factory=list)
    batched: bool = True


@dataclass
class Wait(Call):
    """Let `stream` wait for the operation of the call with index `handle`."""

    stream: str = "compute"
    handle: int = 0


@dataclass
class Sync(Call):
    """Block the host until one stream (or, with None, the device) is idle."""

    stream: str | None = None
    what: str = "cudaDeviceSynchronize"


@dataclass
class Pause(Call):
    """Host work that launches nothing; `what` is how it shows: gap, gc, data, step, end."""

    what: str = "gap"
