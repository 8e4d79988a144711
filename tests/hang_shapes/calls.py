"""What a rank's program consists of."""

from dataclasses import dataclass, field

from tests.hang_shapes.mesh import Group

Shape = tuple[int, ...]
FREE_SIZES = frozenset({"all_to_allv", "gather", "scatter"})
"""Operations whose sizes may differ between members."""


@dataclass(frozen=True)
class Collective:
    """A collective; with a key it is asynchronous, and starts after the call of the key `after`."""

    group: Group
    op: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtype: str = "BFloat16"
    where: str = "train_step"
    key: str = ""
    after: str = ""
    parts: int = 0
    """How many calls a coalescing manager gathers in it; 0 without one."""

    @property
    def signature(self) -> tuple[object, ...]:
        """What must agree between members."""
        return (self.op,) if self.op in FREE_SIZES else (self.op, self.inputs, self.outputs, self.dtype)


@dataclass(frozen=True)
class Message:
    """One send or receive."""

    group: Group
    sends: bool
    peer: int
    shape: Shape
    dtype: str = "BFloat16"


@dataclass(frozen=True)
class Messages:
    """Sends and receives, as one batch or each for itself; the device waits for all."""

    group: Group
    messages: tuple[Message, ...]
    batched: bool
    where: str = "p2p_communication"


@dataclass(frozen=True)
class Compute:
    """Kernels of a rank; of infinite length if its device is stuck."""

    us: float


@dataclass(frozen=True)
class Await:
    """Later kernels wait for an asynchronous call."""

    key: str


@dataclass(frozen=True)
class HostSync:
    """The host waits for its device."""


@dataclass(frozen=True)
class HostStuck:
    """The host never gets further."""


@dataclass(frozen=True)
class StepEnd:
    """A step is over."""

    step: int


Item = Collective | Messages | Compute | Await | HostSync | HostStuck | StepEnd


@dataclass
class Program:
    """A rank's items, written one after another."""

    rank: int
    items: list[Item] = field(default_factory=list)

    def add(self, *items: Item) -> None:
        """Write items."""
        self.items.extend(items)
