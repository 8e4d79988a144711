"""What the engine runs on: conditions, noise, and the state of one pipeline rank, of messages and of times."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from reftrain.simulate.grid import F64
from reftrain.simulate.program import Kind, Op, Program

F32 = npt.NDArray[np.float32]
WAITS: Final = ("tp", "cp", "dp", "pp", "bubble", "world", "host")
"""What a rank's compute stream stands still for; `pp` is the transfer of messages, `bubble` the wait for them."""
LAUNCH_QUEUE: Final = 1024
"""Kernels that the host may have launched ahead on a stream: then a launch blocks (CUDA's queue of a channel)."""


@dataclass(frozen=True)
class HostCosts:
    """Host times, ns: to launch a kernel, to call a collective, and from a launch to the kernel's start."""

    launch: float = 0.0
    collective: float = 0.0
    latency: float = 0.0


@dataclass
class Conditions:
    """What disturbs one pipeline rank in one step; arrays are (width,), None where nothing does.

    `stops`, `skips` and `breaks` hold (place, operation): the host never issues it or anything after; it is left
    out; its call contradicts the others' so that it never ends.
    """

    factor: F64 | None = None  # of compute time
    attention: dict[int, F64] = field(default_factory=dict)  # by micro-batch: factor of attention's time
    launch: F64 | None = None  # host ns added to every kernel launch
    pauses: list[tuple[F64, int]] = field(default_factory=list)  # (ns, once every so many segments)
    late: F64 | None = None  # host ns added to loading
    link: F64 | None = None  # ns added to every transfer that the rank takes part in
    stops: list[tuple[int, int]] = field(default_factory=list)
    skips: list[tuple[int, int]] = field(default_factory=list)
    breaks: list[tuple[int, int]] = field(default_factory=list)


class Noise(Protocol):
    """Random deviations, the same whatever is planted: factors of kernel, transfer, fetch and launch times."""

    def compute(self, stage: int, step: int, count: int) -> F32 | None:
        """Factors of `count` kernels, (count, width)."""

    def transfer(self, stage: int, step: int, count: int) -> F32 | None:
        """Factors of `count` transfers, (count, width), equal within a group only as far as it is asked for."""

    def tail(self, stage: int, step: int) -> F32 | None:
        """Time until each rank has left a collective, ns; (tails, width)."""

    def load(self, stage: int, step: int) -> F64 | None:
        """Factors of loading, (width,)."""


@dataclass
class StageTimes:
    """Times of one pipeline rank, ns from the job's begin, infinite for what never happened.

    Rows are operations, step after step; columns the ranks in array order. A merged compute operation's start is
    its end less its kernels' time.
    """

    issued: F64
    start: F64
    end: F64
    waits: dict[str, F64]  # (steps, width) ns by WAITS
    bounds: F64  # (steps + 1, width): begin, and end of each step on its host


class Lane:
    """State of one pipeline rank."""

    def __init__(self, number: int, program: Program, width: int, steps: int) -> None:
        self.number, self.program = number, program
        self.count = len(program.ops)
        self.step = self.at = 0
        self.host = np.zeros(width)
        self.free = np.zeros(width)  # end of the compute stream
        self.streams: dict[str, F64 | None] = {}  # end of each stream, None while it is unknown
        self.ends: list[F64 | None] = [None] * self.count
        self.transfers: dict[int, F64 | float] = {}  # of receives, to tell transfer from bubble
        self.parked = False
        self.segments = 0
        self.launched = 0  # kernels on the compute stream so far
        self.queued: deque[tuple[int, F64]] = deque()  # launches up to an operation, and its start
        rows = steps * self.count
        self.times = StageTimes(
            np.full((rows, width), np.inf),
            np.full((rows, width), np.inf),
            np.full((rows, width), np.inf),
            {name: np.zeros((steps, width)) for name in WAITS},
            np.zeros((steps + 1, width)),
        )
        self.tables: list[F32 | None] = [None, None, None]
        self.load: F64 | None = None
        self.conditions = Conditions()
        self.order = positions(program.ops)

    def ended(self, index: int) -> F64:
        """When an operation of this step ends; it is known, or the lane would be parked."""
        end = self.ends[index]
        if end is None:
            raise AssertionError("a lane is parked until it is known")
        return end

    @property
    def row(self) -> int:
        """Row of the present operation."""
        return self.step * self.count + self.at


def positions(ops: Sequence[Op]) -> list[int]:
    """Of each operation, how many of its kind (kernel or communication) stand before it."""
    compute = transfer = 0
    out = []
    for op in ops:
        if op.kind is Kind.COMPUTE:
            out.append(compute)
            compute += 1
        elif op.kind in (Kind.COLLECTIVE, Kind.SEND, Kind.RECV):
            out.append(transfer)
            transfer += 1
        else:
            out.append(0)
    return out


@dataclass
class Post:
    """One end of a message: its operation and when it could begin."""

    lane: Lane
    index: int
    row: int
    step: int
    ready: F64
    ns: F64 | float
    left_out: list[int] = field(default_factory=list)  # places whose ranks never make the call


@dataclass
class Channel:
    """Messages from one pipeline rank to another, matched in order."""

    sends: deque[Post] = field(default_factory=deque)
    receives: deque[Post] = field(default_factory=deque)
    sent: F64 | float = 0.0  # end of the last one
    received: F64 | float = 0.0
