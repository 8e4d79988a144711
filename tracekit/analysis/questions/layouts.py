"""The step of the same job on another mesh, from the costs of the recorded one.

The global batch, the model and the sizes of micro-batches stay. A layout is a step

    T = edges + Σ t_s + (m − 1) max t_s + transfers over replicas,

with t_s the time of stage s for one of m micro-batches: compute, waits by chance, gaps and transfers. The sum is what
the first micro-batch takes through all stages; the longest stage then sets the pace, as in GPipe and 1F1B. The recorded
step is multiplied by the ratio of both T, so that waits for slow replicas and stages keep their share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import log2
from statistics import NormalDist

from tracekit.analysis.questions.layout_costs import Costs
from tracekit.axes import AXES, CONTEXT, DATA, PARTS, PIPELINE, TENSOR, along
from tracekit.errors import UsageError
from tracekit.mesh import parse_sizes
from tracekit.thresholds.layouts import CUT_DOUBT, HOST_DOUBT, STAGE_DOUBT

_CUT = {
    PIPELINE: "what stages send each other",
    TENSOR: "what tensor ranks sum and gather",
    CONTEXT: "what context ranks exchange",
    DATA: "which gradients replicas sum",
}
"""What traces do not show of an axis that the recorded mesh does not use."""


@dataclass(frozen=True)
class Layout:
    """A mesh as a user writes it, and the sizes of all axes."""

    text: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Bound:
    """One assumption on what the traces leave open.

    gaps: 1 where gaps without compute keep their length although ranks hold another part of each operation, 0 where
    they change with it. latency: the share of transfers that does not depend on their size, where nothing shows it.
    doubt: the part of CUT_DOUBT and STAGE_DOUBT (HOST_DOUBT) by which the layout takes longer, -1 to 1.
    """

    gaps: float
    latency: float
    doubt: float


LIKELY = Bound(1.0, 0.5, 0.0)
BOUNDS = tuple(Bound(*ends) for ends in product((0.0, 1.0), (0.0, 1.0), (-1.0, 1.0)))


def parse_layout(text: str) -> Layout:
    """Return the mesh that `text` describes. Raises UsageError where it describes no mesh, or names experts."""
    try:
        given = parse_sizes(text)
    except UsageError as error:
        raise UsageError(str(error).replace("--mesh", "--to-mesh", 1)) from error
    parts = [axis for axis in given if axis in PARTS]
    if parts:
        raise UsageError(f"--to-mesh: {parts[0]} is not predicted; leave it out")
    written = ",".join(f"{axis}={size}" for axis, size in given.items())
    return Layout(written, {axis: given.get(axis, 1) for axis in AXES})


def check(costs: Costs, layout: Layout) -> None:
    """Raise UsageError, with what to record, where the recorded mesh does not show what `layout` would do."""
    for axis in AXES:
        if layout.sizes[axis] > 1 and costs.sizes.get(axis, 1) == 1:
            raise UsageError(
                f"--to-mesh {layout.text}: the recorded mesh has {axis}=1, so its traces do not show {_CUT[axis]}; "
                f"record a few steps with {axis}=2"
            )
    if costs.batches and costs.batches * costs.sizes[DATA] % layout.sizes[DATA]:
        total = costs.batches * costs.sizes[DATA]
        raise UsageError(
            f"--to-mesh {layout.text}: {total} micro-batches cannot be shared evenly by dp={layout.sizes[DATA]}; "
            f"choose a divisor of {total}"
        )


def step_ns(costs: Costs, sizes: Mapping[str, int], bound: Bound) -> float:
    """Return T of the costs on a mesh of these `sizes`, ns."""
    was = costs.sizes
    batches = costs.batches or 1
    now = batches * was[DATA] / sizes[DATA]
    inner = {TENSOR: was[TENSOR] / sizes[TENSOR], CONTEXT: was[CONTEXT] / sizes[CONTEXT]}
    part = inner[TENSOR] * inner[CONTEXT]
    gaps = bound.gaps + (1 - bound.gaps) * part
    doublings = sum(abs(log2(times)) for times in inner.values())
    unevenly = max(1 + bound.doubt * CUT_DOUBT * doublings, 0.0)
    stages = []
    for compute, summed, between, transfers, waits in costs.stages:
        sent = sum(
            ns * transfer_factor(costs, axis, sizes, bound)
            for axis, ns in transfers.items()
            if not along(axis, DATA)
        )
        late = sum(
            ns * wait_factor(costs, axes, sizes)
            for axes, ns in waits.items()
            if inner.keys() >= {*axes.split("_")}  # other waits are for stages and replicas
        )
        work = (compute * unevenly + late) * part
        stages.append((work + summed * inner[TENSOR] + between * gaps + sent) / batches)
    times = restaged(stages, sizes[PIPELINE])
    summed = sum(
        ns * transfer_factor(costs, axis, sizes, bound)
        for stage in costs.stages
        for axis, ns in stage.transfers.items()
        if along(axis, DATA)
    ) / len(costs.stages)
    changed = any(sizes[axis] != size for axis, size in was.items())
    missed = 1 + bound.doubt * (HOST_DOUBT if costs.on_host else STAGE_DOUBT) * changed
    return (costs.edges + sum(times) + (now - 1) * max(times) + summed) * missed


def transfer_factor(costs: Costs, axes: str, sizes: Mapping[str, int], bound: Bound) -> float:
    """Return by what the transfers along `axes` (as `cp_dp`) of a micro-batch, over replicas of a step, change.

    What does not depend on sizes grows with the members of a ring less one; the rest with what a member sends. Between
    stages both stay as they are. Operations along no axis of the mesh stay too.
    """
    names = axes.split("_")
    if not all(name in AXES for name in names):
        return 1.0
    was, now = (_members(names, mesh) for mesh in (costs.sizes, sizes))
    if now == 1:
        return 0.0
    if PIPELINE in names:
        return 1.0
    hops = (now - 1) / (was - 1)
    carried = hops * was / now
    divided = {PIPELINE, TENSOR} if DATA in names else {TENSOR, CONTEXT} - set(names)
    for axis in divided - set(names):
        carried *= costs.sizes[axis] / sizes[axis]
    calls = costs.sizes[PIPELINE] / sizes[PIPELINE] if DATA in names else 1.0
    known = costs.latency.get(axes)
    latency = bound.latency if known is None else known
    return latency * hops * calls + (1 - latency) * carried


def wait_factor(costs: Costs, axes: str, sizes: Mapping[str, int]) -> float:
    """Return by what the waits along `axes` for members that are late by chance change, beside the work between calls.

    Each call lasts until the last member has arrived: as the mean of the largest of so many normal deviations (Blom
    1958, "Statistical Estimates and Transformed Beta-Variables").
    """
    was, now = (_latest(_members(axes.split("_"), mesh)) for mesh in (costs.sizes, sizes))
    return now / was


def _latest(members: int) -> float:
    """Return the mean of the largest of so many standard normal deviations; 0 of one."""
    return NormalDist().inv_cdf((members - 0.375) / (members + 0.25))


def restaged(stages: list[float], count: int) -> list[float]:
    """Return the times of `count` stages with the work of `stages`; in the same unit.

    What the first and the last stage take beyond the shortest is theirs (embedding, loss) and stays with them; the rest
    is shared evenly, as layers are.
    """
    if count == len(stages):
        return list(stages)
    shortest = min(stages)
    first, last = stages[0] - shortest, stages[-1] - shortest
    if len(stages) == 1:
        first = last = 0.0
    share = (sum(stages) - first - last) / count
    times = [share] * count
    times[0] += first
    times[-1] += last
    return times


def _members(names: list[str], sizes: Mapping[str, int]) -> int:
    members = 1
    for name in names:
        members *= sizes[name]
    return members
