"""Faults of known truth, as factors and extra times that a program is built with."""

from dataclasses import dataclass, field
from random import Random

from tests.localise.job import MS, Job

KINDS = ("healthy", "slow_compute")
"""Kinds of one fault; a case may have several."""


@dataclass(frozen=True)
class Fault:
    """One fault: whom it hits, how hard, and in which steps (None: all)."""

    kind: str
    ranks: frozenset[int]
    factor: float = 1.0
    ns: int = 0
    steps: frozenset[int] | None = None
    axis: str = ""

    def active(self, step: int) -> bool:
        """Whether it acts in a step."""
        return self.steps is None or step in self.steps


@dataclass(frozen=True)
class Faults:
    """All faults of a job; empty means healthy."""

    job: Job
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    def compute(self, rank: int, step: int, stage: int, what: str) -> float:
        """Factor on compute."""
        total = 1.0
        for fault in self.faults:
            if rank in fault.ranks and fault.kind in {"slow_compute", "long_stage"} and fault.active(step):
                total *= fault.factor
        return total

    def host(self, rank: int, step: int) -> float:
        """Factor on host times."""
        total = 1.0
        for fault in self.faults:
            if fault.kind == "slow_host" and rank in fault.ranks and fault.active(step):
                total *= fault.factor
        return total

    def transfer(self, rank: int, group: tuple[int, ...], step: int) -> float:
        """Factor on the transfer of an operation among a group."""
        total = 1.0
        for fault in self.faults:
            if fault.kind == "slow_link" and fault.ranks <= set(group) and fault.active(step):
                total *= fault.factor
        return total

    def stalls(self, rank: int, step: int, kind: str) -> int:
        """Ns of extra host time of a kind (`pauses`, `late_data`) in a step."""
        return sum(
            fault.ns
            for fault in self.faults
            if fault.kind == kind and rank in fault.ranks and fault.active(step)
        )


def draw_faults(job: Job, kind: str, severity: float) -> Faults:
    """Faults of a kind; `severity` is the slowdown aimed at, e.g. 0.1, whose truth the simulation gives."""
    random = Random(f"{job.seed}-fault")
    rank = random.randrange(job.layout.world)
    if kind == "healthy":
        return Faults(job)
    if kind == "slow_compute":
        return Faults(job, (Fault(kind, frozenset({rank}), 1 + severity * random.uniform(1.1, 1.8)),))
    raise ValueError(f"unknown fault {kind}; known: {', '.join(KINDS)}; times are in {MS} ns a ms")
