"""Joins two captures tensor by tensor, for runs of any meshes.

The fingerprints of all parts of a global tensor are added, so that sharding, rank order, micro-batches and stages do
not matter. Where the parts of both runs do not cover the tensor exactly once, only equal boxes are compared.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np

from numerics.columns import Frame, Ints, Keys, join, keys_of, occurrence
from numerics.schema import Box, parse_boxes, parse_shape, whole
from tracekit.errors import InputError

COLLECTIVES: Final = ("collective_in", "collective_out")
_MOST_CELLS: Final = 1 << 22


class Status(IntEnum):
    """How a tensor or row compares."""

    EQUAL = 0
    SIGNED_ZERO = 1  # equal but for the sign of zeros
    DIFFERENT = 2
    UNMATCHED = 3  # only one run has it, or no common part


@dataclass(frozen=True)
class TensorTable:
    """Global tensors of two runs, one entry a (step, phase, kind, tensor, occurrence); arrays of equal length.

    `left` and `right` are the row of each frame that ran first, -1 where a run lacks the tensor; `relative` is the
    norm of the difference over the norm of the right one, estimated from sketches (NaN where unknown); `whole`
    says whether both runs cover the tensor exactly once, `shapes_differ` whether it is another tensor altogether.
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
    """One run's global tensors (sorted unique `key`) and their parts, copies left out."""

    key: Keys
    first: Ints  # the row of each tensor that ran first
    starts: Ints  # its first part; the parts of a tensor stand together
    total: Keys
    total_nz: Keys
    complete: np.ndarray
    part_key: Keys
    part_row: Ints


def _located(run: Frame) -> Ints:
    """Micro-batch and data-parallel rank where the box does not tell them apart; -1 elsewhere."""
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
        layout = (
            (int(run["micro_batch"].max()) + 1) * 4096 + int(run["dp"].max()) + 1
        )  # another one: other contents
        located[loose] = np.where((least < most)[group], place[loose] + layout * (1 << 44), -1)
    return located


@lru_cache(maxsize=1 << 16)
def is_whole(shape: str, boxes: str) -> bool:
    """Whether the one box is the whole tensor; InputError where the shape is none."""
    try:
        return boxes == ",".join(f"0+{n}" for n in parse_shape(shape))
    except ValueError as error:
        raise InputError(f"damaged rows in the capture ({error}); capture the run again") from error


def _side(run: Frame) -> _Side:
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


def _earliest(run: Frame, rows: Ints, starts: Ints) -> Ints:
    """Row of each tensor's part that ran first: parts stand by their boxes, which says nothing of time."""
    tensor = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(rows)]))
    by = np.lexsort((run["rank"][rows], run["order"][rows], tensor))
    return np.asarray(rows[by[starts]], np.int64)


def first_of_each(ordered: Keys) -> np.ndarray:
    """Mark the first of each stretch of equal keys."""
    marks = np.ones(len(ordered), bool)
    marks[1:] = ordered[1:] != ordered[:-1]
    return marks


def _complete(run: Frame, rows: Ints, starts: Ints) -> np.ndarray:
    """Whether the parts of each tensor cover it exactly once."""
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


@lru_cache(maxsize=4096)
def covers(shape_text: str, box_texts: tuple[str, ...]) -> bool:
    """Whether the boxes cover a tensor of this shape exactly once; InputError where they are none."""
    try:
        shape = parse_shape(shape_text)
        boxes = [
            box for text in box_texts for box in (parse_boxes(text) if text or shape else (Box((), ()),))
        ]
    except ValueError as error:
        raise InputError(f"damaged rows in the capture ({error}); capture the run again") from error
    if any(len(box.sizes) != len(shape) for box in boxes):
        raise InputError("damaged rows in the capture (boxes of other dimensions); capture the run again")
    size = whole(shape)[0].numel
    boxes = [box for box in boxes if box.numel]
    if sum(box.numel for box in boxes) != size or not boxes:
        return size == 0
    cuts = [
        sorted({0, extent, *(b.offsets[d] for b in boxes), *(b.offsets[d] + b.sizes[d] for b in boxes)})
        for d, extent in enumerate(shape)
    ]
    cells = [len(cut) - 1 for cut in cuts]
    if (
        any(cut[-1] > extent for cut, extent in zip(cuts, shape, strict=True))
        or np.prod(np.array(cells, np.float64)) > _MOST_CELLS
    ):
        return False
    place = [{at: number for number, at in enumerate(cut)} for cut in cuts]
    painted = np.zeros(cells, np.int16)
    for box in boxes:
        corner = zip(place, box.offsets, box.sizes, strict=True)
        painted[tuple(slice(at[o], at[o + n]) for at, o, n in corner)] += 1
    return bool((painted == 1).all())


