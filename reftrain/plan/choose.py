"""Chooses mesh and schedule of a job: every mesh is projected, or rejected with its reason.

The planner looks for the fastest schedule of every mesh that fits, among pipeline schemes, numbers of virtual stages,
ZeRO stages and recomputation. It takes the candidates in the order of a lower bound on the time, computes the memory
of each and times its table, until no bound is below the best. Projected times that differ by less than the error of
the model (`TIE`) are a tie. Of a tie it takes the mesh with the fewest axes, since every axis adds groups that wait for
one another (documents, jitter: the projection leaves them out), and of those the one that sends least through the
network ports ("Scaling Llama 3 Training", section 3.1.3: reductions at scale congest the network and slow messages).
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from reftrain.config.encoder import PLACEMENTS
from reftrain.config.run import MeshConfig
from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import GIB, Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.memory import MemoryModel
from reftrain.cost.shapes import layer_counts
from reftrain.errors import ConfigError
from reftrain.model.flops import flops_per_sequence
from reftrain.plan.lower_bounds import memory_bound, time_bound
from reftrain.plan.meshes import Mesh, Workload, all_meshes, axes_of, expert_ranks, impossible, schedule_name
from reftrain.plan.projection import Projection, project
from reftrain.plan.steady import figures, whole_rounds
from reftrain.thresholds import HORIZON, MOST_IN_FLIGHT, TIE
from tracekit.axes import AXES

Pairs = Callable[[int], float]
"""Mean (query, key) pairs of a sequence that the slowest rank of a context group of this size computes, times cp."""

Progress = Callable[[int, int], None]
"""A function that takes the number of candidates examined, and their total."""


@dataclass(frozen=True)
class Choice:
    """A mesh with its fastest schedule that fits; `memory_bytes` of the fullest rank.

    `tie`: no slower than the fastest mesh by more than the error of the projection; `note` says why it is not taken.
    """

    job: Job
    projection: Projection
    memory_bytes: float
    tflops: float
    tie: bool = False
    note: str = ""

    @property
    def mesh(self) -> Mesh:
        """Sizes of tp, cp, pp, dp."""
        return mesh_of(self.job)

    @property
    def schedule(self) -> str:
        """Schedule in words, e.g. `afab v=8 ZeRO-2`."""
        return schedule_name(self.job)


@dataclass(frozen=True)
class Rejected:
    """A mesh that is not taken; `step_s` where it has a projection, or a bound on it."""

    mesh: Mesh
    reason: str
    step_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """`choices` by projected time, `taken` the one of them to take; `rejected` all other meshes."""

    workload: Workload
    hardware: Hardware
    choices: tuple[Choice, ...]
    rejected: tuple[Rejected, ...]
    taken: Choice


def mesh_of(job: Job) -> Mesh:
    """Sizes of tp, cp, pp, dp of a job."""
    return job.mesh.tp, job.mesh.cp, job.mesh.pp, job.mesh.dp


def alike(job: Job) -> tuple[object, ...]:
    """Return a key of candidates that differ in the ZeRO stage only; where one fits, the next stage is slower."""
    placed = job.encoder.placement, job.offload
    return *mesh_of(job), job.mesh.ep, job.schedule, job.virtual, job.recompute, *placed


@dataclass
class _Search:
    """Results so far of each mesh: its best choice, and its leanest candidate that does not fit."""

    usable: float
    found: dict[Mesh, Choice] = field(default_factory=dict)
    leanest: dict[Mesh, tuple[float, Job]] = field(default_factory=dict)
    unseen: dict[Mesh, float] = field(default_factory=dict)
    fits: set[tuple[object, ...]] = field(default_factory=set)
    best: float = float("inf")

    def too_large(self, job: Job, needed: float) -> bool:
        """Return whether a job does not fit, and remember the leanest one that does not."""
        if needed <= self.usable:
            return False
        mesh = mesh_of(job)
        if mesh not in self.leanest or needed < self.leanest[mesh][0]:
            self.leanest[mesh] = needed, job
        return True

    def slowest(self, mesh: Mesh) -> float:
        """Return the seconds that a further candidate of a mesh has to beat."""
        return self.found[mesh].projection.step_s if mesh in self.found else float("inf")

    def why_not(self, mesh: Mesh) -> Rejected:
        """Return the reason why a mesh has no choice."""
        if mesh in self.unseen:
            bound = self.unseen[mesh]
            percent = 100 * (bound / self.best - 1)
            return Rejected(mesh, f"at least {percent:.0f} % slower than the fastest", bound)
        needed, job = self.leanest[mesh]
        need = f"{needed / GIB:.1f} GiB of {self.usable / GIB:.1f} usable"
        return Rejected(mesh, f"does not fit: {need} with {schedule_name(job)}, the leanest")


class Planner:
    """Searches one workload on one kind of hardware; `pairs` goes before all causal pairs."""

    def __init__(self, workload: Workload, hardware: Hardware, pairs: Pairs | None = None) -> None:
        self.workload, self.hardware = workload, hardware
        self.pairs = pairs or (lambda _cp: workload.seq_len * (workload.seq_len + 1) / 2)
        self.flops = workload.sequences * flops_per_sequence(
            workload.model, workload.encoder, workload.seq_len
        )

    def plan(self, prefer: str = "simple", progress: Progress | None = None) -> Plan:
        """Return the plan over all meshes; raises `ConfigError` when none fits.

        `prefer` says what breaks a tie, as in `decide`; `progress` gets the candidates done and their total.
        """
        possible, rejected = [], []
        for mesh in all_meshes(self.workload.gpus):
            reason = impossible(self.workload, mesh)
            if reason:
                rejected.append(Rejected(mesh, reason))
            else:
                possible.append(mesh)
        search = self._search(possible, progress or (lambda _done, _of: None))
        if not search.found:
            why = f" ({rejected[-1].reason})" if not possible else ""
            problem = f"{self._nothing_fits(search)}{why}"
            raise ConfigError("--gpus", problem, "give more devices or a larger memory")
        choices, taken = decide(list(search.found.values()), prefer)
        rejected += [search.why_not(mesh) for mesh in possible if mesh not in search.found]
        ordered = tuple(sorted(rejected, key=lambda r: r.mesh))
        return Plan(self.workload, self.hardware, tuple(choices), ordered, taken)

    def jobs(self) -> Iterator[Job]:
        """Every schedule of every mesh that the shapes allow."""
        for mesh in all_meshes(self.workload.gpus):
            if impossible(self.workload, mesh) is None:
                yield from self._candidates(mesh)

    def _nothing_fits(self, search: _Search) -> str:
        if not search.leanest:
            return f"no mesh of {self.workload.gpus} devices suits the shapes"
        needed, job = min(search.leanest.values(), key=lambda pair: pair[0])
        sizes = ",".join(f"{axis}={n}" for axis, n in zip(AXES, mesh_of(job), strict=True))
        usable = f"{search.usable / GIB:.1f} GiB usable"
        return f"no mesh fits: the leanest, {sizes}, needs {needed / GIB:.1f} GiB of {usable}"

    def _search(self, meshes: Sequence[Mesh], progress: Progress) -> _Search:
        search = _Search(self.hardware.usable_bytes)
        queue: list[tuple[float, int, Job]] = []
        for mesh in meshes:
            for job in self._candidates(mesh):
                if not search.too_large(job, memory_bound(job)):
                    bound = time_bound(job, self._costs(job))
                    queue.append((bound, len(queue), job))
        heapq.heapify(queue)
        of = len(queue)
        while queue:
            progress(of - len(queue), of)
            bound, _, job = heapq.heappop(queue)
            mesh = mesh_of(job)
            if bound > (1 + HORIZON) * search.best:
                search.unseen[mesh] = min(bound, search.unseen.get(mesh, bound))
            elif alike(job) not in search.fits and search.slowest(mesh) > bound:
                self._examine(job, search)
        progress(of, of)
        return search

    def _examine(self, job: Job, search: _Search) -> None:
        (needed,) = figures(job, lambda some: [MemoryModel(some).peak()]).tolist()
        if search.too_large(job, needed):
            return
        search.fits.add(alike(job))
        projection = project(job, self.hardware, self.pairs(job.mesh.cp))
        mesh = mesh_of(job)
        if mesh not in search.found or projection.step_s < search.found[mesh].projection.step_s:
            tflops = self.flops / self.workload.gpus / projection.step_s / 1e12
            search.found[mesh] = Choice(job, projection, needed, tflops)
            search.best = min(search.best, projection.step_s)

    def _costs(self, job: Job) -> CostModel:
        return cost_model_of(job, self.hardware, self.pairs(job.mesh.cp))

    def _candidates(self, mesh: Mesh) -> Iterator[Job]:
        """Yield the candidates of a mesh."""
        tp, cp, pp, dp = mesh
        work = self.workload
        micro_batches = work.sequences // (dp * work.micro_batch_size)
        group = work.model.group
        balanced, placements = pp > 1 and group == 1, PLACEMENTS if work.encoder.layers and pp > 1 else ("",)
        groups = work.model.layers // group + (0 if balanced or pp == 1 else -2)
        places, parts = (False, True)[: 1 + work.offload], expert_ranks(work.model, dp)
        ways = [*product(("none", "full"), parts, placements, places)]
        for schedule, virtual, zero, consecutive in _schemes(pp, groups, micro_batches):
            for recompute, ep, placement, offload in ways:
                yield Job(
                    model=work.model,
                    mesh=MeshConfig(tp=tp, cp=cp, pp=pp, dp=dp, zero=zero, ep=ep, sharding=work.sharding),
                    seq_len=work.seq_len,
                    micro_batches=micro_batches,
                    layers=layer_counts(work.model.layers, pp * virtual, balanced=balanced, group=group),
                    schedule=schedule,
                    virtual=virtual,
                    consecutive=consecutive,
                    micro_batch_size=work.micro_batch_size,
                    recompute=recompute,
                    offload=offload,
                    encoder=replace(work.encoder, placement=placement) if placement else work.encoder,
                )


def _schemes(pp: int, layers: int, micro_batches: int) -> Iterator[tuple[str, int, int, int]]:
    """Schedule, virtual stages, ZeRO stage and consecutive micro-batches of the candidates.

    Without a pipeline ZeRO-1 to 3 are candidates. With a pipeline ZeRO-3 is not: the pipeline splits the weights, which
    makes gathers for every micro-batch needless ("Scaling Llama 3 Training", section 5.1).
    """
    together = min(pp, micro_batches)
    if pp == 1:
        yield from (("flexible", 1, zero, together) for zero in (1, 2, 3))
        return
    most, whole = (layers + 2) // pp, whole_rounds(pp, micro_batches)
    for virtual in sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)}):
        for zero in (1, 2):
            if virtual == 1:
                yield "1f1b", 1, zero, together
            elif whole:
                yield "flexible", virtual, zero, whole
        if micro_batches * virtual <= MOST_IN_FLIGHT:
            yield "afab", virtual, 2, together


def decide(found: Sequence[Choice], prefer: str = "simple") -> tuple[list[Choice], Choice]:
    """Return the choices by time, ties marked, and the one to take.

    Of a tie, `time` takes the fastest, `simple` the one with the fewest axes, of those the one that sends least.
    """
    ordered = sorted(found, key=lambda c: (c.projection.step_s, c.mesh))
    limit = (1 + TIE) * ordered[0].projection.step_s
    marked = [replace(choice, tie=choice.projection.step_s <= limit) for choice in ordered]
    taken = marked[0]
    if prefer == "simple":
        tied = [choice for choice in marked if choice.tie]
        taken = min(tied, key=lambda c: (axes_of(c.mesh), c.projection.network_bytes, c.projection.step_s))
    return [replace(c, note=_why_not_taken(c, taken)) if c.tie else c for c in marked], taken


def _why_not_taken(choice: Choice, taken: Choice) -> str:
    """Return why a choice of a tie is not the one taken, or nothing where it is."""
    if choice.mesh == taken.mesh:
        return ""
    if choice.projection.step_s > taken.projection.step_s:
        return "slower"
    if axes_of(choice.mesh) > axes_of(taken.mesh):
        return f"has {axes_of(choice.mesh)} axes to wait along, not {axes_of(taken.mesh)}"
    sent, least = (c.projection.network_bytes / 1e9 for c in (choice, taken))
    return f"sends {sent:.1f} GB a step through each network port, not {least:.1f}"
