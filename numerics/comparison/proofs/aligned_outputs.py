"""An output of two runs and its gradient, sequence beside sequence, whichever rank or micro-batch read one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from numerics.local.losses.loss_input import last_stage
from numerics.local.records.padded_sequences import Key, counterparts, key_of
from numerics.local.records.recorded import RecordedRun
from numerics.schema import parse_boxes

Runs = tuple[RecordedRun, RecordedRun]
"""A run and its baseline."""


@dataclass(frozen=True)
class Pair:
    """A tensor of the run and of the baseline, float64, and the roundoff of the coarser format."""

    tensor: str
    mine: torch.Tensor
    other: torch.Tensor
    unit: float

    @property
    def apart(self) -> float:
        """The norm of the difference over the run's, or the largest difference if that is more."""
        away = self.mine - self.other
        size = float(self.mine.norm())
        return max(float(away.norm()) / size if size else 0.0, float(away.abs().max()))


def pair_of(tensor: str, mine: torch.Tensor, other: torch.Tensor) -> Pair | None:
    """Return two tensors as a pair; None where they are no finite numbers of one shape."""
    if mine.shape != other.shape or not (mine.is_floating_point() and other.is_floating_point()):
        return None
    unit = max(float(torch.finfo(one.dtype).eps) for one in (mine, other))
    pair = Pair(tensor, mine.double(), other.double(), unit)
    return pair if bool(pair.mine.isfinite().all() and pair.other.isfinite().all()) else None


@dataclass(frozen=True)
class Aligned:
    """An output and its gradient by the run's sequences, place after place; a position that a run lacks counts 0 in it.

    `rows` are the sequences of each place of the run, `others` those of each place of the baseline. `columns` are the
    classes (the last dimension) that ranks of the run hold, first and behind the last, where they hold parts of them.
    """

    values: Pair
    grads: Pair
    rows: Mapping[tuple[int, int], Sequence[int]]
    others: Mapping[tuple[int, int], Sequence[int]]
    columns: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class _Batch:
    """An output of one run and its gradient, place after place, and what each sequence was made from."""

    value: torch.Tensor
    grad: torch.Tensor
    lengths: torch.Tensor
    keys: list[Key]
    places: Mapping[tuple[int, int], range]
    columns: Mapping[int, tuple[int, int]]

    def picked(self, numbers: Sequence[int]) -> "_Batch":
        """Return the batch with these sequences, in this order; its places keep the old numbers."""
        held = list(numbers)
        keys = [self.keys[n] for n in held]
        return _Batch(self.value[held], self.grad[held], self.lengths[held], keys, self.places, self.columns)


def aligned(runs: Runs, step: int, tensor: str) -> Aligned | None:
    """Return an output of both runs and its gradient by sequence; None where the runs hold other or unknown ones."""
    other = _batch(runs[1], step, tensor)
    mine = _batch(runs[0], step, tensor, None if other is None else other.value.shape[-1])
    if mine is not None and other is None:
        other = _batch(runs[1], step, tensor, mine.value.shape[-1])
    if mine is None or other is None:
        return None
    found = counterparts(mine.keys, other.keys)
    if -1 in found or len(found) != len(other.keys):
        return None
    there = other.picked(found)
    values = pair_of(tensor, *_filled(mine, there))
    grads = pair_of(f"{tensor}.grad", *_lengthened(mine.grad, there.grad))
    if values is None or grads is None:
        return None
    back = {there: here for here, there in enumerate(found)}
    others = {place: [back[n] for n in held] for place, held in other.places.items()}
    return Aligned(values, grads, mine.places, others, mine.columns)


