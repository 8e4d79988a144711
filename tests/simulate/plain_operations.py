"""Operations of actions with plain costs, for exact bubbles."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reftrain.simulate.program import Builder, Parcel


@dataclass(frozen=True)
class PlainOperations:
    """Every forward takes `forward` ns, every backward `backward`, every message `p2p`; nothing else takes time.

    `scale` multiplies the compute of a stage. A split backward takes half its time for either part.
    """

    forward_ns: float
    backward_ns: float
    p2p_ns: float = 0.0
    scale: Mapping[int, float] = field(default_factory=dict)

    @property
    def host_waits(self) -> bool:
        """The host never waits within a step."""
        return False

    def begin(self, b: Builder) -> None:
        """A step starts with its first action."""

    def forward(self, b: Builder, stage: int, micro_batch: int, *, again: bool) -> None:
        """One kernel."""
        del micro_batch
        b.compute("recompute" if again else "forward", self.forward_ns * self.scale.get(stage, 1.0))

    def backward(self, b: Builder, stage: int, micro_batch: int, *, part: str, reduce: bool) -> None:
        """One kernel."""
        del micro_batch, reduce
        share = 1.0 if part == "all" else 0.5
        b.compute("backward", share * self.backward_ns * self.scale.get(stage, 1.0))

    def messages(self, stage: int, *, gradient: bool) -> list[Parcel]:
        """The same for all."""
        del stage, gradient
        return [Parcel(self.p2p_ns, 1)]

    def sync_replicas(self, b: Builder, stage: int, owners: tuple[int, ...]) -> int | None:
        """Costs nothing."""
        del b, stage, owners
        return None

    def update(self, b: Builder, stage: int) -> None:
        """Costs nothing."""

    def finish(self, b: Builder, stages: tuple[int, ...]) -> None:
        """Wait for everything."""
        del stages
        b.sync(b.open)
