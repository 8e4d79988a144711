"""One case: a job, its faults, the truth by simulation, and the files."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.localise.engine import Machine
from tests.localise.faults import Fault, Faults, draw_faults
from tests.localise.files import write
from tests.localise.job import Job, draw
from tests.localise.styles import programs

LEAST = 1.03
"""The least slowdown that a fault of a case should cause; weaker draws are made stronger."""

TOLD = 0.8
"""Share of cases in which the user gives the mesh, among those whose traces name no groups."""


@dataclass
class Case:
    """A case and its truth."""

    seed: int
    job: Job
    kind: str
    faults: Faults
    slowdown: float
    culprits: tuple[int, ...]
    recorded: tuple[int, ...]
    subset: str
    machine: Machine
    told: bool = False
    """Whether the user gives `--mesh`."""

    @property
    def form(self) -> str:
        """Style and torch version, in words of a table."""
        return f"{self.job.style} {'.'.join(map(str, self.job.torch))}"


def step_time(job: Job, machine: Machine) -> float:
    """Mean time of the recorded steps in ns: between the ends of the last GPU work of all ranks."""
    ends = []
    for number in (1, 1 + job.steps):
        latest = 0
        for place in machine.places.values():
            seen = -1
            for index, call in enumerate(place.program):
                if getattr(call, "what", "") == "step":
                    seen += 1
                if seen == number:
                    break
                op = place.ops.get(index)
                latest = max(latest, op.end if op else 0)
        ends.append(latest)
    return (ends[1] - ends[0]) / job.steps


def simulate(job: Job, faults: Faults) -> Machine:
    """The job after it ran."""
    return Machine(programs(job, faults), job.costs.contention, job.costs.capacity, job.queue).run()


def make(seed: int, kind: str | None = None) -> Case:
    """The case of a seed."""
    random = Random(f"{seed}-case")
    job = draw(seed)
    kind = kind or random.choices(("healthy", "slow_compute"), (1, 3))[0]
    severity = random.choice((0.04, 0.06, 0.1, 0.15, 0.25, 0.5))
    calm = simulate(job, Faults(job))
    machine, faults, slowdown = calm, Faults(job), 1.0
    for _ in range(4):
        if kind == "healthy":
            break
        faults = draw_faults(job, kind, severity)
        machine = simulate(job, faults)
        slowdown = step_time(job, machine) / step_time(job, calm)
        if slowdown >= LEAST:
            break
        severity *= 1.8
    culprits = tuple(sorted({rank for fault in faults.faults for rank in fault.ranks}))
    everybody = tuple(range(job.layout.world))
    told = job.torch < (2, 3) and random.random() < TOLD
    return Case(seed, job, kind, faults, slowdown, culprits, everybody, "all", machine, told)


def save(case: Case, folder: Path) -> None:
    """Write the case's files."""
    folder.mkdir(parents=True, exist_ok=True)
    write(case.job, case.machine, folder, case.recorded)


__all__ = ["Case", "Fault", "make", "save", "simulate", "step_time"]
