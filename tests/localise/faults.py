"""Faults of known truth, as factors and extra times that a program is built with."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tests.localise.job import MS, Job


@dataclass(frozen=True)
class Fault:
    """One fault: whom it hits, how hard, and in which steps (None: all)."""

    kind: str
    ranks: frozenset[int]
    factor: float = 1.0
    ns: int = 0
    steps: frozenset[int] | None = None
    blamed: bool = True
    """Whether its ranks are culprits; a decoy's are not."""

    def active(self, step: int) -> bool:
        """Whether it acts in a step."""
        return self.steps is None or step in self.steps


@dataclass(frozen=True)
class Faults:
    """All faults of a job; empty means healthy."""

    faults: tuple[Fault, ...] = field(default_factory=tuple)

    def factor(self, kinds: set[str], rank: int, step: int) -> float:
        """Product of the factors of the kinds that hit a rank in a step."""
        total = 1.0
        for fault in self.faults:
            if fault.kind in kinds and rank in fault.ranks and fault.active(step):
                total *= fault.factor
        return total

    def compute(self, rank: int, step: int) -> float:
        """Factor on compute."""
        return self.factor({"slow_compute", "long_stage"}, rank, step)

    def host(self, rank: int, step: int) -> float:
        """Factor on host times."""
        return self.factor({"slow_host"}, rank, step)

    def transfer(self, group: tuple[int, ...], step: int) -> float:
        """Factor on the transfer of an operation among exactly these ranks."""
        total = 1.0
        for fault in self.faults:
            if fault.kind == "slow_link" and fault.ranks == frozenset(group) and fault.active(step):
                total *= fault.factor
        return total

    def beside(self, rank: int, step: int) -> list[tuple[str, float]]:
        """Families of groups in which a rank communicates beside its compute, and for what share of a layer."""
        return [
            (fault.kind.removeprefix("beside_"), fault.factor)
            for fault in self.faults
            if fault.kind.startswith("beside_") and rank in fault.ranks and fault.active(step)
        ]

    def stalls(self, rank: int, step: int, kind: str) -> int:
        """Ns of extra host time of a kind in a step."""
        return sum(
            fault.ns
            for fault in self.faults
            if fault.kind == kind and rank in fault.ranks and fault.active(step)
        )

    def culprits(self) -> tuple[int, ...]:
        """Ranks that are to blame."""
        return tuple(sorted({rank for fault in self.faults if fault.blamed for rank in fault.ranks}))

    def without(self, ranks: set[int]) -> "Faults":
        """The faults with these ranks fixed, and decoys among them, which an answer may name and price as well."""
        kept = [
            replace(fault, ranks=fault.ranks - ranks)
            if fault.blamed or fault.kind == "slow_compute"
            else fault
            for fault in self.faults
            if not fault.blamed
            or (fault.ranks - ranks and not (fault.kind == "slow_link" and fault.ranks & ranks))
        ]
        return Faults(tuple(kept))


@dataclass(frozen=True)
class Draw:
    """What a drawing function needs."""

    job: Job
    random: Random
    severity: float
    step: int
    """Healthy step time in ns."""
    links: tuple[tuple[int, ...], ...]
    """Groups and pairs that talk."""

    @property
    def rank(self) -> int:
        """A random rank."""
        return self.random.randrange(self.job.layout.world)

    def slow(self, ranks: set[int], scale: float = 1.0, steps: frozenset[int] | None = None) -> Fault:
        """A slow GPU."""
        factor = 1 + scale * self.severity * self.random.uniform(1.1, 1.7)
        return Fault("slow_compute", frozenset(ranks), factor, steps=steps)

    def lost(self, scale: float = 1.0) -> int:
        """Ns of a stall of this severity."""
        return int(self.step * self.severity * scale * self.random.uniform(1.1, 1.6))


def one_gpu(d: Draw) -> list[Fault]:
    """A slow GPU."""
    return [d.slow({d.rank})]


def one_host(d: Draw) -> list[Fault]:
    """A slow host process: every call takes longer until launches bind."""
    return [Fault("slow_host", frozenset({d.rank}), 1.6 * (1 + 2 * d.severity))]


def pauses(d: Draw) -> list[Fault]:
    """A process that pauses in every step, or in most."""
    return [Fault("pauses", frozenset({d.rank}), ns=d.lost())]


def late_data(d: Draw) -> list[Fault]:
    """A loader that comes late, on all ranks of one data-parallel index's first stage."""
    job = d.job
    chosen = d.rank
    here = job.layout.coords(chosen)
    ranks = {
        rank
        for rank in range(job.layout.world)
        if all(job.layout.coords(rank)[axis] == here[axis] for axis in ("dpi", "dpo"))
        and job.layout.coords(rank)["pp"] == 0
    }
    return [Fault("late_data", frozenset(ranks), ns=d.lost())]


def long_stage(d: Draw) -> list[Fault]:
    """A stage that has more work than the others."""
    stage = d.random.randrange(d.job.stages)
    ranks = {rank for rank in range(d.job.layout.world) if d.job.layout.coords(rank)["pp"] == stage}
    factor = 1 + d.severity * d.random.uniform(1.1, 1.6)
    return [Fault("long_stage", frozenset(ranks), factor)]


def slow_link(d: Draw) -> list[Fault]:
    """A link over which one group, or one pair of stages, moves its data slowly."""
    return [Fault("slow_link", frozenset(d.random.choice(d.links)), 1 + 12 * d.severity)]


