"""Writes the replay's values as capture rows, under the names and places under which the trainer captures its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from numerics.capture import CaptureError, Recorder
from numerics.schema import Kind, Level, Phase
from reftrain.config import RunConfig
from reftrain.replay.batch import Share
from reftrain.replay.grid import Seat
from reftrain.replay.lockstep import sequence_order
from reftrain.replay.places import Place, Places
from reftrain.replay.probe import Probe

SOURCE = "reftrain.replay"
RECOMPUTED = ".recomputed"


def owner(name: str) -> str:
    """Module that a tensor or a collective's label belongs to."""
    for ending in (".kv.grad", ".grad", ".kv", ".out", ".in"):
        name = name.removesuffix(ending)
    return name if "." in name else ""


def message_name(label: str) -> str:
    """Name of the tensor of a message between stages: SA0.3 and RA1.3 carry stages.1.in."""
    kind, stage = label[:2], int(label[2:].partition(".")[0])
    if kind in {"SA", "RA"}:
        return f"stages.{stage + (kind == 'SA')}.in"
    return f"stages.{stage - (kind == 'SG')}.out.grad"


def joined_mask(by_source: Tensor) -> Tensor:
    """A ring's masks by source rank, (cp, B, 1, 1, Sq, Sk), as one over all keys in their order, (B, 1, Sq, S)."""
    keys_first = by_source[:, :, 0, 0].transpose(-1, -2)
    return sequence_order(keys_first).transpose(-1, -2).unsqueeze(1)


def on_gradient(tensor: Tensor, seen: Callable[[Tensor], None]) -> None:
    """Call `seen` with the tensor's whole gradient when backward has it."""
    tensor.register_hook(seen)  # type: ignore[no-untyped-call] # torch's method is untyped


class RankRows:
    """Rows of one rank: knows names and places, hands everything to the rank's recorder."""

    def __init__(self, recorder: Recorder, places: Places, seat: Seat) -> None:
        self.recorder, self.places, self.seat = recorder, places, seat
        self.step = -1

    def _record(
        self, tensor: str, value: Tensor, place: Place, phase: Phase, kind: Kind, **more: Any
    ) -> None:
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
        """Record what the rank computes on."""
        place = self.places.given(name, self.seat, micro_batch)
        if name == "mask" and value.dim() == 6:
            value = joined_mask(value)
        self._record(name, value, place, "forward", "input", micro_batch=micro_batch)

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
        """Record what the rank put into a collective, or its result."""
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


def reshaped(value: Tensor, place: Place) -> Tensor:
    """The tensor with the dimensions of its place, the last keeping its padding; as it is where that fails."""
    sizes = list(place.boxes[0].sizes)
    if len(place.boxes) > 1:
        first = place.boxes[0].offsets
        dim = next(d for d in range(len(sizes)) if any(b.offsets[d] != first[d] for b in place.boxes))
        sizes[dim] = sum(box.sizes[dim] for box in place.boxes)
    rows = math.prod(sizes[:-1])
    return value.reshape(*sizes[:-1], -1) if rows and value.numel() % rows == 0 else value


