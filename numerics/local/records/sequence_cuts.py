"""How context parallelism cut sequences: which positions each rank holds, by the recorded places of the inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from numerics.columns import Columns
from numerics.schema import Box, parse_boxes, parse_shape
from numerics.thresholds.local import MOSTLY_COUNTED


@dataclass(frozen=True)
class SequenceCut:
    """How the ranks of one place cut sequences of `length`: the positions that each rank holds, in its own order.

    `dim` is the dimension of the tensor that is cut.
    """

    dim: int
    length: int
    pieces: Mapping[int, torch.Tensor]

    @property
    def local(self) -> torch.Tensor:
        """Positions counted from 0 on each rank, by position in the whole sequence, (length,) int64."""
        made = torch.arange(self.length)
        for held in self.pieces.values():
            made[held] = torch.arange(len(held))
        return made

    def together(self, parts: Mapping[int, torch.Tensor], shape: Sequence[int]) -> torch.Tensor | None:
        """Return the whole of `shape` put together from the ranks' pieces `parts`; None if they do not fit."""
        for dim, size in enumerate(shape):
            fits = size == self.length and all(
                rank in self.pieces
                and [*part.shape] == [*shape[:dim], len(self.pieces[rank]), *shape[dim + 1 :]]
                for rank, part in parts.items()
            )
            if fits and sum(map(len, {tuple(self.pieces[rank].tolist()) for rank in parts})) == size:
                made = torch.empty(tuple(shape), dtype=next(iter(parts.values())).dtype)
                for rank, part in parts.items():
                    made.index_copy_(dim, self.pieces[rank], part)
                return made
        return None

    def along(self, parts: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
        """Return plain pieces of ranks put together along the one dimension as long as a piece; None without one.

        Dimension 0 counts sequences where there are others. Pieces alike on all ranks are so many copies, unless they
        count positions: then each rank took them for those of its own piece.
        """
        first = next(iter(parts.values()))
        fits = [
            dim
            for dim in range(min(first.dim() - 1, 1), first.dim())
            if all(
                rank in self.pieces
                and part.dim() == first.dim()
                and part.shape[dim] == len(self.pieces[rank])
                for rank, part in parts.items()
            )
        ]
        alike = all(torch.equal(part, first) for part in parts.values())
        if len(fits) != 1 or (alike and not counts_positions(first)):
            return None
        return self.together(parts, [*first.shape[: fits[0]], self.length, *first.shape[fits[0] + 1 :]])


def counts_positions(value: torch.Tensor) -> bool:
    """Return whether whole numbers count on along their last dimension, most of them."""
    if value.is_floating_point() or value.dtype == torch.bool or not value.dim():
        return False
    steps = value.diff()
    return bool(steps.numel()) and float((steps == 1).double().mean()) > MOSTLY_COUNTED


def cut_of(run: Columns, rows: Sequence[int]) -> SequenceCut | None:
    """Return how placed rows of one tensor cut a dimension behind the first; None where they hold copies."""
    shape = parse_shape(run.name("global_shape", rows[0])) if rows else ()
    for dim in range(1, len(shape)):
        pieces = {
            int(run["rank"][row]): torch.cat(
                [
                    torch.arange(box.offsets[dim], box.offsets[dim] + box.sizes[dim])
                    for box in parse_boxes(run.name("boxes", row))
                ]
            )
            for row in rows
        }
        if len({tuple(held.tolist()) for held in pieces.values()}) > 1:
            return SequenceCut(dim, shape[dim], pieces)
    return None


def without_gaps(boxes: Sequence[Box]) -> dict[int, int]:
    """Return where each box begins along dimension 0 if the sequences that none holds are left out.

    One micro-batch of all data-parallel ranks is no stretch of the global batch.
    """
    found: dict[int, int] = {}
    end = count = 0
    for low, size in sorted({(box.offsets[0], box.sizes[0]) for box in boxes}):
        if not found or low > end:
            end = low
        found.setdefault(low, count - (end - low))
        count += max(low + size - end, 0)
        end = max(end, low + size)
    return found


def moved_box(box: Box, first: dict[int, int]) -> Box:
    """Return the box where `without_gaps` says that it begins along dimension 0."""
    return Box((first[box.offsets[0]], *box.offsets[1:]), box.sizes)
