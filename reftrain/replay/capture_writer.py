"""Writes the replay's values as capture rows of all virtual ranks, recomputed values included."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from numerics.record.recorder import Recorder
from numerics.schema import Level, Phase
from reftrain.config.run import RunConfig
from reftrain.layout.capture_rows import RankRows, on_gradient
from reftrain.layout.grid import Seat
from reftrain.layout.placement import Placements, is_repeated
from reftrain.replay.batch import Share
from reftrain.replay.observer import Observer

SOURCE = "reftrain.replay"


class CaptureWriter(Observer):
    """Writes rows of all virtual ranks into RUN/capture."""

    def __init__(self, config: RunConfig, out: Path, level: Level, names: Sequence[str]) -> None:
        super().__init__()
        self.config = config
        self.places = Placements(config)
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

    def read(self, dp: int, tokens: Tensor, targets: Tensor) -> None:
        """Record on all ranks that read the same sequences."""
        for seat, rank in self.ranks.items():
            if seat.dp == dp:
                rank.step = self.now.step
                rank.read("data.tokens", tokens)
                rank.read("data.targets", targets)

    def value(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Record activations now and their gradients when they come."""
        if is_repeated(name, self.config):
            return
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