class RowProbe(Probe):
    """Writes rows of all virtual ranks into RUN/capture."""

    def __init__(self, config: RunConfig, out: Path, level: Level, names: Sequence[str]) -> None:
        super().__init__()
        self.config = config
        self.places = Places(config)
        self.grid = self.places.grid
        self.ranks = {seat: self._rank(seat, out, level, names) for seat in self.grid.seats()}
        self._again: dict[tuple[Seat, str], list[Callable[[], None]]] = {}

    def _rank(self, seat: Seat, out: Path, level: Level, names: Sequence[str]) -> RankRows:
        coords = {"tp": seat.tp, "cp": seat.cp, "pp": seat.pp, "dp": seat.dp}
        size = self.config.mesh.world_size
        rank = self.grid.rank(seat)
        recorder = Recorder(out, rank, size, coords, level=level, names=names, source=SOURCE)
        return RankRows(recorder, self.places, seat)

    def _here(self) -> list[RankRows]:
        """Rows of the ranks in lock step now."""
        mesh, now = self.config.mesh, self.now
        pp = now.stage % mesh.pp
        rows = [self.ranks[Seat(now.dp, pp, c, t)] for c in range(mesh.cp) for t in range(mesh.tp)]
        for rank in rows:
            rank.step = now.step
        return rows

    def inputs(self, batch: Sequence[Share]) -> None:
        """Record tokens, targets, positions, rope and mask."""
        for rank, share in zip(self._here(), batch, strict=True):
            for name in ("tokens", "targets", "positions", "rope", "mask"):
                value = getattr(share, name)
                if value is not None:
                    rank.given(name, value, self.now.micro_batch)

    def value(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Record activations now and their gradients when they come."""
        number = self.now.micro_batch
        for rank, tensor in zip(self._here(), tensors, strict=True):
            rank.activation(name, tensor, number)
            on_gradient(tensor, self._on_gradient(rank, name, number))
            if (
                self.config.numerics.recompute == "full"
                and name.startswith("layers.")
                and name.count(".") > 2
            ):
                again = partial(rank.activation, name, tensor.detach(), number, recomputed=True)
                self._remember(rank, name, again)

    def _remember(self, rank: RankRows, name: str, write: Callable[[], None]) -> None:
        """Keep what recomputation will record again, under the tensor whose gradient starts it."""
        layer = ".".join(name.split(".")[:2])
        trigger = f"{layer}.out" if self.config.numerics.recompute == "full" else f"{layer}.attention.wo.in"
        self._again.setdefault((rank.seat, trigger), []).append(write)

    def _on_gradient(self, rank: RankRows, name: str, number: int) -> Callable[[Tensor], None]:
        def seen(grad: Tensor) -> None:
            rank.activation_grad(name, grad, number)
            for write in self._again.pop((rank.seat, name), []):
                write()

        return seen

    def weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Record each micro-batch's gradients of the leaves."""
        number = self.now.micro_batch
        for rank, leaves in zip(self._here(), weights, strict=True):
            for name, leaf in leaves.items():
                on_gradient(leaf, partial(rank.local_gradient, name, micro_batch=number))

    def _write_exchange(
        self, rank: RankRows, axis: str, label: str, group: Sequence[int], sent: Tensor, received: Tensor
    ) -> None:
        phase: Phase = self.now.phase  # type: ignore[assignment]
        rank.collective(axis, "send", label, sent, phase, group, self.now.micro_batch, result=False)
        rank.collective(axis, "recv", label, received, phase, group, self.now.micro_batch, result=True)

    def exchange(
        self,
        axis: str,
        label: str,
        groups: Sequence[Sequence[int]],
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
    ) -> None:
        """Record both messages of every rank, and once more where recomputation repeats them."""
        rows = self._here()
        for group in groups:
            members = [rows[place].recorder.rank for place in group]
            for place in group:
                write = partial(
                    self._write_exchange,
                    rows[place],
                    axis,
                    label,
                    members,
                    sent[place].detach().clone(),
                    received[place].detach().clone(),
                )
                write()
                if self.now.phase == "forward" and self._is_recomputed(label):
                    self._remember(rows[place], label, write)

    def _write(
        self,
        rank: RankRows,
        axis: str,
        op: str,
        label: str,
        group: Sequence[int],
        into: Tensor,
        result: Tensor,
    ) -> None:
        now = self.now
        phase: Phase = now.phase  # type: ignore[assignment]
        number = -1 if phase == "reduce" else now.micro_batch
        rank.collective(axis, op, label, into, phase, group, number, result=False)
        rank.collective(axis, op, label, result, phase, group, number, result=True)

    def collective(
        self,
        axis: str,
        op: str,
        label: str,
        groups: Sequence[Sequence[int]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Record both sides, and once more where recomputation repeats it."""
        rows = self._here()
        for group in groups:
            members = [rows[place].recorder.rank for place in group]
            for place in group:
                sides = inputs[place].detach(), outputs[place].detach()
                self._write(rows[place], axis, op, label, members, *sides)
                if self.now.phase == "forward" and self._is_recomputed(label):
                    again = partial(self._write, rows[place], axis, op, label, members, *sides)
                    self._remember(rows[place], label, again)

    def _is_recomputed(self, label: str) -> bool:
        how = self.config.numerics.recompute
        return label.startswith("layers.") and (
            how == "full" or (how == "selective" and label.endswith(".kv"))
        )

    def message(self, axis: str, label: str, sender: int, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Record a stage's output as sent and as received; nothing where one rank holds both stages."""
        pp, now = self.config.mesh.pp, self.now
        if sender % pp == receiver % pp:
            return
        kind = label[0]
        for op, stage, result in (("send", sender, False), ("recv", receiver, True)):
            self.now.stage = stage
            for rank, tensor in zip(self._here(), tensors, strict=True):
                seat = rank.seat
                group = [self.grid.rank(Seat(seat.dp, p, seat.cp, seat.tp)) for p in range(pp)]
                text = f"{'R' if result else 'S'}{kind}{stage}.{now.micro_batch}"
                phase: Phase = "forward" if kind == "A" else "backward"
                rank.collective(axis, op, text, tensor.detach(), phase, group, now.micro_batch, result=result)

    def reduction(
        self,
        axis: str,
        op: str,
        label: str,
        inputs: Mapping[Seat, Tensor],
        outputs: Mapping[Seat, Tensor],
    ) -> None:
        """Record both sides of a reduction; nothing where a rank is alone."""
        if len(inputs) == 1:
            return
        group = [self.grid.rank(seat) for seat in inputs]
        for seat, into in inputs.items():
            rank = self.ranks[seat]
            rank.step = self.now.step
            self._write(rank, axis, op, label, group, into, outputs[seat])

    def scalar(self, name: str, value: Tensor, *, reported: bool = False) -> None:
        """Record the value on every rank."""
        for rank in self.ranks.values():
            rank.step = self.now.step
            rank.scalar(name, value, self.now.phase, reported=reported)  # type: ignore[arg-type]

    def shards(self, kind: str, suffix: str, tensors: Mapping[Seat, Mapping[str, Tensor]]) -> None:
        """Record the shards of every rank."""
        for seat, named in tensors.items():
            self.ranks[seat].step = self.now.step
            for name, tensor in named.items():
                self.ranks[seat].shard(name, tensor, kind, self.now.phase, suffix)  # type: ignore[arg-type]

    def close(self) -> None:
        """Finish all files."""
        for rank in self.ranks.values():
            rank.recorder.close()
