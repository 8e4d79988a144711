"""The parts of each recorded step of each rank, which add up to it in whole nanoseconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.axes import PIPELINE, along
from tracekit.case.case import Case
from tracekit.findings import ExposedTime, Share, StepBreakdown, TimeParts
from tracekit.intervals import Intervals, covered_until, subtract, union
from tracekit.matching.clock import linked
from tracekit.matching.match import message_ends
from tracekit.rank_events.operation_names import ROOTED
from tracekit.steps.steps import windows_of
from tracekit.timing.device_gaps import gaps_of
from tracekit.timing.exposed_pieces import exposed_pieces
from tracekit.units import I64, Mask

_BUBBLE: Final = "bubble"
_WAIT, _TRANSFER, _OPEN = range(3)


@dataclass(frozen=True)
class RankSteps:
    """One rank's whole steps, its communication in all of them, and the part hidden by compute; ns."""

    cells: tuple[StepBreakdown, ...]
    communication_ns: int
    hidden_ns: int


def steps_of(case: Case, rank: int, known_waits: Mask) -> RankSteps:
    """Return the steps of `rank`, cut into parts; the mask is from `waits_known`. Raises InputError on a bad file."""
    steps, source = case.steps, case.ops.per_rank[rank]
    row = steps.row(rank)
    columns = np.flatnonzero(np.isfinite(steps.wall[row])).tolist()
    if not columns:
        return RankSteps((), 0, 0)
    windows = windows_of(case.ops, steps, rank, columns)
    wall = (steps.wall - steps.tail)[row, columns].astype(np.int64)
    gaps = gaps_of(case.run, case.ops, rank)
    exposed = case.ops.progress[rank].exposed
    compute = _within(subtract(source.computed, exposed), windows)
    host, idle, unknown = (_within(kind, windows) for kind in (gaps.host, gaps.idle, gaps.unknown))
    unknown += wall - (windows[1] - windows[0])  # the time before the recording
    held = {key: _within(spans, windows) for key, spans in _held_up(case, rank, known_waits).items()}
    axes = sorted({axis for axis, _ in held if axis != _BUBBLE}, key=lambda a: _place(case, a))
    none = np.zeros(len(columns), np.int64)
    cells = []
    for i, column in enumerate(columns):
        kinds = [[int(held.get((axis, kind), none)[i]) for kind in range(3)] for axis in axes]
        parts = TimeParts(
            int(wall[i]), int(compute[i]),
            tuple(ExposedTime(axis, *kind) for axis, kind in zip(axes, kinds, strict=True)),
            int(held.get((_BUBBLE, _WAIT), none)[i]), int(host[i]), int(idle[i]), int(unknown[i]),
        )  # fmt: skip
        cells.append(StepBreakdown(rank, steps.numbers[column], parts))
    running = union(source.start, source.end)
    beside = subtract(running, subtract(running, source.busy))
    return RankSteps(tuple(cells), int(_within(running, windows).sum()), int(_within(beside, windows).sum()))


def added(parts: Iterable[TimeParts]) -> TimeParts:
    """Return the sums of `parts`; axes in the order of their first occurrence."""
    every = list(parts)
    axes = dict.fromkeys(e.axis for p in every for e in p.exposed)
    spent = {axis: [e for p in every for e in p.exposed if e.axis == axis] for axis in axes}
    return TimeParts(
        sum(p.step_ns for p in every), sum(p.compute_ns for p in every),
        tuple(
            ExposedTime(
                a, sum(e.wait_ns for e in s), sum(e.transfer_ns for e in s), sum(e.open_ns for e in s)
            )
            for a, s in spent.items()
        ),
        sum(p.bubble_ns for p in every), sum(p.host_ns for p in every), sum(p.idle_ns for p in every),
        sum(p.unknown_ns for p in every),
    )  # fmt: skip


def counted(case: Case, cells: Sequence[StepBreakdown]) -> float:
    """Return how many whole steps `cells` make up."""
    share = dict(zip(case.steps.numbers, case.steps.shares.tolist(), strict=True))
    return float(sum(share[cell.step] for cell in cells))


def shares_of(total: TimeParts, ranks: Sequence[TimeParts], count: float) -> tuple[Share, ...]:
    """Return each part of `total`, the sum of `count` steps, with its spread over `ranks`; no empty exposed parts."""
    spent = named(total)
    by_rank = [named(parts) for parts in ranks]
    found = []
    for part, ns in spent.items():
        shares = [named.get(part, 0) / max(p.step_ns, 1) for named, p in zip(by_rank, ranks, strict=True)]
        spread = (min(shares), float(np.median(shares)), max(shares)) if shares else (0.0, 0.0, 0.0)
        found.append(Share(part, ns / max(count, 1), ns / max(total.step_ns, 1), *spread))
    return tuple(found)


def named(parts: TimeParts) -> dict[str, int]:
    """The parts by name, in the order of the answer."""
    kinds = {
        f"{e.axis} {kind}": ns
        for e in parts.exposed
        for kind, ns in (("waiting", e.wait_ns), ("transfer", e.transfer_ns), ("either", e.open_ns))
        if ns
    }
    ends = {"host": parts.host_ns, "idle": parts.idle_ns, "unknown": parts.unknown_ns}
    return {"compute": parts.compute_ns, **kinds, "bubble": parts.bubble_ns, **ends}


def waits_known(case: Case) -> Mask:
    """Return whether the waits of all operations in each operation's kernel are known; else it may wait or transfer."""
    ops = case.ops
    known = case.matched & ~ops.among(ROOTED)
    send, receive = message_ends(ops)
    apart = ~linked(ops, case.clocks, send, receive)
    known[send[apart]] = known[receive[apart]] = False
    unknown = np.bincount(ops.kernel, ~known, minlength=1)
    return np.asarray(unknown[ops.kernel] == 0, bool)


def between_stages(case: Case) -> Mask:
    """Return whether each operation is a message between pipeline stages."""
    through = case.axis.among([axis for axis in case.axis.kinds() if along(axis, PIPELINE)])
    return case.in_message & (case.ops.channel >= 0) & through


def _within(spans: Intervals, windows: Intervals) -> I64:
    """The length of the disjoint `spans` inside each of the `windows`, ns."""
    return covered_until(spans, windows[1]) - covered_until(spans, windows[0])


def _held_up(case: Case, rank: int, known_waits: Mask) -> dict[tuple[str, int], Intervals]:
    """Return when the rank waited for communication, by axis and by what it waited for; disjoint, ns."""
    ops = case.ops
    pieces = exposed_pieces(ops, case.waits, rank)
    axis, known = case.axis[pieces.row].astype(str), known_waits[pieces.row]
    arrived = np.clip(ops.start[pieces.row] + case.waits.held[pieces.row], pieces.start, pieces.end)
    bubble = known & between_stages(case)[pieces.row]
    found = {(_BUBBLE, _WAIT): union(pieces.start[bubble], arrived[bubble])}
    for name in dict.fromkeys(axis.tolist()):
        mine = axis == name
        late, open_ = mine & known & ~bubble, mine & ~known
        found[name, _WAIT] = union(pieces.start[late], arrived[late])
        found[name, _TRANSFER] = union(arrived[mine & known], pieces.end[mine & known])
        found[name, _OPEN] = union(pieces.start[open_], pieces.end[open_])
    return found


def _place(case: Case, axis: str) -> tuple[int, str]:
    """Return the place of an axis in a list: single axes as the mesh has them, then planes, then what is neither."""
    order = [*case.mesh.order, *case.mesh.parts]
    return (order.index(axis) if axis in order else len(order) + (axis in {"other", "unknown"}), axis)
