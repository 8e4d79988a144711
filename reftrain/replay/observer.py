"""The observer of a replay's values: the counterpart of the trainer's hooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from reftrain.layout.grid import Seat
from reftrain.replay.batch import Share


@dataclass
class Moment:
    """The replay's position: step, phase, data-parallel rank, virtual stage and micro-batch (-1: none)."""

    step: int = -1
    phase: str = "init"
    dp: int = -1
    stage: int = -1
    micro_batch: int = -1


class Observer:
    """Sees values and does nothing with them; `capture_writer.CaptureWriter` writes them down.

    Sequences hold one tensor for each rank in lock step: context ranks, and within them tensor ranks.
    """

    def __init__(self) -> None:
        self.now = Moment()

    def read(self, dp: int, tokens: Tensor, targets: Tensor) -> None:
        """Show all sequences, (sequences, tokens), that a data-parallel rank reads in a step."""

    def inputs(self, batch: Sequence[Share]) -> None:
        """Show what every rank in lock step computes on."""

    def value(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Show a named value once it is computed; its gradient may be hooked."""

    def weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Show the leaves whose gradients a micro-batch will fill, for every rank in lock step."""

    def collective(
        self,
        axis: str,
        op: str,
        label: str,
        groups: Sequence[Sequence[int]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Show what every rank in lock step put into a collective of its group and got from it."""

    def exchange(
        self,
        axis: str,
        label: str,
        groups: Sequence[Sequence[int]],
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
    ) -> None:
        """Show what every rank in lock step sends to the next of its group while it receives from the previous."""

    def message(self, axis: str, label: str, sender: int, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Show what stage `sender` hands to stage `receiver`."""

    def reduction(
        self,
        axis: str,
        op: str,
        label: str,
        inputs: Mapping[Seat, Tensor],
        outputs: Mapping[Seat, Tensor],
    ) -> None:
        """Show a reduction of one group of ranks, in the group's order."""

    def scalar(self, name: str, value: Tensor, *, reported: bool = False) -> None:
        """Show a value that all ranks have; `reported` where nothing is computed from it."""

    def shards(self, kind: str, suffix: str, tensors: Mapping[Seat, Mapping[str, Tensor]]) -> None:
        """Show every rank's shards of parameters, gradients or optimiser state."""
