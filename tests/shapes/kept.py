"""FSDP2 in other ways: parameters that stay whole, gradients that wait, all of it on the host, lengths of one's own."""

from dataclasses import dataclass, replace

from tests.shapes.forms import on_host
from tests.shapes.fsdp import COPY_IN, REDUCE, Member, Meshes, Sharded
from tests.shapes.layers import POINTWISE, head_and_loss, load, logged, one_number, pause
from tests.shapes.rank import Rank

PCIE = 24e3
"""Bytes per µs between a host and its GPU."""
TO_DEVICE, TO_HOST = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"


@dataclass(frozen=True)
class Kept(Sharded):
    """`kept` is reshard_after_forward=False; `late` reduces after the last micro-batch alone."""

    kept: bool = True
    late: bool = True

    def member(self, meshes: Meshes, rank: Rank) -> "Keeper":
        """One rank in one step."""
        return Keeper(self, meshes, rank)


class Keeper(Member):
    """One rank in one step."""

    def __init__(self, config: Kept, meshes: Meshes, rank: Rank) -> None:
        super().__init__(config, meshes, rank)
        self.kept: Kept = config
        self.done = 0
        self.whole = False

    def micro_batch(self, length: float) -> None:
        """Forward and backward of one micro-batch."""
        rank, config = self.rank, self.kept
        self.done += 1
        load(rank)
        pause(rank)
        for place in range(config.layers):
            if not self.whole:
                self.unpack(self.gather(place))
            self.block(length)
        self.whole = config.kept and (config.late or self.done == config.micro)
        head_and_loss(rank, config.unit * 1.5, config.unit * 0.4)
        with rank.autograd():
            reduced: int | None = None
            for place in reversed(range(config.layers)):
                if not config.kept:
                    self.unpack(self.gather(place))
                self.block_backward(length)
                if self.done == config.micro or not config.late:
                    reduced = self.reduce(place, reduced)
                else:
                    rank.kernel(POINTWISE, 30, "memory", op="aten::add_")
            if reduced is not None:
                rank.wait(reduced)


@dataclass(frozen=True)
class Offloaded(Sharded):
    """Parameters, gradients and the optimizer are on the host; `update_us` is its work for a layer there."""

    update_us: float = 1500.0

    def member(self, meshes: Meshes, rank: Rank) -> "Carrier":
        """One rank in one step."""
        return Carrier(self, meshes, rank)


class Carrier(Member):
    """One rank in one step."""

    def __init__(self, config: Offloaded, meshes: Meshes, rank: Rank) -> None:
        super().__init__(config, meshes, rank)
        self.offloaded = config
        self.carried: list[int] = []

    @property
    def cut(self) -> int:
        """Elements of a layer that this rank owns."""
        return self.config.parameters // len(self.shard.ranks)

    def gather(self, place: int) -> int:
        """Bring a layer's part to the device and gather the rest."""
        self.carry(TO_DEVICE, self.cut * 2, COPY_IN, "aten::_to_copy")
        return super().gather(place)

    def reduce(self, place: int, before: int | None) -> int:
        """Sum a layer's gradients and bring them to the host."""
        super().reduce(place, before)
        self.carried.append(self.carry(TO_HOST, self.cut * 4, REDUCE, "aten::copy_"))
        return self.carried[-1]

    def carry(self, name: str, size: int, stream: str, op: str) -> int:
        """The node of a copy over PCIe."""
        us = 6.0 + size / PCIE
        return self.rank.kernel(name, us, stream=stream, op=op, launch="cudaMemcpyAsync", copied=max(1, size))

    def end(self, number: int) -> None:
        """The host waits for its gradients, and works on them."""
        rank, config = self.rank, self.offloaded
        for node in self.carried:
            rank.block("cudaEventSynchronize", [node])
        on_host(rank, "aten::linalg_vector_norm", config.update_us * 0.2)
        one_number(rank, self.shard)
        rank.item()
        with rank.span("Optimizer.step#AdamW.step"):
            for _ in range(config.layers):
                on_host(rank, "aten::_fused_adamw_", config.update_us)
        with rank.span("Optimizer.zero_grad#AdamW.zero_grad"):
            rank.host(25)
        logged(rank, self.meshes.logging, config.log, number)


@dataclass(frozen=True)
class Padded(Sharded):
    """Each rank pads its batch to the longest sequence of its own, so that all work follows the data."""

    def member(self, meshes: Meshes, rank: Rank) -> "Padder":
        """One rank in one step."""
        return Padder(self, meshes, rank)


class Padder(Member):
    """One rank in one step."""

    def micro_batch(self, length: float) -> None:
        """Forward and backward of one micro-batch, all of it as long as its data."""
        whole = self.config
        self.config = replace(whole, unit=whole.unit * length)
        super().micro_batch(length)
        self.config = whole