def intermittent(d: Draw) -> list[Fault]:
    """A GPU that is slow in some steps."""
    count = max(1, d.job.steps // 2)
    steps = frozenset(d.random.sample(range(d.job.steps), count))
    return [d.slow({d.rank}, 2.0, steps=steps)]


def two(d: Draw) -> list[Fault]:
    """Two faults at once, on different ranks."""
    first, second = d.random.sample(range(d.job.layout.world), 2)
    other = (
        d.slow({second}) if d.random.random() < 0.5 else Fault("pauses", frozenset({second}), ns=d.lost(0.7))
    )
    return [d.slow({first}), other]


def decoy(d: Draw) -> list[Fault]:
    """A slow GPU, and one that is less slow at the same place of another replica, and so costs nothing more."""
    layout = d.job.layout
    first = d.rank
    others = [rank for rank in layout.group(first, ("dpi", "dpo")) if rank != first]
    slow = d.slow({first}, 1.2)
    mild = 1 + (slow.factor - 1) * 0.35
    return [slow, Fault("slow_compute", frozenset({d.random.choice(others)}), mild, blamed=False)]


def one_node(d: Draw) -> list[Fault]:
    """All GPUs of one host are slow."""
    per = d.job.per_host
    host = d.rank // per
    return [d.slow(set(range(host * per, min((host + 1) * per, d.job.layout.world))))]


def startup(d: Draw) -> list[Fault]:
    """A profiler that takes its time to start, on one rank, in the first recorded step."""
    ns = int(d.step * d.random.uniform(0.4, 2.0)) + 50 * MS
    return [Fault("startup", frozenset({d.rank}), ns=ns, steps=frozenset({0}), blamed=False)]


def checkpoint(d: Draw) -> list[Fault]:
    """A checkpoint: everybody stops at the end of one step."""
    everybody = frozenset(range(d.job.layout.world))
    step = frozenset({d.random.randrange(d.job.steps)})
    return [Fault("checkpoint", everybody, ns=int(d.step * d.random.uniform(1, 4)), steps=step, blamed=False)]


def accident(d: Draw) -> list[Fault]:
    """One operation that once takes long."""
    step = frozenset({d.random.randrange(d.job.steps)})
    if d.links and d.random.random() < 0.5:
        link = frozenset(d.random.choice(d.links))
        return [Fault("hiccup", link, ns=d.lost(1.5), steps=step, blamed=False)]
    return [Fault("stumble", frozenset({d.rank}), ns=d.lost(1.5), steps=step, blamed=False)]


def nobody(_: Draw) -> list[Fault]:
    """A healthy job."""
    return []


def overlap(d: Draw) -> list[Fault]:
    """Some groups, and not their peers, communicate beside their compute, and nobody waits for it.

    Their kernels there are longer by the job's contention: all kernels of any rank would be, beside communication.
    """
    layout = d.job.layout
    family = d.random.choice([f for f, axes in BESIDE.items() if many_groups(d.job, axes)])
    groups = layout.groups(BESIDE[family])
    chosen = d.random.sample(groups, d.random.randint(1, len(groups) // 2))
    ranks = frozenset(rank for group in chosen for rank in group)
    return [Fault(f"beside_{family}", ranks, d.random.uniform(0.4, 0.9), blamed=False)]


def slow_beside(d: Draw) -> list[Fault]:
    """A slow GPU where some groups communicate beside their compute."""
    return [*one_gpu(d), *overlap(d)]


BESIDE = {"tp": ("tp",), "cp": ("cp",), "dp": ("dpi", "dpo")}
"""Families of groups of which some may communicate beside compute, with their axes."""


def many_groups(job: Job, axes: tuple[str, ...]) -> bool:
    """Whether groups along these axes have several members, and several peers in their stage."""
    members = job.layout.size(*axes)
    return members > 1 and job.layout.world // members // job.stages > 1


GUILTY: dict[str, Callable[[Draw], list[Fault]]] = {
    "slow_compute": one_gpu,
    "slow_host": one_host,
    "pauses": pauses,
    "late_data": late_data,
    "long_stage": long_stage,
    "slow_link": slow_link,
    "intermittent": intermittent,
    "two": two,
    "decoy": decoy,
    "slow_node": one_node,
    "slow_expert": one_gpu,
    "slow_beside": slow_beside,
}
"""Kinds with somebody to blame."""
INNOCENT: dict[str, Callable[[Draw], list[Fault]]] = {
    "healthy": nobody,
    "startup": startup,
    "checkpoint": checkpoint,
    "accident": accident,
    "experts": nobody,
    "documents": nobody,
    "overlap": overlap,
    "hot_experts": nobody,
}
"""Kinds with nobody to blame."""


MANY_HOSTS = 3
"""Hosts of which one can be slow, so that the others say what is usual."""


def possible(kind: str, job: Job) -> bool:
    """Whether a job can have this fault."""
    layout = job.layout
    if kind == "long_stage":
        return layout.size("pp") > 2
    if kind == "decoy":
        return layout.size("dpi", "dpo") > 2
    if kind == "late_data":
        return layout.size("dpi", "dpo") > 1
    if kind == "slow_node":
        return layout.world >= MANY_HOSTS * job.per_host
    if kind in {"overlap", "slow_beside"}:
        return any(many_groups(job, axes) for axes in BESIDE.values())
    return kind not in {"experts", "hot_experts", "slow_expert"} or job.experts


def draw_faults(draw: Draw, kind: str) -> Faults:
    """Faults of a kind."""
    return Faults(tuple((GUILTY | INNOCENT)[kind](draw)))
