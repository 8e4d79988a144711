"""Which fault a job of `broad` has."""

import random

from tests.shapes.case import Shape
from tests.shapes.fault import Fault, Part
from tests.shapes.megatron import Megatron
from tests.shapes.network import PER_HOST

KINDS = (
    *("slow_gpu", "slow_gpu", "slow_gpu", "slow_gemm", "slow_memory", "slow_host", "pauses", "slow_nic"),
    *("slow_nvlink", "late_data", "slow_node", "two_gpus", "intermittent", "none", "none", "none"),
    *("slow_gpu", "slow_host"),
)


def planted(
    shape: Shape, world: int, steps: tuple[int, ...], drawn: random.Random, *, uneven_stages: bool
) -> Fault | None:
    """A fault of a kind that the shape can have."""
    kind = drawn.choice(KINDS)
    if uneven_stages:
        kind = drawn.choice(["none", "none", "slow_gpu"])
    victim = drawn.randrange(world)
    if world <= PER_HOST and kind == "slow_nic":
        return Fault("slow_gpu", (Part("gpu", (victim,), 1.3),))
    if kind == "none" or (world <= PER_HOST and kind == "slow_node"):
        return None
    if kind == "late_data" and isinstance(shape, Megatron):
        tp = shape.tp
        victim = tp * (victim % (world // tp // shape.pp))
    return Fault(kind, parts_of(kind, victim, world, steps, drawn))


ONE_RANK = {
    "slow_gpu": ("gpu", (1.06, 1.1, 1.2, 1.4)),
    "slow_gemm": ("gemm", (1.1, 1.2, 1.4)),
    "slow_memory": ("memory", (1.3, 1.6, 2.0)),
    "slow_host": ("host", (1.5, 2.5, 4.0)),
    "pauses": ("pause", (6000.0, 15000.0)),
    "slow_nic": ("nic", (2.0, 4.0, 8.0)),
    "late_data": ("data", (5000.0, 20000.0)),
}
"""What is slow in faults of one rank, and by how much."""


def parts_of(
    kind: str, victim: int, world: int, steps: tuple[int, ...], drawn: random.Random
) -> tuple[Part, ...]:
    """The parts of a fault."""
    if kind in ONE_RANK:
        what, amounts = ONE_RANK[kind]
        return (Part(what, (victim,), drawn.choice(amounts)),)
    if kind == "slow_nvlink":
        return (Part("nvlink", tuple(sorted((victim, victim ^ 1))), drawn.choice([4.0, 8.0])),)
    if kind == "slow_node":
        first = PER_HOST * drawn.randrange(world // PER_HOST)
        return (Part("gpu", tuple(range(first, first + PER_HOST)), drawn.choice([1.1, 1.25])),)
    if kind == "two_gpus":
        other = (victim + 1 + drawn.randrange(world - 1)) % world
        return tuple(Part("gpu", (rank,), drawn.choice([1.15, 1.3])) for rank in (victim, other))
    slow = steps[len(steps) // 2 :][: max(1, len(steps) // 2)]
    return (Part("gpu", (victim,), 1.4, slow),)
