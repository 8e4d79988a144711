"""What a run recorded in place of each value that its replay computes, found while the replay records.

A row's identity is rank, step, phase, kind, tensor, micro-batch and collective; repetitions are counted.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from numerics.local.bounds.bounded import Bounded, known
from numerics.local.records.recorded import same_bits
from numerics.record.pieces import pieces
from numerics.record.recorder import Recorder
from numerics.schema import Box, whole
from numerics.store import Capture, open_capture

_IDENTITY: Final = ("step", "phase", "kind", "tensor", "micro_batch", "axis", "op", "label")
_CONTENT: Final = ("dtype", "numel", "values")

Row = tuple[Any, ...]


class RecordedRank:
    """The rows of one rank of a run, in their order; `different` collects rows that a replay computed differently."""

    def __init__(
        self, capture: Capture, rank: int, rows: dict[Row, list[tuple[str, int, str | None]]]
    ) -> None:
        self._capture, self._rank, self._rows = capture, rank, rows
        self.different: set[Row] = set()

    def values(self, row: Row, number: int, like: Tensor, boxes: tuple[Box, ...]) -> Tensor | None:
        """Return what was recorded under an identity for the time `number`, as a tensor like `like`.

        Padding, which no box holds, is that of `like`. None where no values were kept, or others than the boxes hold.
        """
        found = self._rows.get(row, [])
        if number >= len(found):
            return None
        dtype, numel, key = found[number]
        if key is None or numel != sum(box.numel for box in boxes):
            return None
        flat = torch.from_numpy(np.array(self._capture.read_values(self._rank, key)))
        out, start = like.to(getattr(torch, dtype), copy=True), 0
        for piece, box in zip(pieces(out, boxes), boxes, strict=True):
            piece.copy_(flat[start : start + box.numel].reshape(piece.shape))
            start += box.numel
        return out


def recorded_ranks(run: Path) -> dict[int, RecordedRank]:
    """Return the recorded rows of a run by rank. InputError where its capture is damaged."""
    capture = open_capture(run)
    columns = [capture.table.column(name).to_pylist() for name in ("rank", *_IDENTITY, *_CONTENT)]
    rows: dict[int, dict[Row, list[tuple[str, int, str | None]]]] = {}
    for rank, *cells in zip(*columns, strict=True):
        identity, content = tuple(cells[: len(_IDENTITY)]), cells[len(_IDENTITY) :]
        rows.setdefault(rank, {}).setdefault(identity, []).append((content[0], content[1], content[2]))
    return {rank: RecordedRank(capture, rank, own) for rank, own in rows.items()}


class ForcedRecorder(Recorder):
    """Records what a replay computes for a rank, and finds what the run recorded in its place.

    With `errors`, another recorder, only what differed before is recorded: its exact value here, its bound there.
    """

    recorded: RecordedRank
    errors: Recorder | None = None

    def follow(self, recorded: RecordedRank, errors: Recorder | None = None) -> None:
        """Find values in `recorded` from now on."""
        self.recorded, self.errors = recorded, errors
        self._seen: Counter[Row] = Counter()
        self._found: Tensor | None = None

    def record(self, tensor: str, value: Tensor, **identity: Any) -> None:
        """Record a tensor, and find what the run recorded in its place. See `Recorder.record`."""
        row = (
            *(
                tensor if c == "tensor" else identity.get(c, -1 if c == "micro_batch" else None)
                for c in _IDENTITY
            ),
        )
        number = self._seen[row]
        if self.errors is None:
            super().record(tensor, value, **identity)
        elif isinstance(value, Bounded) and row in self.recorded.different:
            super().record(tensor, value.value, **identity)
            self.errors.record(tensor, value.error, **identity)
        self._seen[row] += 1
        boxes = tuple(identity.get("boxes") or whole(identity.get("global_shape") or value.shape))
        plain = value.value.to(value.dtype) if isinstance(value, Bounded) else value.detach()
        self._found = self.recorded.values(row, number, plain, boxes)
        if self.errors is None and self._found is not None and not same_bits(self._found, plain):
            self.recorded.different.add(row)

    def onward(self, tensor: Tensor) -> Tensor:
        """Return what the run recorded in place of the value recorded last, else `tensor` itself, without a graph."""
        if self._found is None or not tensor.is_floating_point():
            return tensor.detach()
        value = self._found.to(tensor.dtype).reshape(tensor.shape)
        return known(value) if isinstance(tensor, Bounded) else value

    def close(self) -> None:
        """Finish the files of both recorders."""
        super().close()
        if self.errors is not None:
            self.errors.close()
