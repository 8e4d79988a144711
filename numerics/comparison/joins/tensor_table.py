"""Joins two captures tensor by tensor, for runs of any meshes.

The fingerprints of all parts of a global tensor are added, so that sharding, rank order, micro-batches and stages do
not matter. Where the parts of either run do not cover the tensor exactly once, only equal boxes are compared.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.boxes import covers, is_whole
from numerics.keys import Ints, Keys, first_of_each, join, keys_of, occurrence
from numerics.schema import COLLECTIVES


class Status(IntEnum):
    """How a tensor or row compares."""

    EQUAL = 0
    SIGNED_ZERO = 1  # equal but for the sign of zeros
    DIFFERENT = 2
    UNMATCHED = 3  # only one run has it, or no common part


@dataclass(frozen=True)
class TensorTable:
    """Global tensors of two runs: one entry for each (step, phase, kind, tensor, occurrence), arrays of equal length.

    `left` and `right` are each run's first row of the tensor in time, -1 where a run lacks it. `relative` is the norm
    of the difference over the norm of the right one, estimated from sketches (NaN where unknown). `whole` says that
    both runs cover the tensor exactly once, `shapes_differ` that their global shapes are not the same.
    """

    status: Ints
    left: Ints
    right: Ints
    relative: np.ndarray
    whole: np.ndarray
    shapes_differ: np.ndarray
    step: Ints
    tensor: Ints
    kind: Ints
    phase: Ints


@dataclass(frozen=True)
class _Side:
    """One run's global tensors (sorted unique `key`) and their parts, without copies."""

    key: Keys
    first: Ints  # the row of each tensor that ran first
    starts: Ints  # its first part; the parts of a tensor stand together
    total: Keys
    total_nz: Keys
    complete: np.ndarray
    part_key: Keys
    part_row: Ints


def _located(run: Columns) -> Ints:
    """Return micro-batch and data-parallel rank as one number where boxes do not separate them, -1 elsewhere."""
    codes = run["global_shape"] * (1 << 32) + run["boxes"]
    unique, inverse = np.unique(codes, return_inverse=True)
    texts = [(run.names.text(int(c >> 32)), run.names.text(int(c & 0xFFFFFFFF))) for c in unique]
    place = run["micro_batch"] * (1 << 20) + run["dp"]
    loose = np.flatnonzero(
        np.array([is_whole(*pair) for pair in texts], bool)[inverse] & (run["micro_batch"] >= 0)
    )
    located = np.full(len(run), -1, np.int64)
    if len(loose):
        columns = ("step", "phase", "kind", "tensor", "boxes")
        _, group = np.unique(keys_of(*(run[c][loose] for c in columns)), return_inverse=True)
        least, most = np.full(group.max() + 1, 1 << 60), np.full(group.max() + 1, -1)
        np.minimum.at(least, group, place[loose])
        np.maximum.at(most, group, place[loose])
        # runs with other numbers of micro-batches or dp ranks hold other contents at the same place
        layout = (int(run["micro_batch"].max()) + 1) * 4096 + int(run["dp"].max()) + 1
        apart = keys_of(place[loose], np.full(len(loose), layout, np.int64)).view(np.int64)
        located[loose] = np.where((least < most)[group], apart, -1)
    return located


def _side(run: Columns) -> _Side:
    """Return the global tensors of a run, with the sums of the fingerprints of their parts."""
    skipped = run.named("kind", *COLLECTIVES, "param_grad_local")
    chosen = np.flatnonzero(~skipped & (run["partial"] < 0) & (run["replica"] == 0))
    base = keys_of(run["step"], run["phase"], run["kind"], run["tensor"], _located(run))[chosen]
    repeat = occurrence(keys_of(base, run["boxes"][chosen], run["rank"][chosen]), run["order"][chosen])
    key = keys_of(base, repeat)
    part = keys_of(key, run["boxes"][chosen])
    by = np.lexsort((run["rank"][chosen], part, key))
    key, part, rows = key[by], part[by], chosen[by]
    once = first_of_each(part)
    key, part, rows = key[once], part[once], rows[once]
    starts = np.flatnonzero(first_of_each(key))
    if not len(starts):
        none, empty = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        return _Side(none, empty, empty, none, none, np.zeros(0, bool), none, empty)
    return _Side(
        key=key[starts],
        first=_earliest(run, rows, starts),
        starts=starts,
        total=np.add.reduceat(run.digest[rows], starts),
        total_nz=np.add.reduceat(run.digest_nz[rows], starts),
        complete=_complete(run, rows, starts),
        part_key=part,
        part_row=rows,
    )


def _earliest(run: Columns, rows: Ints, starts: Ints) -> Ints:
    """Return for each tensor the row of the part that ran first; parts are sorted by their boxes, not by time."""
    tensor = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(rows)]))
    by = np.lexsort((run["rank"][rows], run["order"][rows], tensor))
    return np.asarray(rows[by[starts]], np.int64)


