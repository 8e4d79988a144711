"""Positions that are local to a rank: context parallelism cuts sequences, and each rank counts its piece from 0.

Either the trainer gives each rank such position ids, or the model makes them from the length of what it gets. The first
shows in the recorded inputs. For the second the whole model runs once more with positions that begin again where a
rank's piece does: if that gives what was recorded, it is the explanation.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from numerics.local.local_check import Doubt
from numerics.local.records.recorded import RecordedRun
from numerics.local.records.sequence_cuts import SequenceCut, counts_positions, cut_of
from numerics.schema import parse_boxes
from numerics.thresholds.local import LEAST_COUNTED, SITES_TRIED

_TORCH: Final = str(Path(torch.__file__).parent)

RESTARTS: Final = (
    "begins again on each rank that holds a piece of the sequence: its positions are local to the rank"
)

IN_MODEL: Final = (
    "its positions are local to each rank: they begin again where a rank's piece of the sequence begins, and with such "
    "positions the whole model gives what was recorded"
)
"""The relation of a tensor to the right one where the model made local positions."""

_SETTLED: Final = (
    "give each rank the positions that its piece has in the whole sequence, capture again and compare again; if "
    "documents begin there, compare with a baseline that was given the same position ids"
)


def positions_begin_anew(recorded: RecordedRun, step: int, name: str) -> bool:
    """Return whether an input counts positions, and every rank that holds a piece of a sequence counts from the same.

    Packed documents do so only where one begins at each cut of each sequence.
    """
    found = False
    for place in recorded.places(step):
        rows = recorded.of_place(recorded.rows(step, "forward", "input", name), place)
        cut = cut_of(recorded.run, rows)
        if cut is None:
            alike = len({int(recorded.run.digest[row]) for row in rows}) == 1
            found = found or (alike and recorded.joined(step, place, rows) is not None)
            continue
        held = [_along(recorded, row, cut.dim) for row in rows]
        if any(one is None for one in held):
            return False
        parts = [one for one in held if one is not None]
        least = min(part.shape[-1] for part in parts)
        first = parts[0][..., :least]
        same = least >= LEAST_COUNTED and all(torch.equal(part[..., :least], first) for part in parts)
        if not same or not counts_positions(first):
            return False
        found = True
    return found


def _along(recorded: RecordedRun, row: int, dim: int) -> torch.Tensor | None:
    """Return a rank's whole numbers with `dim` last, its boxes one after another along it; None for others."""
    flat = recorded.local(row)
    if flat is None or flat.is_floating_point() or flat.dtype == torch.bool:
        return None
    parts, start = [], 0
    for box in parse_boxes(recorded.run.name("boxes", row)):
        parts.append(flat[start : start + box.numel].reshape(box.sizes).movedim(dim, -1))
        start += box.numel
    return torch.cat(parts, -1)


def local_position_doubts(recorded: RecordedRun) -> tuple[Doubt, ...]:
    """Return a doubt where position ids that a run was given begin again on each rank."""
    for step in recorded.steps:
        for name in recorded.names(step, "forward", "input"):
            if name.startswith("in.") and positions_begin_anew(recorded, step, name):
                return (Doubt(f"{name} in step {step} {RESTARTS}", _SETTLED),)
    return ()


@dataclass
class LocalPositions:
    """Positions that begin again where a rank's piece of a sequence does, made at one line of the model's code, or all.

    `sites` are the lines that made positions, as (file, line), filled by a run.
    """

    cut: SequenceCut
    site: tuple[str, int] | None = None
    sites: list[tuple[str, int]] = field(default_factory=list)

    def within(self, state: Mapping[str, torch.Tensor]) -> TorchDispatchMode:
        """Return what exchanges positions while a model with this state runs."""
        return _Local(self, state)

    def tables(self, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return buffers; tables of as many rows as a sequence has positions hold the rows of local ones."""
        if self.site is not None:
            return dict(buffers)
        return {name: self._rows(value) for name, value in buffers.items()}

    def _rows(self, value: torch.Tensor) -> torch.Tensor:
        dims = [dim for dim, size in enumerate(value.shape) if size == self.cut.length]
        if len(dims) != 1 or value.dim() < 2:
            return value
        return torch.index_select(value, dims[0], self.cut.local)


def tried_positions(cut: SequenceCut) -> Iterator[LocalPositions]:
    """Yield local positions at all lines of a model's code that make some, then at each of these alone."""
    every = LocalPositions(cut)
    yield every
    sites = list(dict.fromkeys(every.sites))
    yield from (LocalPositions(cut, site) for site in sites[:SITES_TRIED] if len(sites) > 1)


class _Local(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's is untyped
    """Exchanges counts up to a sequence's length, and rows of the state up to it."""

    def __init__(self, of: LocalPositions, state: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._of, self._local, self._length = of, of.cut.local, of.cut.length
        self._state = {id(value) for value in state.values()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and exchange the positions that it makes."""
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "arange" and made.numel() == self._length and bool((made.diff() == 1).all()):
            return made[0] + self._local.to(made.dtype) if self._here() else made
        if name != "slice" or id(args[0]) not in self._state:
            return made
        dim = int(args[1]) if len(args) > 1 else 0
        first = len(args) <= 2 or not args[2]
        if not first or made.shape[dim] != self._length or made.shape == args[0].shape:
            return made
        return torch.index_select(args[0], dim, self._local) if self._here() else made

    def _here(self) -> bool:
        """Return whether positions are exchanged on the line of the model that runs; note the line."""
        frame = sys._getframe(2)  # noqa: SLF001 - nothing else tells which line of the model runs
        while frame.f_back is not None and _of_torch(frame.f_code.co_filename):
            frame = frame.f_back
        site = (frame.f_code.co_filename, frame.f_lineno)
        self._of.sites.append(site)
        return self._of.site in {None, site}


def _of_torch(file: str) -> bool:
    return file == __file__ or file.startswith(_TORCH)
