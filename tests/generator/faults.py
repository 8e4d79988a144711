"""Planted faults: the ranks that a fault strikes, its effect on times, and the answer that an analysis should give."""

from dataclasses import replace

import numpy as np

from tests.generator.engine import Durations
from tests.generator.mesh import Groups
from tests.generator.program import COMPUTE, LOAD, Program
from tests.generator.spec import NOBODYS_KINDS, Fault, Job

OUTLIER = (
    0.005  # share of a rank's compute in a step that one outlier may cost: more would be a fault of its own
)
VERDICTS = {
    "slow_link": ("slow_link", "network"),
    "doc_imbalance": ("imbalance", "data_imbalance"),
    "long_stage": ("imbalance", "stage_imbalance"),
    "slow_compute": ("slow_rank", "gpu_compute"),
    "intermittent": ("slow_rank", "gpu_compute"),
    "slow_host": ("slow_rank", "gpu_compute"),
    "launch_bound": ("slow_rank", "cpu_launch"),
    "pauses": ("slow_rank", "host_stall"),
    "late_data": ("slow_rank", "dataloader"),
    "healthy": ("healthy", None),
    "healthy_slack": ("healthy", None),
    **dict.fromkeys(NOBODYS_KINDS, ("healthy", None)),
}


def draw_durations(job: Job, program: Program, seed: int) -> Durations:
    """Healthy times with jitter: each rank has its own generator, so that a fault leaves the others alone."""
    work, host = [], []
    # Power and heat move all GPUs together from step to step; placement makes some paths a little longer.
    common = 1 + 0.008 * np.random.default_rng([seed, 78]).normal(size=job.steps)
    for rank, prog in enumerate(program.ranks):
        rng = np.random.default_rng([seed, rank, 77])
        kind, base = np.array(prog.kind), np.array(prog.base)
        speed = 1 + float(np.clip(rng.normal(0, 0.003), -0.006, 0.006))
        noise = rng.lognormal(-0.5 * job.jitter**2, job.jitter, len(kind)) * speed
        extra = np.where(rng.random(len(kind)) < job.outliers, rng.uniform(1, 5, len(kind)), 0.0) * base
        extra = np.minimum(extra, OUTLIER * base[kind == COMPUTE].sum() / job.steps)
        noise *= common[np.array(prog.step)]
        loads = rng.lognormal(0, 0.15, len(kind))
        work.append(np.where(kind == LOAD, base * loads, base * noise + extra))
        issue = job.host_ns * rng.lognormal(0, 0.3, len(kind)) * np.where(kind == COMPUTE, 1.0, 2.5)
        host.append(np.where(kind == LOAD, 5e3, issue))
    rng = np.random.default_rng([seed, 1_000_003])
    count = len(program.keys.transfer)
    noise = rng.lognormal(0, 0.04, count)
    noise = np.where(rng.random(count) < job.outliers, noise * rng.uniform(2, 4, count), noise)
    paths = [
        path_number(pair or (group,))
        for pair, group in zip(program.keys.pair, program.keys.group, strict=True)
    ]
    noise *= rng.lognormal(0, 0.05, 4096)[paths]
    transfer = (8e3 + np.array(program.keys.transfer)) * noise
    return Durations(work, host, transfer, rng.exponential(1.5e3, (509, job.mesh.world)))


def path_number(path: tuple[int, ...]) -> int:
    """A number below 4096 for a group, or for a pair of ranks in either order."""
    return (sum(path) * 131 + min(path) * 31 + len(path)) % 4096


def loaders(job: Job) -> list[int]:
    """The ranks that run a data loader."""
    mesh = job.mesh
    if job.loader == "all":
        return list(range(mesh.world))
    stages = {0, mesh.sizes["pp"] - 1}
    return [r for r in range(mesh.world) if mesh.coords(r)["tp"] == 0 and mesh.coords(r)["pp"] in stages]


