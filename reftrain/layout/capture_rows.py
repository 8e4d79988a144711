"""Writes one rank's values as capture rows: recorder and replay use the same names and placements."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from numerics.record.recorder import CaptureError, Recorder
from numerics.schema import Kind, Phase
from reftrain.layout.grid import Seat
from reftrain.layout.placement import Placement, Placements

RECOMPUTED = ".recomputed"
RING_MASK_DIMS = 6  # (cp, B, 1, 1, Sq, Sk)


def owner(name: str) -> str:
    """Return the module that a tensor or a collective's label belongs to."""
    for ending in (".kv.grad", ".grad", ".kv", ".out", ".in"):
        name = name.removesuffix(ending)
    return name if "." in name else ""


def message_name(label: str) -> str:
    """Return the name of a message's tensor: SA0.3 and RA1.3 carry stages.1.in, SA0.3:image_tokens its tokens."""
    action, _, part = label.partition(":")
    kind, stage = action[:2], int(action[2:].partition(".")[0])
    if part:
        gradient = ".grad" if kind in {"SG", "RG"} else ""
        return f"stages.{stage + (kind in {'SA', 'RG'})}.{part}{gradient}"
    if kind in {"SA", "RA"}:
        return f"stages.{stage + (kind == 'SA')}.in"
    return f"stages.{stage - (kind == 'SG')}.out.grad"


def joined_mask(by_source: Tensor) -> Tensor:
    """Return a ring's masks by source rank, (cp, B, 1, 1, Sq, Sk), as one mask in token order, (B, 1, Sq, S)."""
    keys_first = by_source[:, :, 0, 0].transpose(-1, -2)  # (cp, B, Sk, Sq)
    heads, tails = keys_first.chunk(2, dim=-2)  # source rank i holds chunks i and 2·cp-1-i
    return torch.cat([*heads, *reversed(tails.unbind(0))], dim=-2).transpose(-1, -2).unsqueeze(1)


def on_gradient(tensor: Tensor, seen: Callable[[Tensor], None]) -> None:
    """Call `seen` with the tensor's whole gradient when backward has it."""
    tensor.register_hook(seen)  # type: ignore[no-untyped-call] # torch's method is untyped


class RankRows:
    """Capture rows of one rank: adds names and placements to values and hands them to the rank's recorder."""

    def __init__(self, recorder: Recorder, places: Placements, seat: Seat) -> None:
        self.recorder, self.places, self.seat = recorder, places, seat
        self.step = -1

    def _record(
        self, tensor: str, value: Tensor, place: Placement, phase: Phase, kind: Kind, **more: Any
    ) -> None:
        """Record a value with its placement; one of another shape than declared is recorded without boxes."""
        identity: dict[str, Any] = {"step": self.step, "phase": phase, "kind": kind, **more}
        if place.shape and value.dim() != len(place.shape):
            value = reshaped(value, place)
        try:
            self.recorder.record(
                tensor,
                value,
                global_shape=place.shape,
                boxes=place.boxes,
                replica=place.replica,
                partial=place.partial,
                **identity,
            )
        except (
            CaptureError
        ):  # another shape than declared: recorded as it is, so that the comparison shows it
            self.recorder.record(tensor, value, replica=place.replica, partial=place.partial, **identity)

    def given(self, name: str, value: Tensor, micro_batch: int) -> None:
        """Record one input of the rank: tokens, targets, positions, rope or mask."""
        place = self.places.given(name, self.seat, micro_batch)
        if name == "mask" and value.dim() == RING_MASK_DIMS:
            value = joined_mask(value)
        self._record(name, value, place, "forward", "input", micro_batch=micro_batch)

    def read(self, name: str, value: Tensor) -> None:
        """Record tokens or targets of all sequences that the rank reads in a step."""
        self._record(name, value, self.places.read(self.seat), "forward", "input")

    def activation(self, name: str, value: Tensor, micro_batch: int, *, recomputed: bool = False) -> None:
        """Record an activation, as computed in forward or once more in backward."""
        place = self.places.activation(name, self.seat, micro_batch)
        tensor = name + RECOMPUTED if recomputed else name
        phase: Phase = "backward" if recomputed else "forward"
        self._record(tensor, value, place, phase, "activation", module=owner(name), micro_batch=micro_batch)

    def activation_grad(self, name: str, grad: Tensor, micro_batch: int) -> None:
        """Record the gradient of an activation."""
        place = self.places.activation(name, self.seat, micro_batch, grad=True)
        self._record(
            f"{name}.grad",
            grad,
            place,
            "backward",
            "activation_grad",
            module=owner(name),
            micro_batch=micro_batch,
        )

    def local_gradient(self, name: str, grad: Tensor, micro_batch: int) -> None:
        """Record a micro-batch's gradient of a parameter as this rank computed it."""
        self._record(
            f"{name}.grad",
            grad,
            self.places.local_gradient(name, self.seat),
            "backward",
            "param_grad_local",
            module=name.rpartition(".")[0],
            micro_batch=micro_batch,
        )

    def shard(self, name: str, value: Tensor, kind: Kind, phase: Phase, suffix: str = "") -> None:
        """Record the rank's shard of a parameter, of its gradient or of its optimiser state."""
        place = self.places.parameter(name, self.seat)
        self._record(name + suffix, value, place, phase, kind, module=name.rpartition(".")[0])

    def scalar(self, name: str, value: Tensor, phase: Phase, *, reported: bool) -> None:
        """Record a value that all ranks have."""
        self.recorder.record(
            name,
            value.reshape(()),
            step=self.step,
            phase=phase,
            kind="metric" if reported else "scalar",
            replica=self.recorder.rank,
        )

    def collective(
        self,
        axis: str,
        op: str,
        label: str,
        value: Tensor,
        phase: Phase,
        group: Sequence[int],
        micro_batch: int,
        *,
        result: bool,
    ) -> None:
        """Record the rank's input to a collective, or its result."""
        message = axis == "pp" and op in {"send", "recv"}
        reduces = op in {"all_reduce", "reduce_scatter"}
        index = list(group).index(self.recorder.rank)
        self.recorder.record(
            message_name(label) if message else label,
            value,
            step=self.step,
            phase=phase,
            kind="collective_out" if result else "collective_in",
            module="" if message else owner(label),
            micro_batch=micro_batch,
            partial=f"{axis}={index}" if reduces and not result else None,
            axis=axis,
            op=op,
            label=label,
            group=group,
        )


def reshaped(value: Tensor, place: Placement) -> Tensor:
    """Return the tensor with its placement's dimensions, padding in the last; unchanged where they do not fit."""
    sizes = list(place.boxes[0].sizes)
    if len(place.boxes) > 1:
        first = place.boxes[0].offsets
        dim = next(d for d in range(len(sizes)) if any(b.offsets[d] != first[d] for b in place.boxes))
        sizes[dim] = sum(box.sizes[dim] for box in place.boxes)
    rows = math.prod(sizes[:-1])
    return value.reshape(*sizes[:-1], -1) if rows and value.numel() % rows == 0 else value
