"""State of one pipeline rank while the engine runs, and the ends of communications between pipeline ranks."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from reftrain.simulate.conditions import F32, Conditions
from reftrain.simulate.grid import F64
from reftrain.simulate.program import Kind, Op, Program
from tracekit.axes import AXES

WAITS: Final = (*(axis for axis in AXES if axis != "pp"), "pp", "bubble", "world", "host")
"""Causes for which the compute stream of a rank is idle; `pp` is the transfer of messages, `bubble` the wait for a
message that has not been sent."""


@dataclass(frozen=True)
class OtherWork:
    """Work beside the program in one step: `kind` of `reftrain faults`, begin and end, (width,) ns; equal: none."""

    kind: str
    step: int
    begin: F64
    end: F64


@dataclass
class StageTimes:
    """Times of one pipeline rank, ns from the job's begin, infinite for an operation that never happened.

    Rows are operations, step after step; columns are the ranks in array order. The start of a merged compute operation
    is its end less the time of its kernels.
    """

    issued: F64
    start: F64
    end: F64
    waits: dict[str, F64]  # (steps, width) ns by WAITS
    bounds: F64  # (steps + 1, width): begin, and end of each step on its host
    others: list[OtherWork] = field(default_factory=list)  # work beside the program
    held: F64 | None = (
        None  # how long the host waited for its turn on its core in each operation; None: never
    )


class PipelineRank:
    """State of one pipeline rank while its program runs: clocks of host and streams, and the times so far."""

    def __init__(self, number: int, program: Program, width: int, steps: int) -> None:
        """Start before the first operation; `width` is the number of its ranks."""
        self.number, self.program = number, program
        self.count = len(program.ops)
        self.step = self.at = 0
        self.host = np.zeros(width)
        self.free = np.zeros(width)  # end of the last kernel of the compute stream
        self.streams: dict[str, F64 | None] = {}  # end of each stream, None while it is unknown
        self.ends: list[F64 | None] = [None] * self.count
        self.transfers: dict[int, F64 | float] = {}  # of receives, to tell transfer from bubble
        self.parked = False
        self.segments = self.allocations = 0
        self.ran = np.zeros(width)  # time for which the host used its core so far
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
        self.kernel_noise: F32 | None = None
        self.transfer_noise: F32 | None = None
        self.leaving_ns: F32 | None = None
        self.load_noise: F64 | None = None
        self.conditions = Conditions()
        self.paced: list[
            tuple[F64, float]
        ] = []  # of the step: (factor - 1) by rank, first ns of compute it holds for
        self.worked = np.zeros(width)  # ns of the step's compute so far, without these
        self.order = positions(program.ops)

    def ended(self, index: int) -> F64:
        """Return the end of an operation of this step; it is known, or the rank would be parked."""
        end = self.ends[index]
        if end is None:
            raise AssertionError("a pipeline rank is parked until it is known")
        return end

    def finish(self, index: int, row: int, end: F64) -> None:
        """Note the end of an operation; those of a step before have no `ends` any more."""
        self.times.end[row] = end
        if row >= self.step * self.count:
            self.ends[index] = end

    def begin_step(self, conditions: Conditions) -> None:
        """Take the conditions of the next step, and the pace of its devices from the time at which it begins."""
        self.conditions = conditions
        now_s = float(self.host.min()) / 1e9
        self.paced = [(held * (p.factor(now_s) - 1), p.ramp_s * 1e9) for p, held in conditions.paces]
        self.worked = np.zeros_like(self.host)

    def beside(self, kind: str, begin: F64, took: F64) -> F64:
        """Note work beside the program that takes so many ns from `begin` on; return its end, (width,)."""
        end = begin + took
        self.times.others.append(OtherWork(kind, self.step, begin, end))
        return end

    def wait_for_turn(self, used: F64 | float) -> None:
        """Let the host use its core for so many ns, and wait for others after each time slice."""
        before, self.ran = self.ran, self.ran + used
        if self.times.held is None:
            self.times.held = np.zeros_like(self.times.issued)
        for slice_ns, wait in self.conditions.turns:
            waits = (self.ran // slice_ns - before // slice_ns) * wait
            self.times.held[self.row] += waits
            self.host = self.host + waits

    @property
    def row(self) -> int:
        """Row of the present operation."""
        return self.step * self.count + self.at


def positions(ops: Sequence[Op]) -> list[int]:
    """Return the number of operations of the same kind (kernel or communication) before each operation."""
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
    """One rank's part in a communication: its operation, and when it could begin."""

    rank: PipelineRank
    index: int
    row: int
    step: int
    ready: F64
    ns: F64 | float
    left_out: list[int] = field(default_factory=list)  # places whose ranks never make the call
