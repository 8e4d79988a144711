"""What the step could take: the waterfall from peak to achieved FLOP/s, and the step under five assumptions."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tracekit.analysis.floor.given import Given, read_plan
from tracekit.analysis.floor.waterfall import NEEDED, Measure, amounts_of, measured, savings_of
from tracekit.case.opened import opened, quality_of, ranks_of
from tracekit.findings import StepsFinding
from tracekit.findings.floor import FloorFinding, FloorLimit, FloorPart, FloorUnknown
from tracekit.mesh import Mesh
from tracekit.store import Run
from tracekit.timing.measured import StepRange
from tracekit.units import ms

_REMEDY: Final = {
    "bubble": "more micro-batches, or a schedule with a smaller bubble (reftrain plan)",
    "imbalance": "tracekit slowrank names the late ranks; level data, experts and stages",
    "allocator_calls": "no empty_cache in the step; cudaMalloc and cudaFree hold up the device: expandable_segments,"
    " less memory, fixed shapes",
    "launch_gaps": "launch earlier: CUDA graphs, fewer synchronisations, a data loader that runs ahead",
    "idle": "remove waits between streams, and copies that the next kernel waits for",
    "small_kernels": "fuse small kernels (torch.compile), or make micro-batches larger",
    "slow_kernels": "compare clocks and power of the slower ranks with the rank that runs the same kernels fastest",
    "recomputation": "keep more activations: recompute attention alone, or fewer layers",
    "other_work": "matrix products nearer to peak (larger, 16-bit), and fewer other kernels",
    "unknown": "record whole steps, with kernels and their launches",
    "transfer": "overlap with compute, fewer bytes, or the axis inside the node",
    "either": "record every rank of the group: waiting and transfer then come apart",
}
_ON_CPU: Final = "less Python between operators: larger operators, torch.compile"
_GIVE_MODEL: Final = "--model parameters=8e9,tokens=4M, or traces with record_shapes=True"
_GIVE_PLAN: Final = "--plan FILE, from reftrain plan … --json FILE"
_PEERS: Final = "traces of more ranks that do the same work"


def floor(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
    flops: float | None = None,
    peak_tflops: float | None = None,
    plan: str | None = None,
) -> FloorFinding:
    """Return the parts of the step (ns, they add up to it), what each brings at most, and the step's limits (ms).

    `flops` are the model's, of one step of the whole job without recomputation; left out, those of products with
    recorded shapes. `peak_tflops` is of one device; left out, that of the device which the traces name. `plan` is the
    file of an answer of `reftrain plan`. `mesh`, `order`, `steps` and `progress` are as for `tracekit.slowrank`.
    Raises UsageError where mesh, order, job, FLOPs or plan contradict the run, InputError where the plan cannot be
    read; MeshError and InputError as `tracekit.slowrank`.
    """
    given = Given(flops, peak_tflops, None if plan is None else read_plan(plan))
    case, choice = opened(run, mesh, order, steps, progress)
    ranks = ranks_of(case)
    given.check(ranks.expected)
    measure = measured(case)
    cells, total = len(measure.cells), measure.total.step_ns
    given = given.with_flops(measure.flops(ranks.expected)).with_devices(_devices(measure))
    given = given.within(ranks.expected, measure.kept_ns / max(measure.count, 1))
    useful = given.useful_ns(ranks.expected)
    unknown = _unknown(measure, given)
    hidden = {u.part for u in unknown}
    parts = _parts(measure, useful, hidden)
    step = measure.step_ns
    return FloorFinding(
        ranks, choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.whole)))),
        ms(step), ms(case.residual_ns), cells, total, given.flops, given.source, given.peak_tflops,
        given.peak_from, given.device, None if useful is None or not step else useful / step,
        parts, unknown, _limits(measure, step, hidden, useful, given), measure.best.classes,
        case.coverage, quality_of(case, choice), choice.notes,
    )  # fmt: skip


def _parts(measure: Measure, useful_ns: float | None, hidden: set[str]) -> tuple[FloorPart, ...]:
    """Return the parts of the summed steps; a `hidden` one only where some of it is known.

    useful_ns: what the model's FLOPs need at peak in one step of a rank; None where not known.
    """
    every = amounts_of(measure, None if useful_ns is None else useful_ns * measure.count)
    amounts = {name: ns for name, ns in every.items() if ns or name not in hidden}
    saved = savings_of(measure, [name for name, ns in amounts.items() if ns], useful_ns or 0.0)
    return tuple(_part(measure, name, ns, saved.get(name)) for name, ns in amounts.items())


def _part(measure: Measure, name: str, ns: int, saved: float | None) -> FloorPart:
    """Return a part with its remedy; a part that takes no time has none and brings nothing.

    What time brings that may be waiting or transfer is not known before they come apart.
    """
    count, total = max(measure.count, 1), max(measure.total.step_ns, 1)
    kind = name if name in _REMEDY else name.rpartition(" ")[2]
    remedy = _REMEDY.get(kind, "") if ns else ""
    if name == "launch_gaps" and ns and not _on_gpu(measure):
        remedy = _ON_CPU
    brings = None if name in NEEDED or kind == "either" else ms(saved or 0.0)
    return FloorPart(name, ns, ms(ns / count), ns / total, brings, remedy)


def _unknown(measure: Measure, given: Given) -> tuple[FloorUnknown, ...]:
    """Return the parts that the evidence does not show, with what would show them."""
    case, found = measure.case, []
    inside = "other_work" if given.flops and given.peak_tflops else "compute"
    if case.table is not None:
        needs = "traces: an operation table holds no kernels and no host"
        found += [FloorUnknown(part, inside, needs) for part in ("small_kernels", "recomputation")]
        found += [FloorUnknown(part, "unknown", needs) for part in ("launch_gaps", "allocator_calls")]
    else:
        if not _on_gpu(measure):
            found.append(
                FloorUnknown("small_kernels", inside, "kernels of a device: these traces hold only the CPU's")
            )
        if not any(w.shows_recomputation for w in measure.works):
            needs = "operators inside the nodes of autograd: profile the host too, activities=[CPU, CUDA]"
            found.append(FloorUnknown("recomputation", inside, needs))
    if not measure.best.classes:
        found.append(FloorUnknown("slow_kernels", inside, _PEERS))
    if len(case.ops.ranks) < 2:
        found.append(FloorUnknown("imbalance", "transfers", "traces of the other ranks"))
    if not (given.flops and given.peak_tflops):
        found.append(FloorUnknown("model", inside, _missing(given)))
    return tuple(found)


def _missing(given: Given) -> str:
    """Return what a roofline needs and neither the user nor the traces give."""
    pairs = ((given.flops, _GIVE_MODEL), (given.peak_tflops, given.needs_peak))
    return ", and ".join(needs for value, needs in pairs if not value)


def _limits(
    measure: Measure, step: float, hidden: set[str], useful: float | None, given: Given
) -> tuple[FloorLimit, ...]:
    """Return the step under each of the five assumptions."""
    removed = measure.removed
    alone = len(measure.case.ops.ranks) < 2
    waits = None if alone else ms(step - measure.level_ns)
    mixed = alone and any(e.open_ns for e in measure.total.exposed)  # waiting and transfer in one
    covered = (
        None if mixed else ms(max(step - removed.transfers(), min(removed.longest_transfers_ns(), step)))
    )
    slow = "slow_kernels" in hidden
    at_best = None if slow else ms(step - removed.work(measure.spread(measure.best.slow)))
    meaning, planned = _planned(given, measure.case.mesh, step)
    return (
        FloorLimit("no_waiting", "ranks share the work evenly", waits, _PEERS if alone else ""),
        FloorLimit("hidden_communication", "no transfer is exposed; waits for late ranks are", covered,
                   _PEERS if mixed else ""),
        FloorLimit("best_kernels", "each class of kernel at the best rate of a rank", at_best, _PEERS if slow else ""),
        FloorLimit("roofline", "the model's FLOPs alone, at peak",
                   None if useful is None else ms(useful), _missing(given) if useful is None else ""),
        FloorLimit("plan", meaning, planned, "" if planned is not None else _GIVE_PLAN),
    )  # fmt: skip


def _planned(given: Given, mesh: Mesh, step: float) -> tuple[str, float | None]:
    """Return (meaning, ms) of the plan's best choice: the recorded step, times what the plan expects of the change."""
    if given.plan is None:
        return "the best mesh and schedule of reftrain plan", None
    best = given.plan.taken
    here = given.plan.step_of(mesh)
    if here is None:
        return f"{best.words}, as projected: the plan holds no step of the recorded mesh", 1000 * best.step_s
    return f"{best.words}, {best.step_s / here:.3f} of what is projected for this mesh", ms(
        step * best.step_s / here
    )


def _devices(measure: Measure) -> list[str]:
    """Return the name that the trace of each rank gives its device; empty where it names none, or runs no kernels."""
    ops = measure.case.ops
    return [ops.per_rank[r.rank].on_gpu * r.device for r in measure.case.run.ranks if r.rank in ops.per_rank]


def _on_gpu(measure: Measure) -> bool:
    return any(o.on_gpu for o in measure.case.ops.per_rank.values())
