"""The tensors of a capture, put together from the parts that its ranks held, for one module call at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch

from numerics.columns import Columns
from numerics.local.bounds.bounded import unit
from numerics.local.records.optimizer_shares import by_model_rank, is_share
from numerics.local.records.restored_steps import restored_steps
from numerics.local.records.sequence_cuts import SequenceCut, cut_of, moved_box, without_gaps
from numerics.schema import COMPLEX, UNPLACED, Box, parse_boxes, parse_shape
from numerics.thresholds.comparison import MAX_ELEMENTS
from tracekit.errors import InputError

ADDENDS: Final = "addends of all ranks"
"""The reading of a tensor if ranks hold unequal values of the whole shape."""

ALL: Final = -1
"""Instead of a data-parallel index: all of them; their sequences together are one batch."""


@dataclass(frozen=True)
class Reading:
    """One way to read recorded parts as a whole: the tensor, and in words how it was put together.

    `error` is the possible difference of a run's own sum of the same addends from this one; None if nothing was added.
    """

    tensor: torch.Tensor
    how: str = ""
    error: torch.Tensor | None = None


def summed(addends: Sequence[torch.Tensor], how: str) -> Reading:
    """Return the sum of addends; a run adds them in its own order, and rounds after each, however little is left."""
    wide = torch.stack([v.double() for v in addends])
    error = (len(addends) - 1) * unit(addends[0].dtype) * wide.abs().sum(0)
    return Reading(wide.sum(0).to(addends[0].dtype), how, error)


class RecordedRun:
    """The rows of a capture by what they record. Values are read when they are asked for."""

    def __init__(self, run: Columns) -> None:
        self.run = run
        self._rows: dict[tuple[int, ...], list[int]] = {}
        self._cuts: dict[tuple[int, tuple[int, int]], SequenceCut | None] = {}
        for row in np.lexsort((run["order"], run["rank"])).tolist():
            key = tuple(int(run[c][row]) for c in ("step", "phase", "kind", "tensor"))
            self._rows.setdefault(key, []).append(row)

    @property
    def steps(self) -> list[int]:
        """Steps that a forward was recorded in, in order."""
        forward = self.run.named("phase", "forward") & self.run.named("kind", "activation")
        return sorted(set(self.run["step"][forward].tolist()))

    @cached_property
    def restored(self) -> dict[int, int]:
        """The earlier step by each step that starts from that one's weights, for the trainer went back."""
        return restored_steps(self.run)

    def places(self, step: int) -> list[tuple[int, int]]:
        """Return the (data-parallel index, micro-batch) pairs of a step, in order."""
        here = (
            self.run.named("phase", "forward") & (self.run["step"] == step) & (self.run["micro_batch"] >= 0)
        )
        rows = np.flatnonzero(here).tolist()
        return sorted({(int(self.run["dp"][row]), self._batch(row)) for row in rows})

    @cached_property
    def in_pieces(self) -> bool:
        """Whether nothing was trained and each forward got a piece of sequences, as an engine with a cache decodes.

        All forwards of a step together are one of the whole model then.
        """
        run = self.run
        if bool(run.named("phase", "backward", "reduce", "step").any()):
            return False
        given = np.flatnonzero(run.named("phase", "forward") & run.named("kind", "input"))
        inputs = [row for row in given.tolist() if run.name("tensor", row).startswith("in.")]
        return any(
            box.sizes[1:] != parse_shape(run.name("global_shape", row))[1:]
            for row in inputs
            for box in parse_boxes(run.name("boxes", row) or "")
        )

    def _batch(self, row: int) -> int:
        """Return the micro-batch under which a row is read."""
        return 0 if self.in_pieces else int(self.run["micro_batch"][row])

    def owners(self, parameter: str) -> set[int]:
        """Return the data-parallel indices of the ranks that hold a parameter."""
        return self._owners.get(parameter, set())

    @cached_property
    def _owners(self) -> dict[str, set[int]]:
        held = self.run.named("kind", "param")
        found: dict[str, set[int]] = {}
        for tensor, dp in set(
            zip(self.run["tensor"][held].tolist(), self.run["dp"][held].tolist(), strict=True)
        ):
            found.setdefault(self.run.names.text(tensor), set()).add(dp)
        return found

    def rows(self, step: int, phase: str, kind: str, tensor: str) -> list[int]:
        """Return the rows that record a tensor, by rank and order."""
        number = self.run.names.number
        return self._rows.get((step, number(phase), number(kind), number(tensor)), [])

    def of_place(self, rows: Sequence[int], place: tuple[int, int], call: int = 0) -> list[int]:
        """Return those rows of one data-parallel index and micro-batch that record each rank's call number `call`."""
        found: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            if self._is_of(row, place):
                forward = int(self.run["rank"][row]), int(self.run["micro_batch"][row])
                found.setdefault(forward, []).append(row)
        return [own[call] for own in found.values() if len(own) > call]

    def _is_of(self, row: int, place: tuple[int, int]) -> bool:
        """Return whether a row is of a data-parallel index, or any where that is `ALL`, and of a micro-batch."""
        same = place[0] in {ALL, int(self.run["dp"][row])}
        return same and self._batch(row) == place[1]

    def calls(self, rows: Sequence[int], place: tuple[int, int]) -> int:
        """Return how often a module was called on a rank of a place, by the rows that record one of its tensors."""
        at = [int(self.run["rank"][row]) for row in rows if self._is_of(row, place)]
        return max((at.count(rank) for rank in set(at)), default=0)

    def names(self, step: int, phase: str, kind: str) -> list[str]:
        """Return the tensors of a kind that a step recorded, sorted."""
        number = self.run.names.number
        wanted = (step, number(phase), number(kind))
        return sorted(self.run.names.text(key[3]) for key in self._rows if key[:3] == wanted)

    def local(self, row: int) -> torch.Tensor | None:
        """Return a rank's own values, flat, in their format; None where none were kept, or too many."""
        key = self.run.values_key(row)
        if key is None or int(self.run["numel"][row]) > MAX_ELEMENTS:
            return None
        flat = torch.from_numpy(np.array(self.run.capture.read_values(int(self.run["rank"][row]), key)))
        if flat.numel() != int(self.run["numel"][row]):
            raise InputError(f"{self.run.capture.folder}: values and rows do not fit; capture the run again")
        return flat.to(getattr(torch, self.run.name("dtype", row)))

    def as_given(self, row: int, value: torch.Tensor) -> torch.Tensor:
        """Return an input read from a row as the model got it: complex if pairs of numbers represent it."""
        return torch.view_as_complex(value.contiguous()) if self.run.name("label", row) == COMPLEX else value

    def input(self, step: int, name: str, place: tuple[int, int]) -> torch.Tensor | None:
        """Return what a place's model was called with, whole; None where the places of its pieces are not known."""
        rows = self.of_place(self.rows(step, "forward", "input", name), place)
        first = min((int(self.run["pp"][row]) for row in rows), default=0)
        return self.at_place(step, place, [row for row in rows if int(self.run["pp"][row]) == first])

    def at_place(self, step: int, place: tuple[int, int], rows: Sequence[int]) -> torch.Tensor | None:
        """Return the tensor that rows of one place hold, whole; None where the places of its pieces are not known."""
        joined = self.joined(step, place, rows)
        if joined is not None:
            return joined
        copies = len({int(self.run.digest[row]) for row in rows}) == 1
        found = self.whole(rows[:1] if copies else rows, None, batch=True) if rows else []
        return found[0].tensor if found else None

    def sequence_cut(self, step: int, place: tuple[int, int]) -> SequenceCut | None:
        """Return how the ranks of a place cut its sequences, by the places of its inputs; None where they do not."""
        if (step, place) not in self._cuts:
            names = [name for name in self.names(step, "forward", "input") if name.startswith("in.")]
            held = (self.of_place(self.rows(step, "forward", "input", name), place) for name in names)
            cuts = (cut_of(self.run, rows) for rows in held if not any(map(self.unplaced, rows)))
            self._cuts[step, place] = next((cut for cut in cuts if cut is not None), None)
        return self._cuts[step, place]

    def joined(self, step: int, place: tuple[int, int], rows: Sequence[int]) -> torch.Tensor | None:
        """Return an input whole if its plain pieces lie as the place's other inputs are cut; None for others."""
        plain = len(rows) > 1 and all(map(self.unplaced, rows))
        cut = self.sequence_cut(step, place) if plain else None
        parts = {int(self.run["rank"][row]): self._shaped(row) for row in rows} if cut is not None else {}
        held = {rank: part for rank, part in parts.items() if part is not None}
        return cut.along(held) if cut is not None and held and len(held) == len(parts) else None

    def _shaped(self, row: int) -> torch.Tensor | None:
        """Return a rank's own plain tensor; None where its values were not kept."""
        flat, boxes = self.local(row), parse_boxes(self.run.name("boxes", row) or "")
        return None if flat is None else flat.reshape(boxes[0].sizes if boxes else ())

    def state_before(self, step: int) -> tuple[int, str]:
        """Return the (step, phase) of the weights a step starts from: after the one before, else at its own start."""
        if self.names(step - 1, "step", "param"):
            return step - 1, "step"
        return (step, "init") if self.names(step, "init", "param") else (-1, "init")

    def unplaced(self, row: int) -> bool:
        """Return whether the part of the whole that a row's tensor is was not declared."""
        return self.run.name("partial", row).startswith(UNPLACED)

    def whole(self, rows: Sequence[int], shape: Sequence[int] | None, *, batch: bool) -> list[Reading]:
        """Return the ways to read rows of one tensor as a whole of `shape` (None: any), the likeliest first.

        `batch` says that dimension 0 counts sequences of the global batch; these rows hold some of them.
        """
        if any(self.unplaced(row) for row in rows):
            return self._unplaced(rows, shape)
        addends: dict[str, torch.Tensor] = {}
        for name in sorted({self.run.name("partial", row) for row in rows}):
            made = self._pasted([row for row in rows if self.run.name("partial", row) == name], batch=batch)
            if made is None:
                return []
            if shape is not None and tuple(made.shape) != tuple(shape):
                return self._unplaced(rows, shape)
            addends[name] = made
        values = list(addends.values())
        if len(values) <= 1:
            return [Reading(v) for v in values]
        return [summed(values, f"the sum of {', '.join(addends)}")]

    def _pasted(self, rows: Sequence[int], *, batch: bool) -> torch.Tensor | None:
        """Return the tensor that the rows' boxes cover; None where values are missing or boxes leave gaps."""
        boxes: list[list[Box]] = []
        for row in rows:
            text = self.run.name("boxes", row)
            boxes.append([Box((), ())] if not text else list(parse_boxes(text)))
        every = [box for held in boxes for box in held if box.numel]
        if not every:
            return None
        dims = len(every[0].sizes)
        first = without_gaps(every) if batch and dims else None
        every = [box if first is None else moved_box(box, first) for box in every]
        extent = [max(b.offsets[d] + b.sizes[d] for b in every) for d in range(dims)]
        if int(np.prod(extent, dtype=np.float64)) > MAX_ELEMENTS:
            return None
        found: torch.Tensor | None = None
        painted = torch.zeros(extent, dtype=torch.bool)
        for row, held in zip(rows, boxes, strict=True):
            flat = self.local(row)
            if flat is None:
                return None
            found = torch.zeros(extent, dtype=flat.dtype) if found is None else found
            start = 0
            for box in held:
                at = box if first is None or not box.numel else moved_box(box, first)
                place = tuple(slice(o, o + n) for o, n in zip(at.offsets, at.sizes, strict=True))
                found[place] = flat[start : start + box.numel].reshape(box.sizes)
                painted[place] = True
                start += box.numel
        return found if bool(painted.all()) else None

    def _unplaced(self, rows: Sequence[int], shape: Sequence[int] | None) -> list[Reading]:
        """Return the ways to read plain tensors of ranks that share a data-parallel index: copies, parts, addends."""
        first = min((int(self.run["dp"][row]) for row in rows), default=0)
        by, parts = [], []
        for own in by_model_rank(self.run, rows):
            shared = is_share(self.run, own[0])
            part = self._pasted(own, batch=False) if shared else self._shaped(own[0])
            if part is None:
                return []
            by.append(own[0])
            parts.append(part)
        if shape is None:
            return [Reading(parts[0])] if len(parts) == 1 else []
        whole = tuple(shape)
        if all(tuple(p.shape) == whole for p in parts):
            copies = [Reading(parts[0], "copies")]
            if len(parts) == 1 or all(same_bits(p, parts[0]) for p in parts):
                return copies
            return [summed(parts, ADDENDS), *copies]
        where = int(self.run["step"][by[0]]), (first, int(self.run["micro_batch"][by[0]]))
        cut = self.sequence_cut(*where)
        pieces = {int(self.run["rank"][row]): part for row, part in zip(by, parts, strict=True)}
        joined = None if cut is None else cut.together(pieces, whole)
        cut_alike = [] if joined is None else [Reading(joined, "parts as the inputs are cut")]
        return cut_alike + [
            Reading(torch.cat(parts, d), f"parts along dimension {d}")
            for d in range(len(whole))
            if all(p.dim() == len(whole) for p in parts)
            and sum(p.shape[d] for p in parts) == whole[d]
            and all(p.shape[e] == whole[e] for p in parts for e in range(len(whole)) if e != d)
        ]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are equal in every bit, but for signs of zeros and kinds of NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124 - NaN differs from itself
