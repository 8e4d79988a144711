"""What a framework's program is written with: calls by the role of their group."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.hang_shapes.calls import (
    Await,
    Collective,
    Compute,
    HostSync,
    Item,
    Message,
    Messages,
    Program,
    Shape,
)
from tests.hang_shapes.mesh import Groups, Mesh


@dataclass(frozen=True)
class Job:
    """A job as drawn: its mesh, its groups, and how it works."""

    mesh: Mesh
    groups: Groups
    steps: int
    micro_batches: int
    layers: int
    hidden: int
    tokens: int
    batched: bool
    syncs: bool
    """Whether the host waits for its device after messages, as Megatron does by default."""
    ring: bool
    """Context parallelism as a ring of messages, not as an exchange."""
    dropless: bool
    """Experts that ask the device how many tokens they get."""
    coalesced: bool
    seed: int
    short: frozenset[int] = frozenset()
    """Ranks that run one micro-batch less than the others."""

    def micro_batches_of(self, rank: int) -> int:
        """How many micro-batches a rank runs in a step."""
        return self.micro_batches - (rank in self.short)


@dataclass
class Writer:
    """Writes the program of one rank."""

    job: Job
    rank: int
    program: Program = field(init=False)
    coords: dict[str, int] = field(init=False)
    drawn: Random = field(init=False)

    def __post_init__(self) -> None:
        self.program = Program(self.rank)
        self.coords = self.job.mesh.coords(self.rank)
        self.drawn = Random(self.job.seed * 100003 + self.rank)

    def add(self, *items: Item) -> None:
        """Write items."""
        self.program.add(*items)

    def compute(self, us: float) -> None:
        """Kernels of about this length."""
        self.add(Compute(us * self.drawn.uniform(0.9, 1.1)))

    def sync(self) -> None:
        """The host waits."""
        self.add(HostSync())

    def call(
        self,
        role: str,
        op: str,
        shape: Shape,
        *,
        out: Shape | None = None,
        dtype: str = "BFloat16",
        where: str = "train_step",
        key: str = "",
        after: str = "",
        parts: int = 0,
    ) -> None:
        """A collective in the rank's group of a role, if it has one."""
        group = self.job.groups.get(role, self.rank)
        if group is None:
            return
        size, first = len(group.ranks), shape[0] if shape else 1
        if op == "_all_gather_base":
            out = (first * size, *shape[1:])
        if op == "_reduce_scatter_base":
            out = (max(first // size, 1), *shape[1:])
        inputs: tuple[Shape, ...] = (shape,)
        outputs: tuple[Shape, ...] = (out or shape,)
        if op == "all_to_allv":
            inputs = ((self.drawn.randrange(first // 2, first * 2), *shape[1:]),)
            outputs = ((self.drawn.randrange(first // 2, first * 2), *shape[1:]),)
        if op == "gather":
            outputs = (shape,) * size if group.ranks[0] == self.rank else ()
        self.add(Collective(group, op, inputs, outputs, dtype, where, key, after, parts))

    def wait(self, key: str) -> None:
        """Later kernels wait for an asynchronous call."""
        self.add(Await(key))

    def messages(
        self, role: str, messages: Sequence[tuple[bool, int, Shape]], where: str, *, batched: bool
    ) -> None:
        """Sends (true) and receives of a rank's group of a role."""
        group = self.job.groups.get(role, self.rank)
        if group is None or not messages:
            return
        made = tuple(Message(group, sends, peer, shape) for sends, peer, shape in messages)
        self.add(Messages(group, made, batched, where))