def draw_fault(
    rng: np.random.Generator, kind: str, job: Job, groups: Groups, captured: tuple[int, ...]
) -> Fault | None:
    """A fault of `kind` with its victims; None where this job cannot show it unambiguously."""
    mesh = job.mesh
    rank = int(rng.integers(mesh.world))
    peers = mesh.world // mesh.sizes["pp"]
    if kind in ("slow_compute", "intermittent", "launch_bound", "pauses"):
        if peers < 2:
            return None
        # One long step in a whole recording could befall anybody; a fault strikes in two steps at least.
        some = max(2, round(len(captured) * rng.uniform(0.3, 0.5)))
        steps = tuple(sorted(int(s) for s in rng.choice(captured, some, replace=False)))
        once = kind == "intermittent" or (kind == "pauses" and rng.random() < 0.3)
        return Fault(kind, (rank,), steps if once else None)
    if kind == "slow_host":
        first = rank // job.host_size * job.host_size
        ranks = tuple(range(first, min(first + job.host_size, mesh.world)))
        stages = [
            r for r in range(mesh.world) if mesh.coords(r)["pp"] in {mesh.coords(x)["pp"] for x in ranks}
        ]
        return None if list(ranks) == stages or len(ranks) < 2 else Fault(kind, ranks)
    if kind == "late_data":
        load = loaders(job)
        at = mesh.coords(int(rng.choice(load)))
        if rng.random() < 0.7 or len(load) == mesh.world:
            load = [r for r in load if all(mesh.coords(r)[a] == at[a] for a in ("dp", "cp"))]
        return None if len(load) == mesh.world else Fault(kind, tuple(load))
    if kind == "slow_link":
        return _draw_link(rng, job, groups)
    if kind == "doc_imbalance":
        return None if mesh.sizes["dp"] * mesh.sizes["cp"] < 2 else Fault(kind)
    if kind == "long_stage":
        return _draw_stage(rng, job)
    return Fault(kind)


def _draw_link(rng: np.random.Generator, job: Job, groups: Groups) -> Fault | None:
    mesh = job.mesh
    choices = [
        k
        for k in ("tp", "cp", job.dp_group)
        if any(1 < len(g.ranks) < mesh.world and g.kind == k for g in groups.all)
    ]
    if mesh.sizes["pp"] > 1 and mesh.world > mesh.sizes["pp"]:
        choices += ["p2p", "p2p"]
    if not choices:
        return None
    where = str(rng.choice(choices))
    if where == "p2p":
        stage = int(rng.integers(mesh.sizes["pp"] - 1))
        at = mesh.coords(int(rng.integers(mesh.world)))
        ends = (mesh.rank(at | {"pp": stage}), mesh.rank(at | {"pp": stage + 1}))
        return Fault("slow_link", ends, detail={"where": where})
    slow = rng.choice([g.index for g in groups.all if g.kind == where])
    return Fault("slow_link", groups.all[slow].ranks, detail={"where": where, "group": int(slow)})


def _draw_stage(rng: np.random.Generator, job: Job) -> Fault | None:
    stages = job.mesh.sizes["pp"]
    if stages < 2:
        return None
    how = str(rng.choice(["layers", "head"]))
    stage = stages - 1 if how == "head" else int(rng.integers(stages))
    ranks = tuple(r for r in range(job.mesh.world) if job.mesh.coords(r)["pp"] == stage)
    return Fault("long_stage", ranks, detail={"where": how, "stage": stage})


def nobodys(rng: np.random.Generator, kind: str, job: Job, captured: tuple[int, ...]) -> Fault:
    """What makes one captured step long and is nobody's fault; severity as a share of a step.

    A profiler starts on one rank in the first step; all ranks write a checkpoint at one time; one rank works longer
    throughout a step (nobody's fault only if it does not in three others), or in one operation.
    """
    rank = int(rng.integers(job.mesh.world))
    later = int(rng.choice(captured[1:]))
    if kind == "start_up":
        return Fault(kind, (rank,), captured[:1], 0.6)
    if kind == "checkpoint":
        return Fault(kind, tuple(range(job.mesh.world)), (later,), 0.8)
    return Fault(kind, (rank,), (later,), 0.6 if kind == "long_step" else 0.4)


def faulty_job(job: Job, fault: Fault) -> Job:
    """The job with the fault in its layout (a longer stage), or as it was where the fault is another."""
    if fault.detail.get("where") != "layers":
        return job
    extra = max(1, round(fault.severity))
    layers = [n + extra * (stage == fault.detail["stage"]) for stage, n in enumerate(job.layers)]
    return replace(job, layers=tuple(layers))


def first_severity(fault: Fault, job: Job, program: Program, step_ns: float) -> float:
    """A first guess at the severity, of the right order of magnitude."""
    if fault.kind == "launch_bound":
        calls = len(program.ranks[fault.ranks[0]].kind) / job.steps
        return 1.1 * step_ns / calls / job.host_ns
    if fault.kind == "slow_link":
        return 6.0
    return {"long_stage": 1.0, "doc_imbalance": 0.5, "late_data": 0.25, "pauses": 0.3}.get(fault.kind, 0.3)


