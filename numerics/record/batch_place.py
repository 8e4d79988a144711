"""The place of a watched tensor in the global one: its sequences, its copy, or an undeclared part."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from numerics.record.placement import Placed, placed
from numerics.record.recorder import Recorder
from numerics.record.wrapped_models import spans_data
from numerics.schema import Box

Batch = Callable[[int], tuple[int, int]]
"""Maps a micro-batch's number to (index of its first sequence in the global batch, size of the global batch)."""

Place = Callable[[str, torch.Tensor], Placed | None]
"""Maps an activation's name and value to its place in the global tensor; None leaves the choice to `watch`."""


@dataclass(frozen=True)
class Layout:
    """How one rank's tensors lie in the global batch and model; the fields are the arguments of `watch`."""

    recorder: Recorder
    dp: tuple[int, int]
    micro_batches: int
    batch: Batch | None
    place: Place | None

    def activation(self, tensor: str, value: torch.Tensor, micro_batch: int) -> Placed:
        """Return the place of an activation, an input, or a gradient of one."""
        declared = None if self.place is None else self.place(tensor, value)
        if declared is not None:
            return declared
        at = self._in_batch(placed(value), micro_batch, whole_batch=spans_data(value))
        return at if hasattr(value, "placements") or not self._cut else replace(at, partial=self._unplaced)

    def shared(self, tensor: torch.Tensor) -> Placed:
        """Return the place of a parameter, gradient or moment; plain ones are copies on every data-parallel rank."""
        at = placed(tensor)
        if hasattr(tensor, "placements"):
            return at
        partial = self._unplaced if self._cut and tensor.dim() else None
        return replace(at, replica=self.dp[0], partial=partial)

    def part(self, value: torch.Tensor, parameter: torch.Tensor, boxes: tuple[Box, ...]) -> Placed:
        """Return the place of some elements of a plain parameter, which no other data-parallel rank need hold."""
        return replace(self.shared(parameter), local=value, boxes=boxes, replica=0)

    def addend(self, grad: torch.Tensor) -> Placed:
        """Return the place of what one backward of this data-parallel rank adds to a parameter's gradient."""
        at, own = self.shared(grad), f"dp={self.dp[0]}"
        return replace(at, partial=own if at.partial is None else f"{at.partial},{own}")

    @property
    def _cut(self) -> bool:
        """Whether several ranks share a data-parallel index, so that a plain tensor may be a copy or a part."""
        return self.recorder.world_size > self.dp[1]

    @property
    def _unplaced(self) -> str:
        """Return the mark of a tensor that was not declared as a copy or a part: one for each model rank."""
        model = [axis for axis in self.recorder.declared if axis != "dp"]
        named = ".".join(f"{axis}{self.recorder.coords[axis]}" for axis in sorted(model))
        return f"rank={named or self.recorder.rank}"

    def _in_batch(self, at: Placed, micro_batch: int, *, whole_batch: bool) -> Placed:
        """Return the place of an activation in the global batch; a scalar stays its rank's own.

        `whole_batch` says that dimension 0 already spans data parallelism, so that only micro-batches are laid out.
        """
        if not at.shape:
            own = None if self.dp[1] == 1 else f"dp={self.dp[0]}"
            return replace(at, partial=",".join(name for name in (own, at.partial) if name) or None)
        size, ranks, rank = at.shape[0], self.dp[1], self.dp[0]
        if whole_batch:
            ranks, rank = 1, 0
        if self.batch is not None:
            first, total = self.batch(micro_batch)
        else:
            first = (rank * self.micro_batches + micro_batch) * size
            total = ranks * self.micro_batches * size
        boxes = tuple(Box((first + b.offsets[0], *b.offsets[1:]), b.sizes) for b in at.boxes)
        return replace(at, shape=(total, *at.shape[1:]), boxes=boxes)
