"""One case: a job, its faults, the truth by simulation, and the files."""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

from tests.localise.calls import Collective, Kernel, Messages
from tests.localise.engine import Machine
from tests.localise.faults import GUILTY, INNOCENT, Draw, Faults, draw_faults, possible
from tests.localise.files import FIRST_STEP, GAP_STEPS, write
from tests.localise.job import HUGE, Job, draw
from tests.localise.styles import programs
from tests.localise.subsets import draw_subset

LEAST = 1.03
"""The least slowdown that a fault of a case should cause; weaker draws are made stronger."""
COUNTS = 1.02
"""A fault below this costs nothing that anybody should be named for: it hides behind slack."""
TRIES = 5
STRONGER = 1.8
TOLD = 0.8
"""Share of cases in which the user gives the mesh, among those whose traces name no groups."""
INNOCENCE = 0.25
"""Share of cases with nobody to blame."""
TIGHT = 0.65
"""Share of the step that launches take on a host that is nearly too slow."""


NEXT_SEED = 10**9
"""From a seed whose job cannot have the kind asked for to the next that is tried."""
MOST_DRAWS = 300


ALIKE = 3
"""Links of one kind of which one can be called slow."""


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
    steps: tuple[tuple[int, int, int], ...] = ()
    """Of each recorded step the number that traces give it, and its time with the fault and without it, ns."""

    @property
    def form(self) -> str:
        """Style and torch version, in words of a table."""
        return f"{self.job.style} {'.'.join(map(str, self.job.torch))}"


def step_lengths(job: Job, machine: Machine) -> list[int]:
    """Return the time of each recorded step, ns: between the ends of the last GPU work of all ranks."""
    ends = [0] * (2 + job.steps)
    for place in machine.places.values():
        seen = -1
        for index, call in enumerate(place.program):
            seen += getattr(call, "what", "") == "step"
            if (op := place.ops.get(index)) is not None and seen <= job.steps:
                ends[seen + 1] = max(ends[seen + 1], op.end)
    ends = list(accumulate(ends, max))
    return [end - begin for begin, end in pairwise(ends[1:])]


def step_time(job: Job, machine: Machine) -> float:
    """Return the mean time of the recorded steps, ns."""
    return sum(step_lengths(job, machine)) / job.steps


def simulate(job: Job, faults: Faults) -> Machine:
    """The job after it ran."""
    costs = job.costs
    return Machine(programs(job, faults), costs.contention, costs.capacity, job.queue).run()


def tightened(job: Job, calm: Machine) -> Job:
    """The job with host times that nearly bind."""
    place = next(iter(calm.places.values()))
    launches = sum(isinstance(call, Kernel) for call in place.program)
    others = sum(call.host for call in place.program if not isinstance(call, Kernel))
    room = TIGHT * step_time(job, calm) * (job.steps + 2) - others
    if room <= 0 or job.has("graphs"):
        return job
    host = max(job.costs.kernel_host, int(room / launches))
    return replace(job, costs=replace(job.costs, kernel_host=host))


def links(machine: Machine) -> tuple[tuple[int, ...], ...]:
    """Groups and pairs between which data moves, where at least two others do the same and say what is usual."""
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for rank, place in machine.places.items():
        for call in place.program:
            if isinstance(call, Collective) and call.elements > 1:
                found[call.family].add(call.group)
            elif isinstance(call, Messages):
                pairs = {(min(rank, part.peer), max(rank, part.peer)) for part in call.parts}
                found["messages"] |= pairs
    return tuple(sorted(link for many in found.values() if len(many) >= ALIKE for link in many))


def fitting(seed: int, kind: str | None, world: int | None) -> Job:
    """The job of a seed; where a kind is asked for, the first of some that can have it."""
    jobs = (draw(seed + n * NEXT_SEED, world) for n in range(MOST_DRAWS))
    first = draw(seed, world)
    return first if kind is None else next((job for job in jobs if possible(kind, job)), first)


def make(seed: int, kind: str | None = None, world: int | None = None) -> Case:
    """The case of a seed."""
    random = Random(f"{seed}-case")
    job = fitting(seed, kind, world)
    kinds = INNOCENT if random.random() < INNOCENCE else GUILTY
    kind = kind or random.choice([name for name in kinds if possible(name, job)])
    job = replace(job, documents=kind == "documents" or (job.documents and kind in INNOCENT))
    job = replace(job, hot=kind == "hot_experts")
    calm = simulate(job, Faults())
    kind = "slow_compute" if kind == "slow_link" and not links(calm) else kind
    if job.has("tight") or kind == "slow_host":
        job = tightened(job, calm)
        calm = simulate(job, Faults())
    severity = random.choice((0.035, 0.05, 0.08, 0.12, 0.2, 0.4))
    machine, base, faults, slowdown = calm, calm, Faults(), 1.0
    for _ in range(TRIES if job.layout.world <= HUGE else 2):
        faults = draw_faults(
            Draw(job, Random(f"{seed}-fault"), severity, int(step_time(job, calm)), links(calm)), kind
        )
        machine = simulate(job, faults) if faults.faults else calm
        fixed = faults.without(set(faults.culprits()))
        base = simulate(job, fixed) if fixed.faults else calm
        slowdown = step_time(job, machine) / step_time(job, base) if faults.culprits() else 1.0
        if slowdown >= LEAST or not faults.culprits():
            break
        severity *= STRONGER
    culprits = faults.culprits()
    if culprits and slowdown < COUNTS:
        culprits, slowdown, kind = (), 1.0, f"{kind}_slack"
    subset, recorded = draw_subset(job, culprits, random)
    told = (job.torch < (2, 3) or job.has("gpu_only")) and random.random() < TOLD
    steps = numbered(job, machine, base)
    return Case(seed, job, kind, faults, slowdown, culprits, recorded, subset, machine, told, steps)


def numbered(job: Job, machine: Machine, base: Machine) -> tuple[tuple[int, int, int], ...]:
    """Return each step's number in the traces and its time on both machines, ns; a second capture begins later."""
    later = job.steps // 2 if job.has("captures") else job.steps
    numbers = [FIRST_STEP + n + GAP_STEPS * (n >= later) for n in range(job.steps)]
    return tuple(zip(numbers, step_lengths(job, machine), step_lengths(job, base), strict=True))


def repriced(case: Case, named: set[int]) -> float:
    """The slowdown that these ranks alone cause."""
    fixed = simulate(case.job, case.faults.without(named))
    return step_time(case.job, case.machine) / step_time(case.job, fixed)


def save(case: Case, folder: Path) -> None:
    """Write the case's files."""
    folder.mkdir(parents=True, exist_ok=True)
    write(case.job, case.machine, folder, case.recorded)
