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

    Sequences hold one tensor for each rank in lock step: context ranks, and within them tensor ranks. Methods that
    return tensors return what the computation goes on with: here what was shown.
    """

    def __init__(self) -> None:
        self.now = Moment()

    def read(self, dp: int, tokens: Tensor, targets: Tensor) -> None:
        """Show all sequences, (sequences, tokens), that a data-parallel rank reads in a step."""

    def inputs(self, batch: Sequence[Share]) -> None:
        """Show what every rank in lock step computes on."""

    def shown(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Show a named value once it is computed; its gradient may be hooked."""

    def value(self, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Show a named value, and return what the computation goes on with."""
        self.shown(name, tensors)
        return list(tensors)

    def weights(self, weights: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Show the leaves that a micro-batch will fill gradients of, for every rank in lock step, and return them."""
        return [dict(leaves) for leaves in weights]

    def collective_in(
        self, axis: str, op: str, label: str, groups: Sequence[Sequence[int]], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Show what every rank in lock step puts into a collective of its group, and return it."""
        del axis, op, label, groups
        return list(inputs)

    def collective_out(
        self, axis: str, op: str, label: str, groups: Sequence[Sequence[int]], outputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Show what every rank in lock step gets from a collective of its group, and return it."""
        del axis, op, label, groups
        return list(outputs)

    def exchange(
        self,
        axis: str,
        label: str,
        groups: Sequence[Sequence[int]],
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
    ) -> None:
        """Show what every rank in lock step sends to the next of its group while it receives from the previous."""

    def message(
        self, axis: str, label: str, sender: int, receiver: int, tensors: Sequence[Tensor], part: str = ""
    ) -> list[Tensor]:
        """Show what stage `sender` hands to stage `receiver`, and return what arrives.

        `part` names a tensor that goes beside the activation or its gradient.
        """
        del axis, label, sender, receiver, part
        return list(tensors)

    def reduction_in(
        self, axis: str, op: str, label: str, inputs: Mapping[Seat, Tensor]
    ) -> dict[Seat, Tensor]:
        """Show what goes into a reduction of one group of ranks, in the group's order, and return it."""
        del axis, op, label
        return dict(inputs)

    def reduction_out(
        self, axis: str, op: str, label: str, outputs: Mapping[Seat, Tensor]
    ) -> dict[Seat, Tensor]:
        """Show what comes out of a reduction of one group of ranks, and return it."""
        del axis, op, label
        return dict(outputs)

    def scalar(self, name: str, value: Tensor, *, reported: bool = False) -> Tensor:
        """Show a value that all ranks have (`reported` where nothing is computed from it), and return it."""
        del name, reported
        return value

    def close(self) -> None:
        """Finish whatever was written."""

    def shards(
        self, kind: str, suffix: str, tensors: Mapping[Seat, Mapping[str, Tensor]]
    ) -> dict[Seat, dict[str, Tensor]]:
        """Show every rank's shards of parameters, gradients or optimiser state, and return them."""
        del kind, suffix
        return {seat: dict(named) for seat, named in tensors.items()}
