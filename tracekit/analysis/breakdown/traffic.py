"""The bytes and the bandwidth of each kind of communication along each axis.

Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md): the size of a call is its larger side, and a ring sends
2(N−1)/N of an all-reduce and (N−1)/N of an all-gather, a reduce-scatter or an all-to-all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.case import Case
from tracekit.findings import Traffic
from tracekit.matching.ring import ring_share
from tracekit.rank_events.coded_words import among, numbered
from tracekit.rank_events.operation_names import MESSAGES, ROOTED
from tracekit.steps.step_ends import STEP_END
from tracekit.timing.buffered_sends import bytes_of
from tracekit.timing.exposed_pieces import exposed_pieces
from tracekit.units import F64, I64, Mask

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


def calls_of(case: Case) -> Calls:
    """Return all communication of the steps that ranks recorded whole."""
    ops, steps = case.ops, case.steps
    row = np.searchsorted(np.array(steps.ranks), ops.rank)
    label = ops.step if steps.labelled else np.zeros(len(ops.step), np.int64)
    column = np.minimum(np.searchsorted(np.array(steps.numbers), label), len(steps.numbers) - 1)
    whole = (np.array(steps.numbers)[column] == label) & np.isfinite(steps.wall[row, column])
    size = np.array([*(len(c.members) for c in ops.channels), 0], np.int64)
    op = ops.op.copy()
    op[among(op, MESSAGES)] = MESSAGE
    exposed = np.zeros(len(ops.start), np.int64)
    for rank in ops.ranks:
        pieces = exposed_pieces(ops, case.waits, rank)
        np.add.at(exposed, pieces.row, pieces.end - pieces.start)
    every = Calls(
        case.axis, op, size[ops.channel],
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


def _by_token(token: npt.NDArray[np.object_], of: Callable[[str], int]) -> I64:
    """The result of `of(token)` for each operation; called once for each distinct token."""
    distinct, code = numbered(token)
    return np.array([of(t) for t in distinct], np.int64)[code]


def _elements(token: str) -> int:
    """The elements of a call from its token (kind, dtype, elements); −1 where they are unknown."""
    count = token.rpartition("/")[2]
    return int(count) if count.isdigit() else -1
