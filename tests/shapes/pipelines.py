"""Seeds from 1000: pipelines with virtual stages, in four dimensions, beside rings, in torchtitan."""

import random
from dataclasses import replace

from tests.shapes.broad import broad, recorded
from tests.shapes.case import Case
from tests.shapes.fault import Fault, Part
from tests.shapes.interleaved import Interleaved
from tests.shapes.network import PER_HOST

FIRST = 1000
Mesh = tuple[int, int, int, int, int]
MESHES: dict[str, list[Mesh]] = {
    "vpp": [(1, 1, 4, 2, 2), (2, 1, 4, 2, 2), (2, 1, 2, 2, 2), (4, 1, 4, 2, 2), (1, 1, 4, 4, 2)],
    "meg4d": [(2, 2, 2, 2, 1), (2, 2, 4, 1, 1), (2, 2, 4, 2, 1), (2, 2, 2, 2, 2)],
    "titan_pp": [(1, 1, 2, 4, 1), (1, 1, 4, 4, 1), (1, 1, 4, 2, 2), (1, 1, 4, 8, 1)],
    "meg_cp": [(1, 4, 2, 2, 1), (2, 4, 2, 1, 1), (1, 2, 4, 2, 1)],
    "ring_te": [(1, 4, 2, 1, 1)],
    "titan_pp_tp": [(2, 1, 2, 4, 1), (2, 1, 2, 4, 2), (4, 1, 2, 4, 1)],
}
"""By shape, sizes of tp, cp, pp, dp and chunks a stage; seeds go through the shapes in turn."""
NEVER = ("slow_node", "two_gpus")
"""Faults of several ranks, which these shapes do without."""


def pipelines(seed: int) -> Case:
    """The case of a seed; what is not said here is that of `broad` a thousand below."""
    base = broad(seed - FIRST)
    drawn = random.Random(seed * 97 + 3)
    name = list(MESHES)[seed % len(MESHES)]
    shape, world = shape_of(name, drawn)
    steps = base.steps if len(base.steps) > 1 else (12, 13, 14)
    fault = fault_of(base.fault, shape, world, steps, drawn)
    subset = base.subset if base.subset == "one per host" else "all"
    return replace(
        base,
        seed=seed,
        name=name,
        shape=shape,
        world=world,
        steps=steps,
        fault=fault,
        subset=subset,
        recorded=recorded(subset, shape, world),
        uneven=shape.documents,
    )


def shape_of(name: str, drawn: random.Random) -> tuple[Interleaved, int]:
    """A shape and its number of ranks."""
    meshes = MESHES[name]
    tp, cp, pp, dp, chunks = meshes[0] if len(meshes) == 1 else drawn.choice(meshes)
    titan = name.startswith("titan")
    shape = Interleaved(
        tp=tp,
        cp=cp,
        pp=pp,
        chunks=chunks,
        micro=pp * drawn.choice([1, 2]),
        layers=1 if chunks > 1 else 2,
        unit=drawn.uniform(150, 350),
        parameters=drawn.choice([5, 10]) * 10**6,
        titan=titan,
        batched=titan or chunks == 1,
        ring_batched=drawn.random() < 0.4,
        documents=drawn.random() < 0.2,
        log=drawn.choice([1, 5]),
    )
    return shape, tp * cp * pp * dp


def fault_of(
    fault: Fault | None, shape: Interleaved, world: int, steps: tuple[int, ...], drawn: random.Random
) -> Fault | None:
    """The fault of the other case, at a rank of this one; often a slow GPU where there is none."""
    if fault is None or fault.kind in NEVER:
        if drawn.random() >= 0.75:
            return None
        fault = Fault("slow_gpu", (Part("gpu", (drawn.randrange(world),), drawn.choice([1.1, 1.2, 1.4])),))
    victim = drawn.randrange(world)
    if fault.kind == "late_data":
        victim = victim % (world // shape.pp) // shape.tp * shape.tp
    if fault.kind == "slow_nic" and world <= PER_HOST:
        return None
    ranks = tuple(sorted((victim, victim ^ 1))) if fault.kind == "slow_nvlink" else (victim,)
    slow = steps[len(steps) // 2 :][:1] if fault.kind == "intermittent" else None
    return Fault(fault.kind, tuple(Part(part.what, ranks, part.amount, slow) for part in fault.parts))