def plant(fault: Fault, job: Job, program: Program, times: Durations, step_ns: float, seed: int) -> Durations:
    """Durations with the fault in them; arrays that the fault does not touch are shared."""
    out = Durations(list(times.work), list(times.host), times.transfer, times.tail)
    rng = np.random.default_rng([seed, 2_000_003])
    s = fault.severity
    for rank in fault.ranks:
        prog = program.ranks[rank]
        kind, step = np.array(prog.kind), np.array(prog.step)
        on = np.isin(step, fault.steps) if fault.steps is not None else np.ones(len(step), bool)
        if fault.kind in ("slow_compute", "intermittent", "slow_host"):
            out.work[rank] = np.where(on & (kind == COMPUTE), out.work[rank] * (1 + s), out.work[rank])
        elif fault.kind == "launch_bound":
            out.host[rank] = out.host[rank] * (1 + s)
        elif fault.kind == "pauses":
            out.host[rank] = out.host[rank] + _pauses(rng, on, step, s * step_ns)
        elif fault.kind == "late_data":
            each = s * step_ns / (1 if job.loads_per_step else job.micro_batches)
            out.work[rank] = np.where(
                kind == LOAD, out.work[rank] + each * rng.uniform(0.8, 1.2, len(kind)), out.work[rank]
            )
        elif fault.kind == "long_step":
            out.work[rank] = np.where(on & (kind == COMPUTE), out.work[rank] * (1 + s), out.work[rank])
        elif fault.kind in NOBODYS_KINDS:
            out.host[rank] = out.host[rank] + _one_pause(rng, fault.kind, on, s * step_ns)
        elif fault.detail.get("where") == "head":
            head = np.isin(prog.label, ["head", "head_b", "loss"])
            out.work[rank] = np.where(head, out.work[rank] * (1 + s), out.work[rank])
    if fault.kind == "slow_link":
        out.transfer = np.where(_struck(fault, program), times.transfer * (1 + s), times.transfer)
    if fault.kind == "doc_imbalance":
        _documents(rng, job, program, out, s)
    return out


def _pauses(rng: np.random.Generator, on: np.ndarray, step: np.ndarray, length: float) -> np.ndarray:
    """Host time to add, ns: one or two pauses in each struck step, within its first two thirds."""
    extra = np.zeros(len(step))
    for number in np.unique(step[on]):
        where = np.flatnonzero(step == number)
        where = where[: 1 + 2 * len(where) // 3]
        for index in rng.choice(where, int(rng.integers(1, 3)), replace=False):
            extra[index] += length * rng.uniform(0.6, 1.4)
    return extra


def _one_pause(rng: np.random.Generator, kind: str, on: np.ndarray, length: float) -> np.ndarray:
    """Host time to add, ns, in the one struck step: at its begin, for a checkpoint at its end, or anywhere."""
    extra, where = np.zeros(len(on)), np.flatnonzero(on)
    place = {"start_up": 0.01, "checkpoint": 0.98}.get(kind, float(rng.uniform(0.2, 0.8)))
    extra[where[int(place * len(where))]] = length * rng.uniform(0.8, 1.2)
    return extra


def _struck(fault: Fault, program: Program) -> np.ndarray:
    keys = program.keys
    if fault.detail["where"] == "p2p":
        ends = set(fault.ranks)
        return np.array([pair is not None and set(pair) == ends for pair in keys.pair])
    collective = np.array([pair is None for pair in keys.pair])
    return collective & (np.array(keys.group) == fault.detail["group"])


def _documents(rng: np.random.Generator, job: Job, program: Program, out: Durations, spread: float) -> None:
    """Factors on attention time, mean one: one for the documents of each (step, micro-batch, dp index, cp index)."""
    sizes = job.mesh.sizes
    shape = (job.steps, job.micro_batches, sizes["dp"], sizes["cp"])
    factor = np.exp(min(spread, 0.8) * np.clip(rng.normal(size=shape), -2.5, 2.5))
    factor /= factor.mean()
    for rank, prog in enumerate(program.ranks):
        at = job.mesh.coords(rank)
        label = np.array(prog.label)
        attention = (label == "attn") | (label == "attn_b")
        scale = factor[np.array(prog.step), np.array(prog.micro_batch), at["dp"], at["cp"]]
        out.work[rank] = np.where(attention, out.work[rank] * scale, out.work[rank])


def slack(rng: np.random.Generator, job: Job, groups: Groups) -> Fault:
    """Slowness that costs nothing: on a light stage, a host with time in hand, late labels, or a link."""
    mesh = job.mesh
    last = [r for r in range(mesh.world) if mesh.coords(r)["pp"] == mesh.sizes["pp"] - 1]
    if job.end_work == "light_last":
        return Fault("slow_compute", (int(rng.choice(last)),), severity=0.3)
    if job.dp_mode == "overlap" and mesh.sizes["dp"] > 1 and rng.random() < 0.4:
        group = int(rng.choice([g.index for g in groups.all if g.kind == job.dp_group]))
        ranks = groups.all[group].ranks
        return Fault("slow_link", ranks, severity=1.5, detail={"where": job.dp_group, "group": group})
    if mesh.sizes["pp"] > 1 and rng.random() < 0.4:
        late = [r for r in loaders(job) if r in last]
        return Fault("late_data", (int(rng.choice(late)),), severity=0.06)
    return Fault("launch_bound", (int(rng.integers(mesh.world)),), severity=3.0)