def _batch(side: RecordedRun, step: int, tensor: str, width: int | None = None) -> _Batch | None:
    """Return a run's output and its gradient; None where a place lacks one of them, or has several.

    `width` is the last dimension of the whole where ranks may hold parts of it.
    """
    values, grads, keys, places = [], [], list[Key](), {}
    columns: dict[int, tuple[int, int]] = {}
    for place in side.places(step):
        rows = side.rows(step, "forward", "activation", tensor)
        value = _of_place(side, step, place, rows, width)
        back = side.rows(step, "backward", "activation_grad", f"{tensor}.grad")
        grad = _of_place(side, step, place, back, width)
        if value is None or grad is None or value.shape != grad.shape or not value.dim():
            return None
        columns |= _columns(side, side.of_place(back, place), value.shape[-1])
        places[place] = range(len(keys), len(keys) + len(value))
        keys += _keys(side, step, place, len(value), len(keys))
        values.append(value)
        grads.append(grad)
    if not values or len({(one.dim(), one.shape[2:]) for one in values}) > 1:
        return None
    lengths = torch.tensor([one.shape[1] if one.dim() > 1 else 1 for one in values for _ in one])
    value, grad = (torch.cat(_lengthened(*each)) for each in (values, grads))
    return _Batch(value, grad, lengths, keys, places, columns)


def _lengthened(*batches: torch.Tensor) -> list[torch.Tensor]:
    """Return batches with zeros behind their sequences, as long as the longest."""
    if batches[0].dim() < 2:
        return list(batches)
    most = max(one.shape[1] for one in batches)
    return [
        torch.cat([one, one.new_zeros((len(one), most - one.shape[1], *one.shape[2:]))], 1) for one in batches
    ]


def _filled(mine: _Batch, other: _Batch) -> list[torch.Tensor]:
    """Return the values of two batches; where one run has no such position, it takes the other's."""
    values = _lengthened(mine.value, other.value)
    if values[0].dim() < 2:
        return values
    at = torch.arange(values[0].shape[1])
    lacks = [
        (at >= own.lengths[:, None]).reshape(*values[0].shape[:2], *[1] * (values[0].dim() - 2))
        for own in (mine, other)
    ]
    return [torch.where(lack, two, one) for lack, one, two in zip(lacks, values, values[::-1], strict=True)]


def _of_place(
    side: RecordedRun, step: int, place: tuple[int, int], rows: Sequence[int], width: int | None
) -> torch.Tensor | None:
    """Return the one value of a place's rows of the last stage, whole; None for several calls, or unknown parts."""
    last = last_stage(side, side.of_place(rows, place))
    if not last or side.calls(rows, place) != 1:
        return None
    found = side.at_place(step, place, last)
    if found is not None or width is None:
        return found
    shape = _shape(side, last[0])
    read = side.whole(last, (*shape[:-1], width), batch=True) if shape else []
    cut = len(read) == 1 and read[0].how == f"parts along dimension {len(shape) - 1}"
    return read[0].tensor if cut else None


def _shape(side: RecordedRun, row: int) -> tuple[int, ...]:
    """Return the shape of a rank's own tensor."""
    boxes = parse_boxes(side.run.name("boxes", row) or "")
    return boxes[0].sizes if boxes else ()


def _columns(side: RecordedRun, rows: Sequence[int], width: int) -> dict[int, tuple[int, int]]:
    """Return by rank which part of the last dimension it holds, where parts one after another make up the whole."""
    last = last_stage(side, list(rows))
    by = sorted(last, key=lambda r: tuple(int(side.run[c][r]) for c in ("cp", "tp", "rank")))
    ends = [0, *accumulate(_shape(side, row)[-1] if _shape(side, row) else 0 for row in by)]
    if len(by) < 2 or ends[-1] != width:
        return {}
    return {int(side.run["rank"][row]): (ends[n], ends[n + 1]) for n, row in enumerate(by)}


def _keys(side: RecordedRun, step: int, place: tuple[int, int], count: int, first: int) -> list[Key]:
    """Return what each of a place's sequences was made from: its inputs, else its number in the batch."""
    found: list[Key] = [()] * count
    for name in side.names(step, "forward", "input"):
        given = side.input(step, name, place) if name.startswith("in.") else None
        if given is not None and given.dim() and len(given) == count:
            found = [(*key, key_of(one)) for key, one in zip(found, given, strict=True)]
    return found if all(map(any, found)) else [(str(first + n).encode(),) for n in range(count)]
