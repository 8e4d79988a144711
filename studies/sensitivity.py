"""Whether the planner's choice holds when a hardware constant moves: `python -m studies.sensitivity`.

Every constant is moved down and up by a fifth and the whole search is made again, over all meshes, on all
machines at once: bounds and times are arrays with one element a machine, and a job is timed as long as it may come
into the tie on one of them. For a constant that flips the choice, a second search in steps of a hundredth finds the
factor nearest to 1 that does.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from reftrain.cost.hardware import Hardware, load_hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.memory import MemoryModel
from reftrain.papers.llama3 import LLAMA_405B, TOKENS
from reftrain.plan.choose import Planner, alike, mesh_of
from reftrain.plan.lower_bounds import memory_bound, time_bound
from reftrain.plan.meshes import Mesh, Workload, axes_of
from reftrain.plan.plan_report import mesh_text
from reftrain.plan.projection import durations, network_bytes, reductions_in
from reftrain.plan.step_time import Durations, time_step
from reftrain.thresholds import TIE

F64 = npt.NDArray[np.float64]
FACTORS = (0.8, 1.2)
Moved = tuple[str, float]
"""A constant and the factor it is moved by; ("", 1.0) moves nothing."""
UNMOVED: Moved = ("", 1.0)


def moved(hardware: Hardware, how: Moved) -> Hardware:
    """The machine with one constant moved."""
    name, factor = how
    return hardware.with_constant(name, factor * hardware.constants()[name]) if name else hardware


@dataclass(frozen=True)
class Decision:
    """The mesh chosen on one machine, by which share it is slower than the fastest mesh, and the fastest mesh."""

    mesh: Mesh
    behind: float
    fastest: Mesh


@dataclass
class Search:
    """All meshes of a workload on several machines: best seconds of each mesh and bytes it then sends, (machines,)."""

    workload: Workload
    machines: Sequence[Hardware]
    seconds: dict[Mesh, F64] = field(default_factory=dict)
    sent: dict[Mesh, F64] = field(default_factory=dict)
    timed_jobs: int = 0

    def __post_init__(self) -> None:
        self._usable = np.array([machine.usable_bytes for machine in self.machines])
        self._best = np.full(len(self.machines), np.inf)
        self._leanest: dict[object, float] = {}
        jobs = ((job, self._bounds(job)) for job in Planner(self.workload, self.machines[0]).jobs())
        queue = [(job, bounds) for job, bounds in jobs if np.isfinite(bounds).any()]
        for job, bounds in sorted(queue, key=lambda pair: float(pair[1].min())):
            self._look(job, bounds)

    def decide(self, machine: int) -> Decision:
        """Take the planner's decision on one of the machines."""
        rows = [
            (mesh, float(s[machine]), float(self.sent[mesh][machine])) for mesh, s in self.seconds.items()
        ]
        fastest, least, _ = min(rows, key=lambda row: (row[1], row[0]))
        tied = [row for row in rows if row[1] <= (1 + TIE) * least]
        mesh, seconds, _ = min(tied, key=lambda row: (axes_of(row[0]), row[2], row[1]))
        return Decision(mesh, seconds / least - 1, fastest)

    def _bounds(self, job: Job) -> F64:
        """Bound on the seconds on every machine, infinite where the memory cannot do."""
        fits = memory_bound(job) <= self._usable
        if not fits.any():
            return np.full(len(self.machines), np.inf)
        bounds = [time_bound(job, cost_model_of(job, machine)) for machine in self.machines]
        return np.where(fits, bounds, np.inf)

    def _look(self, job: Job, bounds: F64) -> None:
        """Time a job on the machines where it may be chosen."""
        mesh, kind = mesh_of(job), alike(job)
        known = self.seconds.get(mesh, np.full(len(self.machines), np.inf))
        wanted = (bounds <= (1 + TIE) * self._best) & (bounds < known)
        wanted &= self._usable < self._leanest.get(kind, np.inf)
        if not wanted.any():
            return
        needed = MemoryModel(job).peak()
        wanted &= needed <= self._usable
        if not wanted.any():
            return
        self._leanest[kind] = min(needed, self._leanest.get(kind, np.inf))
        self.timed_jobs += 1
        places = np.flatnonzero(wanted)
        costs = [cost_model_of(job, self.machines[place]) for place in places.tolist()]
        took = np.full(len(self.machines), np.inf)
        took[places] = time_step(job.lowered, together([durations(job, c) for c in costs])).seconds
        better = took < known
        self.seconds[mesh] = np.where(better, took, known)
        sent = network_bytes(job, costs[0], reductions_in(job.lowered))
        self.sent[mesh] = np.where(better, sent, self.sent.get(mesh, np.full(len(self.machines), np.inf)))
        self._best = np.minimum(self._best, took)


