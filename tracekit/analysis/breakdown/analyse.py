"""The parts of a step: from an ingested run, opened as `slowrank` does, to a finding; volumes beside formulas.

A volume is the elements that a rank sends in a step. Sources of the formulas: ring all-reduce 2Φ(N−1)/N and ZeRO 3Φ
(Rajbhandari et al., "ZeRO", section 7); tensor parallelism by two all-reduces a layer in each direction and the
vocabulary-parallel loss (Shoeybi et al., "Megatron-LM", section 3). Φ is taken from the recording itself: formulas show
which scheme moves that much, not whether the model is right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.breakdown.parts import RankSteps, added, counted, shares_of, steps_of, waits_known
from tracekit.axes import DATA, TENSOR, along
from tracekit.case.case import Case
from tracekit.case.opened import opened, quality_of, ranks_of
from tracekit.findings import BreakdownFinding, RankBreakdown, StepsFinding, Traffic, Volume
from tracekit.rank_events.coded_words import Column, among
from tracekit.rank_events.operation_names import MESSAGES, ROOTED, ring_share
from tracekit.steps.step_ends import STEP_END
from tracekit.store import Run
from tracekit.thresholds.floor import SIZES_SHOWN, VOLUME_ERROR
from tracekit.timing.buffered_sends import bytes_of
from tracekit.timing.exposed_pieces import exposed_pieces
from tracekit.timing.measured import StepRange
from tracekit.units import F64, I64, Mask, ms

MESSAGE: Final = "message"
"""A send or a receive."""


@dataclass(frozen=True)
class Calls:
    """Communication of whole steps; one entry a call of a rank."""

    axis: npt.NDArray[np.object_]
    op: npt.NDArray[np.object_]  # a send or a receive is a message
    members: I64  # ranks of the group; 0 unknown
    rank_step: I64  # number of the rank's step
    elements: I64  # of the larger side; -1 unknown
    bytes: I64  # the same in bytes
    exposed: I64  # ns
    instance: I64

    @property
    def factor(self) -> F64:
        """The share of its size that a rank sends in a ring."""
        return np.array(
            [ring_share(str(op), int(n)) for op, n in zip(self.op, self.members, strict=True)], np.float64
        )

    def of(self, chosen: Mask) -> "Calls":
        """The chosen calls."""
        return Calls(
            self.axis[chosen], self.op[chosen], self.members[chosen], self.rank_step[chosen],
            self.elements[chosen], self.bytes[chosen], self.exposed[chosen], self.instance[chosen],
        )  # fmt: skip

    def kinds(self) -> dict[tuple[str, str, int], "Calls"]:
        """The calls by axis, operation and size of the group, in alphabetical order."""
        keys = list(zip(self.axis.tolist(), self.op.tolist(), self.members.tolist(), strict=True))
        distinct = sorted(set(keys))
        number = {key: i for i, key in enumerate(distinct)}
        code = np.array([number[key] for key in keys], np.int64)
        return {key: self.of(code == i) for i, key in enumerate(distinct)}


def analyse(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BreakdownFinding:
    """Return the parts of each recorded step of each rank (ns, they add up to it), and the traffic of each axis.

    `mesh`, `order`, `steps` and `progress` are as for `tracekit.slowrank`. Raises UsageError where mesh, order or job
    contradict the run; MeshError and InputError as `tracekit.slowrank` does.
    """
    case, choice = opened(run, mesh, order, steps, progress)
    known = waits_known(case)
    by_rank = {rank: steps_of(case, rank, known) for rank in case.ops.ranks}
    cells = tuple(cell for found in by_rank.values() for cell in found.cells)
    calls = calls_of(case)
    ranked = [_ranked(case, rank, found) for rank, found in by_rank.items() if found.cells]
    total = added(cell.parts for cell in cells)
    return BreakdownFinding(
        ranks_of(case), choice.finding,
        StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.whole)))),
        total, shares_of(total, [r.parts for r in ranked], counted(case, cells)),
        tuple(sorted(ranked, key=_waited)),
        cells, traffic_of(case, calls), volumes_of(calls), case.coverage, quality_of(case, choice), choice.notes,
    )  # fmt: skip


def _ranked(case: Case, rank: int, found: RankSteps) -> RankBreakdown:
    """All whole steps of `rank` in one."""
    coords = {axis: at for axis, at in case.mesh.coords(rank).items() if case.mesh.size(axis) > 1}
    host = next((r.host for r in case.run.ranks if r.rank == rank), None)
    parts = added(cell.parts for cell in found.cells)
    return RankBreakdown(rank, host, coords, len(found.cells), parts, found.communication_ns, found.hidden_ns)


def _waited(rank: RankBreakdown) -> tuple[float, int]:
    """The share of its steps for which a rank is known to have waited for others, and the rank: a key to sort by."""
    parts = rank.parts
    return (parts.bubble_ns + parts.waiting_ns) / max(parts.step_ns, 1), rank.rank


_GATHERS: Final = ("all_gather", "reduce_scatter", "all_reduce")
_REDUCES: Final = ("reduce_scatter", "all_reduce")
_GRADIENTS: Final = (
    ("2Φ(N−1)/N", "a ring all-reduce, ZeRO-1 and ZeRO-2", 2),
    ("3Φ(N−1)/N", "ZeRO-3", 3),
)
_LAYER: Final = 8
"""Four all-reduces of Φ = b·s·h, two in each direction, send 2Φ(N−1)/N each; so do pairs of gather and scatter."""
_MEGATRON: Final = ("8Φ(N−1)/N", "a layer and micro-batch of Megatron, Φ = b·s·h")
_LOSS: Final = ("Φ + N", "a micro-batch of a vocabulary-parallel loss, if Φ = b·s")


def volumes_of(calls: Calls) -> tuple[Volume, ...]:
    """Return volumes along each axis with a known formula, gradients first; none where sizes are unknown."""
    gradients: list[Volume] = []
    others: list[Volume] = []
    for axis in sorted({str(a) for a in calls.axis.tolist()}):
        mine = calls.of((calls.axis == axis) & np.isin(calls.op.astype(str), _GATHERS))
        if len(np.unique(mine.members)) != 1 or (mine.elements < 0).any():
            continue  # groups of several sizes share no formula, and unknown sizes none
        if along(axis, DATA):
            gradients += _gradients(axis, mine)
        elif axis == TENSOR:
            others += _activations(axis, mine)
    most = max((v.phi for v in gradients), default=0)
    return (*(v for v in gradients if v.phi > VOLUME_ERROR * most), *others)  # a loss is no gradient


def _gradients(axis: str, calls: Calls) -> list[Volume]:
    """The volumes of summed gradients and gathered parameters along the axis: Φ are the elements summed in a step."""
    summed = np.isin(calls.op.astype(str), _REDUCES)
    steps = len(np.unique(calls.rank_step))
    phi = float(calls.elements[summed].sum()) / steps
    if phi < 1:
        return []
    recorded, found = _sent(calls), []
    for formula, scheme, times in _GRADIENTS:
        expected = times * phi * ring_share("all_gather", int(calls.members[0]))
        error = abs(recorded / expected - 1)
        found.append(
            Volume(
                axis, "gradients", round(phi), recorded, formula, scheme, expected, recorded / expected,
                error <= VOLUME_ERROR,
            )
        )  # fmt: skip
    return found


def _activations(axis: str, calls: Calls) -> list[Volume]:
    """Return what tensor parallelism moves: Φ is the size of message that moves most elements in sum."""
    sizes, code = np.unique(calls.elements, return_inverse=True)
    phi = int(sizes[np.argmax(np.bincount(code, calls.elements * calls.factor))])
    if phi < 1:
        return []
    recorded = _sent(calls.of(calls.elements == phi))
    layer = _LAYER * phi * ring_share("all_gather", int(calls.members[0]))
    return [
        Volume(axis, "activations", phi, recorded, *_MEGATRON, layer, recorded / layer, None),
        *_values(axis, calls, phi),
    ]


def _values(axis: str, calls: Calls, phi: int) -> list[Volume]:
    """The volumes of all-reduces of a size that divides Φ = b·s·h: one value a token (a loss) or a channel (norms)."""
    part = calls.of((calls.op == "all_reduce") & (calls.elements > 1) & (calls.elements < phi))
    sizes = [n for n in np.unique(part.elements).tolist() if phi % n == 0]
    found = []
    for size in sizes:
        mine = part.of(part.elements == size)
        summed = float(mine.elements.sum()) / len(np.unique(mine.rank_step))
        expected = float(size + int(calls.members[0]))
        found.append(Volume(axis, "loss", size, summed, *_LOSS, expected, summed / expected, None))
    return sorted(found, key=lambda v: (-v.recorded, v.phi))[:SIZES_SHOWN]


def _sent(calls: Calls) -> float:
    """The elements that a rank sends in a step by a ring."""
    return float((calls.elements * calls.factor).sum()) / max(len(np.unique(calls.rank_step)), 1)


# The bytes and the bandwidth of each kind of communication along each axis.
#
# Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md): the size of a call is its larger side, and a
# ring sends 2(N−1)/N of an all-reduce and (N−1)/N of an all-gather, a reduce-scatter or an all-to-all.


def calls_of(case: Case) -> Calls:
    """Return all communication of the steps that ranks recorded whole."""
    ops, steps = case.ops, case.steps
    row = np.searchsorted(np.array(steps.ranks), ops.rank)
    label = ops.step if steps.labelled else np.zeros(len(ops.step), np.int64)
    column = np.minimum(np.searchsorted(np.array(steps.numbers), label), len(steps.numbers) - 1)
    whole = (np.array(steps.numbers)[column] == label) & np.isfinite(steps.wall[row, column])
    size = np.array([*(len(c.members) for c in ops.channels), 0], np.int64)
    op = ops.op[:]
    op[among(op, MESSAGES)] = MESSAGE
    exposed = np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        pieces = exposed_pieces(ops, case.waits, rank)
        np.add.at(exposed, pieces.row, pieces.end - pieces.start)
    every = Calls(
        case.axis[:], op, size[ops.channel],
        row * len(steps.numbers) + column, _by_token(ops.token, _elements), _by_token(ops.token, bytes_of),
        exposed, ops.instance,
    )  # fmt: skip
    return every.of(whole & ~ops.among((STEP_END,)))


def traffic_of(case: Case, calls: Calls) -> tuple[Traffic, ...]:
    """Return one row for each kind of `calls`; the kinds that compute waited longest for come first."""
    rows = [_row(case, *key, mine) for key, mine in calls.kinds().items()]
    return tuple(sorted(rows, key=lambda t: (-t.exposed_ns, -t.moved_bytes, t.axis, t.op, t.members)))


def _row(case: Case, axis: str, op: str, members: int, calls: Calls) -> Traffic:
    sized = calls.bytes >= 0
    share = ring_share(op, members)
    size = int(calls.bytes[sized].sum())
    speed = None if op in ROOTED else _speed(case, calls)
    return Traffic(
        axis, op, members, len(np.unique(calls.rank_step)), len(sized), int((~sized).sum()), size,
        round(size * share), int(calls.exposed.sum()), speed, None if speed is None else speed * share,
    )  # fmt: skip


def _speed(case: Case, calls: Calls) -> float | None:
    """The bytes over the transfer time, GB/s, of the instances that all members recorded; None without any."""
    known = calls.of((calls.bytes > 0) & (calls.instance >= 0))
    instance, first = np.unique(known.instance, return_index=True)
    waits = case.waits
    good = waits.complete[instance] & waits.timed[instance] & (waits.delivery[instance] > 0)
    taken = int(waits.delivery[instance[good]].sum())
    return float(known.bytes[first[good]].sum()) / taken if taken else None  # bytes a ns are GB a second


def _by_token(token: Column, of: Callable[[str], int]) -> I64:
    """The result of `of(token)` for each operation; called once for each distinct token."""
    return np.array([of(t) for t in token.words.tolist()], np.int64)[token.codes]


def _elements(token: str) -> int:
    """The elements of a call from its token (kind, dtype, elements); −1 where they are unknown."""
    count = token.rpartition("/")[2]
    return int(count) if count.isdigit() else -1
