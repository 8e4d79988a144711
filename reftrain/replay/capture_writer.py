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
        self.grid, self.pipeline = self.places.grid, self.places.declared.pipeline
        self.out, self.level, self.names = out, level, tuple(names)
        self.ranks = {seat: self._rank(seat) for seat in self.grid.seats()}
        self._again: dict[tuple[Seat, str], list[Callable[[], None]]] = {}

    def _rank(self, seat: Seat) -> RankRows:
        return RankRows(self._recorder(seat, self.out), self.places, seat)

    def _recorder(self, seat: Seat, out: Path) -> Recorder:
        coords = {"tp": seat.tp, "cp": seat.cp, "pp": seat.pp, "dp": seat.dp}
        size = self.config.mesh.world_size
        rank = self.grid.rank(seat)
        return Recorder(out, rank, size, coords, level=self.level, names=self.names, source=SOURCE)

    def _next(self, rank: RankRows, tensor: Tensor) -> Tensor:
        """Return what the computation of a rank goes on with after `tensor` was recorded."""
        del rank
        return tensor

    def _here(self) -> list[RankRows]:
        """Rows of the ranks in lock step now."""
        now = self.now
        pp = self.pipeline.rank_of(now.stage, now.micro_batch)
        rows = [self.ranks[seat] for seat in self.grid.lock_step(now.dp, pp)]
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

    def shown(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Record activations now and their gradients when they come."""
        if is_repeated(name, self.config):
            return
        number = self.now.micro_batch
        for rank, tensor in zip(self._here(), tensors, strict=True):
            self._activation(rank, name, tensor, number)
            if tensor.requires_grad:
                on_gradient(tensor, self._on_gradient(rank, name, number))

    def _activation(self, rank: RankRows, name: str, tensor: Tensor, number: int) -> Tensor:
        """Record an activation, and once more where recomputation repeats it; return what goes on."""
        rank.activation(name, tensor, number)
        onward = self._next(rank, tensor)
        full = self.config.numerics.recompute == "full"
        if full and name.startswith("layers.") and name.count(".") > 2:
            again = partial(rank.activation, name, tensor.detach(), number, recomputed=True)
            self._remember(rank, name, again)
        return onward

    def _remember(self, rank: RankRows, name: str, write: Callable[[], None]) -> None:
        """Keep a record that recomputation will repeat, under the tensor with the gradient that starts it."""
        layer = ".".join(name.split(".")[:2])
        trigger = f"{layer}.out" if self.config.numerics.recompute == "full" else f"{layer}.attention.wo.in"
        self._again.setdefault((rank.seat, trigger), []).append(write)

    def _on_gradient(self, rank: RankRows, name: str, number: int) -> Callable[[Tensor], None]:
        def seen(grad: Tensor) -> None:
            self._gradient(rank, name, grad, number)

        return seen

    def _gradient(self, rank: RankRows, name: str, grad: Tensor, number: int) -> Tensor:
        """Record the gradient of an activation, and what recomputation repeats then; return what goes on."""
        rank.activation_grad(name, grad, number)
        onward = self._next(rank, grad)
        for write in self._again.pop((rank.seat, name), []):
            write()
        return onward

    def weights(self, weights: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Record each micro-batch's gradients of the leaves."""
        number = self.now.micro_batch
        for rank, leaves in zip(self._here(), weights, strict=True):
            for name, leaf in leaves.items():
                if not leaf.requires_grad:
                    continue
                on_gradient(leaf, partial(rank.local_gradient, name, micro_batch=number))
        return [dict(leaves) for leaves in weights]

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

    def _side(
        self,
        rank: RankRows,
        axis: str,
        op: str,
        label: str,
        group: Sequence[int],
        value: Tensor,
        *,
        result: bool,
    ) -> Tensor:
        """Record one side of a collective, and once more where recomputation repeats it; return what goes on."""
        now, held = self.now, value.detach()
        number = -1 if now.phase == "reduce" else now.micro_batch

        def write() -> None:
            phase: Phase = now.phase  # type: ignore[assignment]
            rank.collective(axis, op, label, held, phase, group, number, result=result)

        write()
        onward = self._next(rank, value)
        if now.phase == "forward" and self._is_recomputed(label):
            self._remember(rank, label, write)
        return onward

    def _sides(
        self,
        axis: str,
        op: str,
        label: str,
        groups: Sequence[Sequence[int]],
        tensors: Sequence[Tensor],
        *,
        result: bool,
    ) -> list[Tensor]:
        rows, out = self._here(), list(tensors)
        for group in groups:
            members = [rows[place].recorder.rank for place in group]
            for place in group:
                out[place] = self._side(rows[place], axis, op, label, members, tensors[place], result=result)
        return out

    def collective_in(
        self, axis: str, op: str, label: str, groups: Sequence[Sequence[int]], inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Record what goes in."""
        return self._sides(axis, op, label, groups, inputs, result=False)

    def collective_out(
        self, axis: str, op: str, label: str, groups: Sequence[Sequence[int]], outputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Record what comes out."""
        return self._sides(axis, op, label, groups, outputs, result=True)

    def _is_recomputed(self, label: str) -> bool:
        how = self.config.numerics.recompute
        return label.startswith("layers.") and (
            how == "full" or (how == "selective" and label.endswith(".kv"))
        )

    def message(
        self, axis: str, label: str, sender: int, receiver: int, tensors: Sequence[Tensor], part: str = ""
    ) -> list[Tensor]:
        """Record a stage's output as sent and as received; nothing where one rank holds both stages."""
        pp, now = self.config.mesh.pp, self.now
        onward = list(tensors)
        if self.pipeline.rank_of(sender, now.micro_batch) == self.pipeline.rank_of(receiver, now.micro_batch):
            return onward
        kind = label[0]
        replica = self.pipeline.replica_of(now.micro_batch)
        suffix = (f"@{replica}" if replica else "") + (f":{part}" if part else "")
        for op, stage, result in (("send", sender, False), ("recv", receiver, True)):
            self.now.stage = stage
            for place, rank in enumerate(self._here()):
                seat = rank.seat
                group = [self.grid.rank(Seat(seat.dp, p, seat.cp, seat.tp)) for p in range(pp)]
                text = f"{'R' if result else 'S'}{kind}{stage}.{now.micro_batch}{suffix}"
                phase: Phase = "forward" if kind == "A" else "backward"
                held = onward[place].detach()
                rank.collective(axis, op, text, held, phase, group, now.micro_batch, result=result)
                onward[place] = self._next(rank, onward[place])
        return onward

    def _reduction(
        self, axis: str, op: str, label: str, tensors: Mapping[Seat, Tensor], *, result: bool
    ) -> dict[Seat, Tensor]:
        """Record one side of a reduction; nothing where a rank is alone."""
        if len(tensors) == 1:
            return dict(tensors)
        group, out = [self.grid.rank(seat) for seat in tensors], {}
        for seat, value in tensors.items():
            rank = self.ranks[seat]
            rank.step = self.now.step
            out[seat] = self._side(rank, axis, op, label, group, value, result=result)
        return out

    def reduction_in(
        self, axis: str, op: str, label: str, inputs: Mapping[Seat, Tensor]
    ) -> dict[Seat, Tensor]:
        """Record what goes in."""
        return self._reduction(axis, op, label, inputs, result=False)

    def reduction_out(
        self, axis: str, op: str, label: str, outputs: Mapping[Seat, Tensor]
    ) -> dict[Seat, Tensor]:
        """Record what comes out."""
        return self._reduction(axis, op, label, outputs, result=True)

    def scalar(self, name: str, value: Tensor, *, reported: bool = False) -> Tensor:
        """Record the value on every rank."""
        onward = []
        for rank in self.ranks.values():
            rank.step = self.now.step
            rank.scalar(name, value, self.now.phase, reported=reported)  # type: ignore[arg-type]
            onward.append(self._next(rank, value))
        return onward[0]

    def shards(
        self, kind: str, suffix: str, tensors: Mapping[Seat, Mapping[str, Tensor]]
    ) -> dict[Seat, dict[str, Tensor]]:
        """Record the shards of every rank."""
        out: dict[Seat, dict[str, Tensor]] = {}
        for seat, named in tensors.items():
            rank = self.ranks[seat]
            rank.step, out[seat] = self.now.step, {}
            for name, tensor in named.items():
                rank.shard(name, tensor, kind, self.now.phase, suffix)  # type: ignore[arg-type]
                out[seat][name] = self._next(rank, tensor)
        return out

    def close(self) -> None:
        """Finish all files."""
        for rank in self.ranks.values():
            rank.recorder.close()
