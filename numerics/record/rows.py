"""The rows that one rank's hooks leave in its capture, until the disk takes no more."""

import sys
from typing import Any

import torch

from numerics.record.placement import Placed, as_pairs
from numerics.record.recorder import Recorder
from numerics.record.training_state import whole
from numerics.schema import COMPLEX


class Rows:
    """Writes rows to a recorder, until the disk is full. Without a recorder (`to` is None) it writes nothing."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.to = recorder
        self._step = 0

    @property
    def own(self) -> str:
        """The mark of a tensor that no other rank need hold alike."""
        return f"rank={0 if self.to is None else self.to.rank}"

    def placed(self, tensor: str, at: Placed, **row: Any) -> None:
        """Record a placed tensor, a complex one as pairs of numbers."""
        pairs = at.local.is_complex()
        at = as_pairs(at) if pairs else at
        where: Any = {
            "global_shape": at.shape,
            "boxes": at.boxes,
            "replica": at.replica,
            "partial": at.partial,
        }
        self.put(tensor, at.local, label=COMPLEX if pairs else None, **where, **row)

    def put(self, tensor: str, value: torch.Tensor, *, step: int, **row: Any) -> None:
        """Record a row, unless the disk takes no more: then recording ends, and the training goes on."""
        self._step = max(step, 0)
        try:
            if self.to is not None:
                self.to.record(tensor, whole(value), step=step, **row)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Finish the capture."""
        try:
            if self.to is not None:
                self.to.close()
        except OSError as error:
            self._give_up(error)
        self.to = None

    def _give_up(self, error: OSError) -> None:
        if self.to is not None:
            to, self.to = self.to, None
            to.abandon()
            why = error.strerror or str(error)
            said = (
                f"numerics: {to.path}: recording ended at step {self._step} ({why}); the training goes on\n"
            )
            sys.stderr.write(said)
