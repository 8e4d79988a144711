"""Bugs of an image encoder: the ways back of the gradients of its tokens."""

from typing import Any, cast

import torch

from reftrain.execute.carried_tokens import TokenMail
from reftrain.execute.encoding import LABEL, Encoding
from reftrain.execute.messages import Mailbox
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import Patches, Place, Values, bug
from reftrain.rank.comm import Axis
from reftrain.schedule.actions import Action, Kind


@bug(
    "P61",
    "pp",
    "a stage passes its own gradient of the image tokens on, without the one from the stage behind",
    "gradients of the encoder",
    needs.encoder_inside,
    needs.axis("pp"),
)
def tokens_of_later_stages_lost(patches: Patches, place: Place, values: Values) -> None:
    """Read zeros where the gradient from the stage behind has come."""
    del place, values
    original = Mailbox.take

    def planted(self: Mailbox, action: Action) -> tuple[torch.Tensor, torch.Tensor | None]:
        tensor, buffer = original(self, action)
        lost = isinstance(self, TokenMail) and action.kind is Kind.RECV_GRADIENT
        return (torch.zeros_like(tensor) if lost else tensor), buffer

    patches.set(Mailbox, "take", planted)


class _Unsummed:
    """The tensor axis of an encoding, on which one sum is left out."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis

    def __getattr__(self, name: str) -> Any:
        return getattr(self._axis, name)

    def all_reduce(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the tensor as it is where the gradients of image tokens are to be summed."""
        return tensor if label == f"{LABEL}.grad" else self._axis.all_reduce(tensor, label)


@bug(
    "P62",
    "tp",
    "gradients of the image tokens not summed over the tensor ranks, which see their own heads alone",
    "gradients of the encoder",
    needs.encoder,
    needs.axis("tp"),
)
def tokens_unsummed(patches: Patches, place: Place, values: Values) -> None:
    """Leave the sum over the tensor ranks out, wherever the encoder lies."""
    del place, values
    original = Encoding.__init__

    def planted(self: Encoding, *arguments: Any) -> None:
        original(self, *arguments)
        self.tp = cast("Axis", _Unsummed(self.tp))

    patches.set(Encoding, "__init__", planted)
