"""A case: a job drawn from its seed, run until it hangs, and the dumps that are found afterwards."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

from tests.hang_shapes.bench import Bench, Fault, NotHere
from tests.hang_shapes.calls import HostStuck, Program
from tests.hang_shapes.dump import numbered, write
from tests.hang_shapes.fault import ASKED, FAULTS
from tests.hang_shapes.machine import Host, Machine
from tests.hang_shapes.ring import Recorder, Ring
from tests.hang_shapes.writer import Job

PER_HOST = 8
LONGEST_SPREAD = 0.3
"""Dumps of a job that runs lie at most this share of it apart, so that none is older than its first calls."""


@dataclass(frozen=True)
class Case:
    """A job as drawn: `shape` is its framework, `cause` a fault or `busy`, `uneven` or `late_data`."""

    seed: int
    shape: str
    cause: str
    job: Job
    write: Callable[[Job, int], Program]
    recorder: Recorder
    depth: int
    spread_us: float
    """How far apart dumps of a job that runs are taken."""
    drifted: bool = False
    """Whether replicas have made unlike numbers of calls before, as where data decide."""


@dataclass
class Made:
    """A case that has run."""

    case: Case
    fault: Fault
    hosts: list[Host]
    last: float = field(init=False)

    def __post_init__(self) -> None:
        ends = [made.task.end for host in self.hosts for made in host.made]
        times = [end for end in ends if end < inf] + [host.at for host in self.hosts]
        self.last = max(times)

    @property
    def hangs(self) -> bool:
        """Whether something never ends, and each culprit has got as far as its fault."""
        stuck = any(made.task.end == inf for host in self.hosts for made in host.made)
        return stuck and bool(self.culprits or self.fault.dead)

    @property
    def culprits(self) -> tuple[int, ...]:
        """Culprits that got as far as their fault."""
        return tuple(
            rank for rank in self.fault.ranks if reached(self.hosts[rank], self.fault.at.get(rank, -1))
        )


def reached(host: Host, place: int) -> bool:
    """Whether a host has come to its fault."""
    items = host.program.items
    stopped = host.place < len(items) and isinstance(items[host.place], HostStuck)
    return host.place > place or (host.done and stopped)


def make(case: Case) -> Made:
    """The case, run; a fault that finds no place or harms nobody is drawn again."""
    faults = FAULTS | ASKED
    for attempt in range(60):
        drawn = Random(case.seed * 1009 + attempt)
        programs = [case.write(case.job, rank) for rank in range(case.job.mesh.world)]
        bench = Bench(programs, case.job.steps - 2, drawn)
        try:
            fault = faults[case.cause](bench) if case.cause in faults else Fault(case.cause)
        except NotHere:
            continue
        fault.at = dict(bench.at)
        if case.cause == "uneven":
            fault.ranks, fault.kinds = tuple(sorted(case.job.short)), ("host_stalled", "mismatched_call")
        machine = Machine(programs, case.depth, fault.dead)
        machine.run()
        made = Made(case, fault, machine.hosts)
        if case.cause == "busy" or made.hangs:
            return made
    raise NotHere(case.cause, case.seed)


def save(made: Made, folder: Path) -> int:
    """Write the dumps into a folder and the truth beside it; how many there are."""
    case, drawn = made.case, Random(made.case.seed + 31)
    folder.mkdir(parents=True, exist_ok=True)
    moment = made.last + case.recorder.timeout_ms * 1e3
    if case.cause == "busy":
        moment = made.last * drawn.uniform(0.45, 0.8)
    spread = min(case.spread_us, made.last * LONGEST_SPREAD)
    skews: dict[int, int] = {}
    written = 0
    shortest = min(sum(m.at <= moment - spread for m in host.made) for host in made.hosts)
    recorder = case.recorder
    if not recorder.began:
        recorder = Recorder(**{**vars(recorder), "capacity": min(recorder.capacity, max(shortest, 1))})
    past = pasts(case)
    for rank, host in enumerate(made.hosts):
        skew = skews.setdefault(rank // PER_HOST, drawn.randrange(-3_000_000, 3_000_000))
        until = moment - (drawn.uniform(0, spread) if case.cause == "busy" else 0.0)
        if rank in made.fault.gone:
            continue
        own, local = numbered(case.job.groups.made, rank)
        blind = made.fault.blind.get(rank, len(host.program.items))
        write(Ring(host, recorder, local, past, skew, until, moment, blind), own, folder)
        written += 1
    (folder.parent / "truth.json").write_text(json.dumps(truth(made), indent=1))
    return written


def pasts(case: Case) -> dict[str, str]:
    """What decides how often each group has been called: its role and its stage, or also which replica it is."""
    found = {}
    for group in case.job.groups.made:
        stages = {case.job.mesh.coords(rank).get("pp", 0) for rank in group.ranks}
        found[group.name] = group.name if case.drifted else f"{group.desc}{sorted(stages)}"
    return found


def truth(made: Made) -> dict[str, object]:
    """What is known of a case, as JSON."""
    case = made.case
    recorder = {name: value for name, value in vars(case.recorder).items() if name != "base_ns"}
    return {
        "seed": case.seed,
        "shape": case.shape,
        "cause": case.cause,
        "culprits": made.culprits,
        "kinds": made.fault.kinds,
        "gone": sorted(made.fault.gone),
        "at": {
            rank: str(made.hosts[rank].program.items[place : place + 2])
            for rank, place in made.fault.at.items()
        },
        "dead": [f"{key}" for key in made.fault.dead][:3],
        "mesh": case.job.mesh.axes,
        "recorder": recorder,
        "depth": case.depth,
    }
