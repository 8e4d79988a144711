"""From a seed to a case: draws a job, plants a fault of known cost, captures the run, and keeps the truth apart."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.generator import faults
from tests.generator.draw import draw_capture, draw_job
from tests.generator.engine import Durations, Times, simulate, step_bounds
from tests.generator.kineto import write_case
from tests.generator.mesh import Groups, Mesh, make_groups
from tests.generator.program import SYNC, Program, build
from tests.generator.spec import KINDS, NOBODYS_KINDS, Capture, Fault, Job, Truth
from tracekit.axes import AXES

WEIGHTS = {
    "slow_compute": 20,
    "intermittent": 8,
    "launch_bound": 8,
    "pauses": 7,
    "late_data": 8,
    "slow_host": 7,
    "slow_link": 8,
    "doc_imbalance": 6,
    "long_stage": 6,
    "healthy": 15,
    "healthy_slack": 7,
}
LEAST, MOST = 1.10, 1.9  # slowdown of the mean step that a planted fault must cause
NO_COST = 1.008  # and that a rank with slack may cause


@dataclass
class Case:
    """A simulated job, its recording and the truth. `truth` never reaches a file."""

    seed: int
    job: Job
    groups: Groups
    program: Program
    times: Times
    capture: Capture
    truth: Truth
    first_step: int = 100
    captured: tuple[int, ...] = field(default=())

    def write(self, folder: Path) -> list[Path]:
        """Write one trace file a rank (two where split) into `folder`; returns the paths."""
        return write_case(self, folder)


@dataclass
class _World:
    """A job with its program and healthy durations."""

    job: Job
    groups: Groups
    program: Program
    durations: Durations

    def run(self, durations: Durations) -> Times:
        return simulate(self.program, durations, eager=self.job.eager)


def _world(job: Job, groups: Groups, seed: int) -> _World:
    program = build(job, groups)
    return _World(job, groups, program, faults.draw_durations(job, program, seed))


def _mean_step(world: _World, times: Times, captured: tuple[int, ...]) -> tuple[float, list[float]]:
    bounds = step_bounds(world.program, times, world.job.steps)
    spans = [float(bounds[s + 1] - bounds[s]) for s in captured]
    return sum(spans) / len(spans), spans


def _groups_for(job: Job, style: str, naming: str) -> Groups:
    kinds = [*AXES]
    if style == "megatron":
        kinds += ["dp_cp", "tp_cp", "mp", "embd"]
    kinds += [job.dp_group] + ([job.grad_norm] if job.grad_norm == "mp" else [])
    kinds += ["embd"] if job.tied_embedding else []
    return make_groups(job.mesh, tuple(dict.fromkeys(kinds)), style, naming)


def _planted(
    rng: np.random.Generator, base: _World, fault: Fault, captured: tuple[int, ...], seed: int, cost: tuple
) -> tuple:
    """(world, times, slowdown) with the fault as severe as `cost` asks; None where a fault that should be free is not.

    `cost` is the least and the most slowdown of the mean step.
    """
    healthy, _ = _mean_step(base, base.run(base.durations), captured)
    costless = fault.severity > 0
    goal = 1.0 if costless else float(rng.uniform(cost[0] + 0.3 * (cost[0] - 1), min(cost[1], 1.5)))
    if not costless:
        fault.severity = faults.first_severity(fault, base.job, base.program, healthy)
    best = None
    for _ in range(7):
        job = faults.faulty_job(base.job, fault)
        world = base if job is base.job else _world(job, base.groups, seed)
        times = world.run(faults.plant(fault, job, world.program, world.durations, healthy, seed))
        slowdown = _mean_step(world, times, captured)[0] / healthy
        best = (world, times, slowdown)
        if (slowdown <= NO_COST) if costless else (cost[0] + 0.005 <= slowdown <= cost[1]):
            return best
        if costless:
            fault.severity *= 0.5
        else:
            paid = max(slowdown - 1, 0.1 * (cost[0] - 1))
            fault.severity *= float(np.clip((goal - 1) / paid, 0.4, 4.0))
            if fault.detail.get("where") == "layers" and slowdown > cost[1]:
                break
    return best if not costless else None


@dataclass
class _Request:
    """What `generate` was asked for, with everything else drawn that does not depend on the job."""

    seed: int
    kind: str
    mesh: Mesh | None
    size: int  # ranks
    total: int  # steps simulated
    captured: tuple[int, ...]
    ragged: bool
    cost: tuple[float, float]  # least and most slowdown of a fault
    job: dict[str, Any]  # fields of Job
    capture: dict[str, Any]  # fields of Capture


def generate(seed: int, **overrides: Any) -> Case:
    """The case of `seed`.

    Overrides: kind, world or mesh, steps (captured), ragged, cost (least and most slowdown of a fault), and fields of
    Job or Capture. Deterministic: one seed and one set of overrides give the same case, and the same bytes when
    written. Raises ValueError for an unknown kind, RuntimeError where no job of the seed could show it.
    """
    rng = np.random.default_rng([seed, 4242])
    request = _requested(rng, seed, dict(overrides))
    for _ in range(60):
        case = _attempt(rng, request)
        if case is not None:
            return case
    raise RuntimeError(f"seed {seed}: no job could show {request.kind}")


def _requested(rng: np.random.Generator, seed: int, overrides: dict[str, Any]) -> _Request:
    """Overrides where there are any, draws elsewhere; everything is drawn, so that later draws stay the same."""
    names = list(WEIGHTS)
    weights = np.array([WEIGHTS[k] for k in names], float)
    drawn = str(rng.choice(names, p=weights / weights.sum()))
    kind = overrides.pop("kind", drawn)
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is none of {KINDS}")
    sizes = rng.choice([8, 16, 32, 64], p=[0.3, 0.4, 0.2, 0.1])
    size = int(overrides.pop("world", sizes))
    mesh, cost = overrides.pop("mesh", None), overrides.pop("cost", (LEAST, MOST))
    size = mesh.world if mesh else size
    steps = int(overrides.pop("steps", rng.integers(4, 7) if size <= 16 else rng.integers(3, 5)))
    ragged = bool(overrides.pop("ragged", rng.random() < 0.35))
    if kind == "intermittent":
        steps = max(steps, 4)
    total = steps + 1 + 2 * ragged
    captured = tuple(range(1 + ragged, total - ragged))
    job = {k: overrides.pop(k) for k in list(overrides) if k in Job.__dataclass_fields__}
    return _Request(seed, kind, mesh, size, total, captured, ragged, cost, job, overrides)


def _attempt(rng: np.random.Generator, request: _Request) -> Case | None:
    """A case of one drawn job; None where that job cannot show the fault at the cost that was asked for."""
    kind, cost = request.kind, request.cost
    job = replace(draw_job(rng, kind, request.size, request.total, request.mesh), **request.job)
    style = request.capture.get("style", str(rng.choice(["megatron", "torchtitan", "undefined", "empty"])))
    naming = request.capture.get("naming", str(rng.choice(["global", "local"])))
    groups = _groups_for(job, style, naming)
    fault = faults.slack(rng, job, groups) if kind == "healthy_slack" else None
    if kind in NOBODYS_KINDS:
        fault = faults.nobodys(rng, kind, job, request.captured)
    elif kind not in ("healthy", "healthy_slack"):
        fault = faults.draw_fault(rng, kind, job, groups, request.captured)
        if fault is None:
            return None
    base = _world(job, groups, request.seed)
    if fault is None:
        found = (base, base.run(base.durations), 1.0)
    elif kind in NOBODYS_KINDS:
        healthy, _ = _mean_step(base, base.run(base.durations), request.captured)
        planted = faults.plant(fault, job, base.program, base.durations, healthy, request.seed)
        times = base.run(planted)
        found = (base, times, _mean_step(base, times, request.captured)[0] / healthy)
    else:
        found = _planted(rng, base, fault, request.captured, request.seed, cost)
        if found is None or (kind != "healthy_slack" and not cost[0] <= found[2] <= 2 * cost[1] - 1):
            return None
    world, times, slowdown = found
    truth = _truth(request, fault, world, times, slowdown)
    capture = replace(draw_capture(rng, world.job, truth.suspects), style=style, naming=naming)
    capture = replace(capture, **request.capture)
    capture.windows = _windows(world, times, request.captured, request.ragged, rng)
    return Case(
        request.seed, world.job, world.groups, world.program, times, capture, truth, captured=request.captured
    )


def _truth(request: _Request, fault: Fault | None, world: _World, times: Times, slowdown: float) -> Truth:
    """The truth about a simulated job; ranks with slack or longer documents are nobody's suspects."""
    kind = request.kind
    named = fault is not None and kind not in ("healthy_slack", "doc_imbalance", *NOBODYS_KINDS)
    suspects = frozenset(fault.ranks) if fault is not None and named else frozenset()
    verdict, cause = faults.VERDICTS[kind]
    variant = str(fault.detail.get("where", "")) if fault else ""
    if kind == "healthy_slack" and fault:
        variant = fault.kind
    _, spans = _mean_step(world, times, request.captured)
    return Truth(
        seed=request.seed,
        kind=kind,
        variant=variant,
        verdict=verdict,
        cause=cause,
        suspects=suspects,
        coords={r: world.job.mesh.coords(r) for r in sorted(suspects)},
        slowdown=slowdown,
        step_ms=[s / 1e6 for s in spans],
        order=world.job.mesh.order,
        sizes=dict(world.job.mesh.sizes),
        fault_steps=fault.steps if fault else None,
        severity=fault.severity if fault else 0.0,
    )


def _windows(
    world: _World, times: Times, captured: tuple[int, ...], ragged: bool, rng: np.random.Generator
) -> list[tuple[float, float]]:
    """Begin and end of each rank's capture, ns: its host's step bounds, or (ragged) times in the steps around."""
    windows = []
    for prog, end in zip(world.program.ranks, times.end, strict=True):
        sync = np.array(prog.kind) == SYNC
        bounds = np.concatenate([[0.0], end[sync]])
        begin, stop = float(bounds[captured[0]]), float(bounds[captured[-1] + 1])
        if ragged:
            begin -= float(rng.uniform(0.02, 0.7)) * float(bounds[captured[0]] - bounds[captured[0] - 1])
            stop += float(rng.uniform(0.02, 0.7)) * float(bounds[captured[-1] + 2] - bounds[captured[-1] + 1])
        windows.append((begin, stop))
    return windows
