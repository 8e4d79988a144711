"""Flight-recorder dumps of a small job that hangs, from what each rank's program calls.

A program is a function of one `Writer`: it calls the collectives of its rank by the role of their group. Hosts and
devices run until nothing moves (`tests.hang_shapes.machine`), then each rank's ring is written as NCCL's recorder does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from tests.hang_shapes.calls import (
    Await,
    Collective,
    Compute,
    HostStuck,
    HostSync,
    Message,
    Messages,
    Program,
    Shape,
    StepEnd,
)
from tests.hang_shapes.dump import numbered, write
from tests.hang_shapes.machine import Machine
from tests.hang_shapes.mesh import Groups, Mesh
from tests.hang_shapes.ring import Recorder, Ring

RECORDER = Recorder(
    version=(2, 9),
    timing=False,
    capacity=2000,
    began=True,
    bumped=False,
    frames=True,
    json=False,
    active=False,
    status=True,
    timeout_ms=600_000,
    names="nccl_trace_rank_",
    seed=1,
    base_ns=1_760_000_000_000_000_000,
)
AHEAD = 60
"""Calls that a host runs ahead of its device."""


@dataclass
class Writer:
    """The program of one rank in the making."""

    rank: int
    groups: Groups
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        self.program = Program(self.rank)

    def call(
        self,
        op: str,
        size: int | Shape,
        where: str,
        role: str = "world",
        *,
        dtype: str = "BFloat16",
        key: str = "",
    ) -> None:
        """A collective of the rank's group of a role; with a key, `wait` waits for it."""
        group = self.groups.get(role, self.rank)
        if group is None:
            return
        shape = (size,) if isinstance(size, int) else size
        out = shape
        if op == "_all_gather_base":
            out = (shape[0] * len(group.ranks), *shape[1:])
        if op == "_reduce_scatter_base":
            out = (shape[0] // len(group.ranks), *shape[1:])
        self.program.add(Collective(group, op, (shape,), (out,), dtype, where, key))

    def message(self, peer: int, size: int, where: str, role: str = "world", *, sends: bool) -> None:
        """A send to a rank, or a receive from it."""
        group = self.groups.get(role, self.rank)
        assert group is not None
        made = (Message(group, sends, peer, (size,)),)
        self.program.add(Messages(group, made, batched=False, where=where))

    def wait(self, key: str) -> None:
        """Later kernels wait for an asynchronous call."""
        self.program.add(Await(key))

    def work(self, us: float = 300.0) -> None:
        """Kernels."""
        self.program.add(Compute(us))

    def sync(self) -> None:
        """The host waits for its device, as `.item()` does."""
        self.program.add(HostSync())

    def stop(self) -> None:
        """The host gets no further."""
        self.program.add(HostStuck())

    def step_end(self, number: int) -> None:
        """A step is over."""
        self.program.add(StepEnd(number))


def hung(
    folder: Path,
    world: int,
    program: Callable[[Writer], None],
    roles: Mapping[str, tuple[str, Sequence[tuple[int, ...]]]] | None = None,
    *,
    recorder: Recorder = RECORDER,
    gone: Sequence[int] = (),
    dead: Mapping[tuple[str, int], int | None] | None = None,
) -> None:
    """Run a program on all ranks and write their dumps; `gone` ranks leave none, `dead` meetings never end.

    `roles` maps a role to the description of its groups and their members; `world` is always there.
    """
    groups = Groups(Mesh((("dp", world),)))
    groups.add_ranks("world", "default_pg", [tuple(range(world))])
    for role, (description, parts) in (roles or {}).items():
        groups.add_ranks(role, description, parts)
    programs = []
    for rank in range(world):
        writer = Writer(rank, groups)
        program(writer)
        programs.append(writer.program)
    machine = Machine(programs, AHEAD, dict(dead or {}))
    machine.run()
    ends = [made.task.end for host in machine.hosts for made in host.made]
    last = max([end for end in ends if end < inf] + [host.at for host in machine.hosts])
    moment = last + recorder.timeout_ms * 1e3
    folder.mkdir(parents=True, exist_ok=True)
    for rank, host in enumerate(machine.hosts):
        if rank in gone:
            continue
        own, local = numbered(groups.made, rank)
        past = {group.name: group.name for group in groups.made}
        skew = 700_000 * rank
        whole = len(host.program.items)
        write(Ring(host, recorder, local, past, skew, moment, moment, whole), own, folder)


def timed(capacity: int = 2000) -> Recorder:
    """A recorder that notes when calls start."""
    return replace(RECORDER, timing=True, capacity=capacity)
