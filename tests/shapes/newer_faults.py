"""Faults of seeds from 3000, and what happens to innocent jobs: a slow first step, pauses of everybody."""

import random

from tests.shapes.fault import Fault, Part

Steps = tuple[int, ...]
ALWAYS = (
    *("throttling", "throttling", "power_cap", "busy_host", "allocations", "pauses", "logging", "late_host"),
    *("slow_gpu", "slow_memory"),
)
"""Faults that any shape can have."""
ACROSS = ("nic_out", "flaky_nic")
"""Those of jobs on several hosts."""
INNOCENT = 0.3
"""The part of jobs without a fault."""
SPECIAL = 0.4
"""The part of faults that only their shape can have, where it has such."""
ONE_RANK = {
    "allocations": ("allocate", (1500.0, 4000.0, 10000.0)),
    "pauses": ("pause", (2000.0, 6000.0)),
    "logging": ("log", (2000.0, 6000.0, 20000.0)),
    "slow_gpu": ("gpu", (1.08, 1.15, 1.3)),
    "slow_memory": ("memory", (1.5, 2.0, 3.0)),
    "slow_pcie": ("copy", (4.0, 8.0)),
    "nic_out": ("nic_out", (3.0, 6.0)),
    "flaky_nic": ("retry", (1500.0, 4000.0)),
    "slow_port": ("port", (2.0, 2.0, 4.0)),
}
"""What is slow in faults of one rank, and by how much."""
WHOLE_HOST = {
    "power_cap": ("gemm", (1.1, 1.2, 1.35)),
    "busy_host": ("host", (1.5, 2.5, 4.0)),
    "late_host": ("data", (3000.0, 10000.0)),
}
"""The same of faults of all ranks of a host."""
HOT = (1.15, 1.3, 1.5)
"""How slow a GPU is in the last step that gets hotter from step to step."""
COMPILED_US = (150000.0, 600000.0)
"""How long a rank compiles."""


def chosen(
    kinds: tuple[str, ...], size: tuple[int, int, int], steps: Steps, drawn: random.Random
) -> Fault | None:
    """A fault of any job or of these kinds, or none; `size` is ranks, ranks of a host, ranks that load data."""
    world, per_host, loading = size
    luck, own = drawn.random(), drawn.random()
    hosts = world > per_host
    usual = [kind for kind in ALWAYS if hosts or kind not in WHOLE_HOST] + list(ACROSS if hosts else ())
    kind = drawn.choice(kinds) if kinds and own < SPECIAL else drawn.choice(usual)
    if kind == "late_host" and loading <= per_host:
        kind = "power_cap"  # no other host loads, so that no loader could be compared
    if luck < INNOCENT or (kind in ACROSS and not hosts):
        return None
    victim, first = drawn.randrange(world), per_host * drawn.randrange(max(1, world // per_host))
    if kind in WHOLE_HOST:
        what, amounts = WHOLE_HOST[kind]
        if kind == "late_host":
            first %= loading
        return Fault(kind, (Part(what, tuple(range(first, first + per_host)), drawn.choice(amounts)),))
    if kind in {"throttling", "compiling"}:
        return Fault(kind, varying(kind, victim, steps, drawn))
    what, amounts = ONE_RANK[kind]
    ranks = (0,) if kind == "logging" else (victim,)
    when = some(steps, drawn) if kind == "flaky_nic" else None
    return Fault(kind, (Part(what, ranks, drawn.choice(amounts), when),))


def some(steps: Steps, drawn: random.Random) -> Steps:
    """About two thirds of the steps."""
    return tuple(sorted(drawn.sample(steps, max(1, 2 * len(steps) // 3))))


def varying(kind: str, victim: int, steps: Steps, drawn: random.Random) -> tuple[Part, ...]:
    """Parts of a fault that is not the same in all steps: a GPU that gets hot, a rank that compiles in one or two."""
    if kind == "compiling":
        when = tuple(sorted(drawn.sample(steps[1:], drawn.choice([1, 2]))))
        return (Part("compile", (victim,), drawn.choice(COMPILED_US), when),)
    hottest = drawn.choice(HOT)
    shares = [(place + 1) / len(steps) for place in range(len(steps))]
    return tuple(
        Part("gpu", (victim,), 1 + (hottest - 1) * share, (step,))
        for step, share in zip(steps, shares, strict=True)
    )


def background(world: int, steps: Steps, drawn: random.Random) -> Fault | None:
    """What nobody is to blame for: a first step in which all hosts are slow, pauses of all, or mostly nothing."""
    luck = drawn.random()
    slow = [drawn.uniform(2.0, 3.0) for _ in range(world)]
    if luck < 0.25:
        parts = tuple(Part("host", (rank,), slow[rank], steps[:1]) for rank in range(world))
        return Fault("first_step", parts)
    return collecting(world, drawn) if luck < 0.35 else None


def collecting(world: int, drawn: random.Random) -> Fault:
    """Garbage collections of all ranks, each of which pauses once a step, at a micro-batch of its own."""
    us = drawn.choice([3000.0, 8000.0])
    parts = tuple(Part("pause", (rank,), us * drawn.uniform(0.9, 1.1)) for rank in range(world))
    return Fault("collecting", parts)