def _complete(run: Columns, rows: Ints, starts: Ints) -> np.ndarray:
    """Return for each tensor whether its parts cover it exactly once."""
    boxes = run["boxes"][rows]
    together = np.add.reduceat(keys_of(boxes), starts)
    pattern = keys_of(together.view(np.int64), run["global_shape"][rows[starts]])
    ends = np.r_[starts[1:], len(rows)]
    _, example, inverse = np.unique(pattern, return_index=True, return_inverse=True)
    answers = np.zeros(len(example), bool)
    for number, at in enumerate(example):
        texts = sorted(run.names.text(int(b)) for b in boxes[starts[at] : ends[at]])
        shape = run.names.text(int(run["global_shape"][rows[starts[at]]]))
        answers[number] = covers(shape, tuple(texts))
    return answers[inverse]


def by_tensor(left: Columns, right: Columns) -> TensorTable:
    """Return how two runs compare tensor by tensor; every tensor of either is an entry."""
    a, b = _side(left), _side(right)
    at = join(a.key, b.key)
    shared = _Shared(left, right, a, b, np.flatnonzero(at >= 0), at[at >= 0])
    status, relative, whole, shapes_differ = shared.compared()
    alone = np.flatnonzero(join(b.key, a.key) < 0)
    tail = len(alone)
    second = np.full(len(a.key), -1, np.int64)
    second[shared.mine] = b.first[shared.other]
    names = ("step", "tensor", "kind", "phase")
    return TensorTable(
        status=np.r_[status, np.full(tail, Status.UNMATCHED, np.int64)],
        left=np.r_[a.first, np.full(tail, -1, np.int64)],
        right=np.r_[second, b.first[alone]],
        relative=np.r_[relative, np.full(tail, np.nan)],
        whole=np.r_[whole, np.zeros(tail, bool)],
        shapes_differ=np.r_[shapes_differ, np.zeros(tail, bool)],
        **{name: np.r_[left[name][a.first], right[name][b.first[alone]]] for name in names},
    )


@dataclass(frozen=True)
class _Shared:
    """The tensors that both runs have: entry `mine[i]` of the left side is entry `other[i]` of the right."""

    left: Columns
    right: Columns
    a: _Side
    b: _Side
    mine: Ints
    other: Ints

    def compared(self) -> tuple[Ints, np.ndarray, np.ndarray, np.ndarray]:
        """Return status, relative difference, `whole` and `shapes_differ` of every entry of the left side."""
        count = len(self.a.key)
        status = np.full(count, Status.UNMATCHED, np.int64)
        relative = np.full(count, np.nan)
        whole, shapes = np.zeros(count, bool), np.zeros(count, bool)
        mine, other = self.mine, self.other
        if not len(mine):
            return status, relative, whole, shapes
        rows, others = self.a.first[mine], self.b.first[other]
        shapes[mine] = self.left["global_shape"][rows] != self.right["global_shape"][others]
        whole[mine] = self.a.complete[mine] & self.b.complete[other] & ~shapes[mine]
        same_type = self.left["dtype"][rows] == self.right["dtype"][others]
        found = _statuses(
            same_type & (self.a.total[mine] == self.b.total[other]),
            same_type & (self.a.total_nz[mine] == self.b.total_nz[other]),
        )
        status[mine] = np.where(whole[mine], found, status[mine])
        for n in np.flatnonzero(~shapes[mine] & ((found == Status.DIFFERENT) | ~whole[mine])):
            entry = int(mine[n])
            by_sums = bool(whole[entry])
            relative[entry], by_boxes = self._by_parts(entry, int(other[n]), by_sums=by_sums)
            status[entry] = status[entry] if by_sums else by_boxes
        return status, relative, whole, shapes

    def _by_parts(self, entry: int, other: int, *, by_sums: bool) -> tuple[float, int]:
        """Return one tensor's relative difference and status from its parts, from equal boxes unless `by_sums`."""
        mine, theirs = _parts(self.a, entry), _parts(self.b, other)
        rows, others = self.a.part_row[mine], self.b.part_row[theirs]
        if not by_sums:
            match = join(self.a.part_key[mine], self.b.part_key[theirs])
            rows, others = rows[match >= 0], others[match[match >= 0]]
        if not len(rows):
            return np.nan, Status.UNMATCHED
        relative = sketch_distance(self.left.sketch[rows].sum(0), self.right.sketch[others].sum(0))
        if by_sums:
            return relative, Status.DIFFERENT
        same_type = self.left["dtype"][rows] == self.right["dtype"][others]
        equal = same_type & (self.left.digest[rows] == self.right.digest[others])
        equal_nz = same_type & (self.left.digest_nz[rows] == self.right.digest_nz[others])
        return relative, int(_statuses(equal, equal_nz).max())


def _statuses(equal: np.ndarray, equal_nz: np.ndarray) -> Ints:
    return np.where(equal, Status.EQUAL, np.where(equal_nz, Status.SIGNED_ZERO, Status.DIFFERENT)).astype(
        np.int64
    )


def _parts(side: _Side, entry: int) -> slice:
    end = side.starts[entry + 1] if entry + 1 < len(side.starts) else len(side.part_row)
    return slice(int(side.starts[entry]), int(end))


def sketch_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the norm of the difference of two sketches over the norm of `b`; NaN where that is not a number."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))
