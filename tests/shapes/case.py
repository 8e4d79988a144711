"""A case: a job drawn from its seed, with its truth, and the files that a user would have."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.shapes.fault import Fault
from tests.shapes.job import Job
from tests.shapes.kineto import write
from tests.shapes.network import PER_HOST, host_of
from tests.shapes.setting import Habits, Setting
from tests.shapes.sheet import Recording

WARM = 1
"""Steps that run before those recorded."""


class Shape(Protocol):
    """What a framework makes ranks do."""

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls in these steps."""


@dataclass(frozen=True)
class Case:
    """A job as drawn; `uneven` says that its data are, so that an imbalance is true without a culprit."""

    seed: int
    name: str
    shape: Shape
    world: int
    torch: tuple[int, int]
    steps: tuple[int, ...]
    fault: Fault | None
    noise: float
    host_us: float
    contention: float
    habits: Habits
    recorded: tuple[int, ...]
    subset: str = "all"
    uneven: bool = False
    per_host: int = PER_HOST
    serial: bool = False
    background: Fault | None = None
    cycles: tuple[tuple[int, ...], ...] = ()
    """Steps of each capture, where the profiler recorded several times: a file for each."""

    @property
    def captures(self) -> tuple[tuple[int, ...], ...]:
        """Steps of each file of a rank."""
        return self.cycles or (self.steps,)

    @property
    def kind(self) -> str:
        """The kind of fault, `none` without one."""
        return self.fault.kind if self.fault else "none"

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that are slow, or whose links are."""
        return self.fault.ranks if self.fault else ()


@dataclass
class Made:
    """A case that has run; `slowdown` is how much longer its steps are than those of the same job without fault."""

    case: Case
    job: Job
    step_us: float
    clean_us: float
    groups: int = field(init=False)
    """How many sets of ranks communicated."""

    def __post_init__(self) -> None:
        used = {key[0] for key in self.job.transfers}
        self.groups = len({frozenset(self.job.groups[number].ranks) for number in used})

    @property
    def slowdown(self) -> float:
        """The share by which steps are longer."""
        return self.step_us / self.clean_us - 1


def run(case: Case, *, clean: bool = False) -> Job:
    """The job with all its times."""
    job = Job(
        Setting(
            case.seed,
            case.world,
            case.torch,
            noise=case.noise,
            host_us=case.host_us,
            contention=case.contention,
            fault=case.fault,
            clean=clean,
            per_host=case.per_host,
            serial=case.serial,
            background=case.background,
            saved=tuple(steps[-1] for steps in case.cycles),
        )
    )
    case.shape.program(job, range(case.steps[0] - WARM, case.steps[-1] + 1))
    job.run()
    return job


def make(case: Case) -> Made:
    """The case, with its truth."""
    job = run(case)
    step_us = job.step_us(WARM)
    clean_us = run(case, clean=True).step_us(WARM) if case.fault else step_us
    return Made(case, job, step_us, clean_us)


def save(made: Made, folder: Path) -> None:
    """Write the traces into a folder, and the truth beside it (`truth.json` of the folder above)."""
    case, drawn = made.case, random.Random(made.case.seed + 77)
    folder.mkdir(parents=True, exist_ok=True)
    began_us = 1712000000000000 + drawn.randrange(10**12)
    hosts: dict[int, tuple[float, float, str]] = {}
    for rank in case.recorded:
        host = host_of(rank, case.per_host)
        if host not in hosts:
            offset, drift = drawn.uniform(-4000, 4000), drawn.uniform(-8e-6, 8e-6)
            hosts[host] = offset, drift, f"node{host:02}-{drawn.choice('abcdef')}"
        offset, drift, name = hosts[host]
        process = 3000 + drawn.randrange(90000)
        for number, steps in enumerate(case.captures):
            named = file_name(case, rank, name, process, began_us // 1000 + number * 9000, drawn)
            recording = Recording(made.job, rank, steps, case.habits, began_us, (offset, drift), process)
            write(recording, folder / named)
    (folder.parent / "truth.json").write_text(json.dumps(truth(made), indent=1))


def file_name(case: Case, rank: int, host: str, process: int, began_ms: int, drawn: random.Random) -> str:
    """A trace's name, as TensorBoard's handler, torchtitan or a script of one's own gives it."""
    by_handler = f"{host}_{process}.{began_ms * 10**6 + drawn.randrange(10**6)}.pt.trace.json"
    if case.torch < (2, 3) and case.habits.names == "tb":
        by_handler = f"{host}_{process}.{began_ms + drawn.randrange(900)}.pt.trace.json"
    names = {"tb": by_handler, "titan": f"rank{rank}_trace.json", "hf": f"profile_{rank}.json"}
    return names[case.habits.names] + (".gz" if case.habits.packed else "")


def truth(made: Made) -> dict[str, object]:
    """What is known of a case, as JSON."""
    case = made.case
    return {
        "seed": case.seed,
        "shape": case.name,
        "torch": ".".join(map(str, case.torch)),
        "world": case.world,
        "steps": case.steps,
        "recorded": case.recorded,
        "fault": case.kind,
        "culprits": case.culprits,
        "slowdown": made.slowdown,
        "per_host": case.per_host,
        "step_ms": made.step_us / 1e3,
        "parts": [vars(part) for part in case.fault.parts] if case.fault else [],
    }