def by_tensor(left: Frame, right: Frame) -> TensorTable:
    """Compare two runs tensor by tensor; every tensor of either is an entry."""
    a, b = _side(left), _side(right)
    at = join(a.key, b.key)
    mine = np.flatnonzero(at >= 0)
    other = at[mine]
    status = np.full(len(a.key), Status.UNMATCHED, np.int64)
    relative = np.full(len(a.key), np.nan)
    whole_ones, shapes = np.zeros(len(a.key), bool), np.zeros(len(a.key), bool)
    if len(mine):
        rows, others = a.first[mine], b.first[other]
        shapes[mine] = left["global_shape"][rows] != right["global_shape"][others]
        whole_ones[mine] = a.complete[mine] & b.complete[other] & ~shapes[mine]
        same_type = left["dtype"][rows] == right["dtype"][others]
        found = _statuses(
            same_type & (a.total[mine] == b.total[other]), same_type & (a.total_nz[mine] == b.total_nz[other])
        )
        status[mine] = np.where(whole_ones[mine], found, status[mine])
        for entry in mine[~shapes[mine] & ((found == Status.DIFFERENT) | ~whole_ones[mine])]:
            _by_box(
                left, right, a, b, int(entry), int(at[entry]), status, relative, sums=bool(whole_ones[entry])
            )
    alone = np.flatnonzero(join(b.key, a.key) < 0)
    tail = len(alone)
    second = np.full(len(a.key), -1, np.int64)
    second[mine] = b.first[other]
    names = ("step", "tensor", "kind", "phase")
    return TensorTable(
        status=np.r_[status, np.full(tail, Status.UNMATCHED, np.int64)],
        left=np.r_[a.first, np.full(tail, -1, np.int64)],
        right=np.r_[second, b.first[alone]],
        relative=np.r_[relative, np.full(tail, np.nan)],
        whole=np.r_[whole_ones, np.zeros(tail, bool)],
        shapes_differ=np.r_[shapes, np.zeros(tail, bool)],
        **{name: np.r_[left[name][a.first], right[name][b.first[alone]]] for name in names},
    )


def _statuses(equal: np.ndarray, equal_nz: np.ndarray) -> Ints:
    return np.where(equal, Status.EQUAL, np.where(equal_nz, Status.SIGNED_ZERO, Status.DIFFERENT)).astype(
        np.int64
    )


def _parts(side: _Side, entry: int) -> slice:
    end = side.starts[entry + 1] if entry + 1 < len(side.starts) else len(side.part_row)
    return slice(int(side.starts[entry]), int(end))


def _by_box(
    left: Frame,
    right: Frame,
    a: _Side,
    b: _Side,
    entry: int,
    other: int,
    status: Ints,
    relative: np.ndarray,
    *,
    sums: bool,
) -> None:
    """Size of a difference from the parts' sketches; and, unless `sums` decided, the status by equal boxes."""
    mine, theirs = _parts(a, entry), _parts(b, other)
    rows, others = a.part_row[mine], b.part_row[theirs]
    if sums:
        relative[entry] = distance(left.sketch[rows].sum(0), right.sketch[others].sum(0))
        return
    match = join(a.part_key[mine], b.part_key[theirs])
    rows, others = rows[match >= 0], others[match[match >= 0]]
    if len(rows):
        same_type = left["dtype"][rows] == right["dtype"][others]
        equal = same_type & (left.digest[rows] == right.digest[others])
        equal_nz = same_type & (left.digest_nz[rows] == right.digest_nz[others])
        status[entry] = int(_statuses(equal, equal_nz).max())
        relative[entry] = distance(left.sketch[rows].sum(0), right.sketch[others].sum(0))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Norm of the difference over the norm of `b`; NaN where that is no number."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))