def together(alone: Sequence[Durations]) -> Durations:
    """Durations of one job on several machines as arrays, one element a machine."""

    def joined(name: str) -> object:
        values = [getattr(one, name) for one in alone]
        if name in {"every_use", "layers", "attention"}:
            return values[0]
        if isinstance(values[0], tuple):
            known = {column: np.array(column) for column in set(zip(*values, strict=True))}
            return tuple(known[column] for column in zip(*values, strict=True))
        return np.array(values)

    return Durations(**{f.name: joined(f.name) for f in fields(Durations)})  # type: ignore[arg-type]


def decisions(workload: Workload, hardware: Hardware, ways: Iterable[Moved]) -> Mapping[Moved, Decision]:
    """Decide under each of the moved constants."""
    listed = list(ways)
    search = Search(workload, [moved(hardware, how) for how in listed])
    return {how: search.decide(i) for i, how in enumerate(listed)}


def report(sequences: Sequence[int], hardware: Hardware, gpus: int = 16384) -> str:
    """Table of all constants and sequence lengths, as Markdown."""
    lines = []
    for seq_len in sequences:
        workload = Workload(LLAMA_405B, gpus, seq_len, TOKENS // seq_len)
        ways = [(name, factor) for name in hardware.constants() for factor in FACTORS]
        taken = decisions(workload, hardware, [UNMOVED, *ways])
        base = taken[UNMOVED]
        first = first_flips(workload, hardware, base.mesh, [w for w in ways if taken[w].mesh != base.mesh])
        slower = f"{100 * base.behind:.1f} % behind the fastest, {mesh_text(base.fastest)}"
        lines += [
            f"{seq_len} tokens: {mesh_text(base.mesh)}, {slower}.",
            "",
            "| constant | x 0.8 | x 1.2 |",
            "|---|---|---|",
        ]
        for name in hardware.constants():
            cells = [_cell(taken[name, factor], first.get((name, factor))) for factor in FACTORS]
            lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
        lines.append("")
    return "\n".join(lines)


def first_flips(
    workload: Workload, hardware: Hardware, chosen: Mesh, flips: Sequence[Moved]
) -> dict[Moved, float]:
    """Factor nearest to 1, in hundredths, at which each of the constants turns the choice."""
    if not flips:
        return {}
    steps = {how: np.round(np.linspace(1, how[1], 21), 2).tolist()[1:] for how in flips}
    taken = decisions(workload, hardware, [(how[0], f) for how in flips for f in steps[how]])
    return {how: next(f for f in steps[how] if taken[how[0], f].mesh != chosen) for how in flips}


def _cell(one: Decision, flip: float | None) -> str:
    behind = f"{100 * one.behind:.1f} % behind"
    if flip is None:
        return f"holds ({behind})"
    return f"{mesh_text(one.mesh)} from x {flip:.2f} on ({behind})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Move every hardware constant by a fifth and plan again.")
    parser.add_argument("--hardware", default="h100", help="a known machine, or a .toml file (default h100)")
    parser.add_argument(
        "--seq", type=int, action="append", help="tokens of a sequence (default 8192 and 131072)"
    )
    given = parser.parse_args()
    print(report(given.seq or (8192, 131072), load_hardware(given.hardware)))  # noqa: T201 - the table is the answer


if __name__ == "__main__":
    main()
