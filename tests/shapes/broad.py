"""Seeds below 1000: every shape, every fault, all habits."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.shapes.case import Case, Shape
from tests.shapes.ddp import Transformer, Vision
from tests.shapes.experts import Experts
from tests.shapes.fsdp import Sharded
from tests.shapes.megatron import Megatron
from tests.shapes.network import PER_HOST
from tests.shapes.planted import planted
from tests.shapes.setting import Habits
from tests.shapes.zero import Stage1, Stage3

Torch = tuple[int, int]
RECENT: list[Torch] = [(2, 5), (2, 6), (2, 7), (2, 8), (2, 9)]
TORCHES: list[Torch] = [(2, 1), (2, 3), (2, 4), *RECENT, (2, 12), (2, 13)]
NAMES = (
    *(
        "megatron",
        "fsdp2",
        "hsdp",
        "fsdp_tp",
        "ddp_vision",
        "ddp_llm",
        "zero3",
        "zero1",
        "ring_cp",
        "ulysses",
        "moe",
    ),
    *("megatron_uneven", "megatron", "fsdp2", "megatron_pp"),
)
"""Shapes, in the order in which seeds go through them."""


@dataclass
class Drawn:
    """A shape in the making."""

    shape: Shape
    world: int
    uneven: bool = False


def broad(seed: int) -> Case:
    """The case of a seed."""
    drawn = random.Random(seed * 2654435761 % 2**32)
    name = NAMES[seed % len(NAMES)]
    torch = drawn.choice(TORCHES if drawn.random() < 0.5 else RECENT)
    if torch == (2, 1) and drawn.random() < 0.6:
        torch = (2, 6)
    made = shape_of(name, drawn, drawn.choice([8, 8, 16, 16, 32]))
    count = drawn.choice([1, 2, 3, 3, 3, 4, 4, 5, 5, 3])
    first = drawn.choice([5, 12, 103])
    if isinstance(made.shape, Transformer) and drawn.random() < 0.3 and count > 1:
        made.shape = odd_step(made.shape, drawn, first + 1)
    steps = tuple(range(first, first + count))
    fault = planted(made.shape, made.world, steps, drawn, uneven_stages=name == "megatron_uneven")
    host_us = drawn.choice([6.0, 9.0, 9.0, 14.0, 25.0])
    subset = subset_of(made, drawn.random())
    habits = habits_of(drawn)
    noise, contention = drawn.choice([0.005, 0.01, 0.02, 0.03]), drawn.choice([1.0, 1.05, 1.12])
    return Case(
        seed=seed,
        name=name,
        shape=made.shape,
        world=made.world,
        torch=torch,
        steps=steps,
        fault=fault,
        noise=noise,
        host_us=host_us,
        contention=contention,
        habits=habits,
        recorded=recorded(subset, made.shape, made.world),
        subset=subset,
        uneven=made.uneven,
    )


def habits_of(drawn: random.Random) -> Habits:
    """How a job was recorded."""
    return Habits(
        shapes=drawn.random() < 0.3,
        stack=drawn.random() < 0.15,
        host=drawn.random() > 0.04,
        packed=drawn.random() < 0.6,
        device_spans=drawn.random() < 0.7,
        names=drawn.choice(["tb", "titan", "hf", "tb"]),
    )


def subset_of(made: Drawn, luck: float) -> str:
    """Which ranks were recorded: `all`, `one per host`, or `one replica`."""
    if luck < 0.06 and made.world > PER_HOST:
        return "one per host"
    return "one replica" if luck < 0.10 and isinstance(made.shape, Megatron) else "all"


def recorded(subset: str, shape: Shape, world: int) -> tuple[int, ...]:
    """The ranks recorded."""
    if subset == "one per host":
        return tuple(range(0, world, PER_HOST))
    if subset == "one replica" and isinstance(shape, Megatron):
        dp = world // shape.tp // shape.pp
        return tuple(rank for rank in range(world) if rank // shape.tp % dp == 0)
    return tuple(range(world))


def shape_of(name: str, drawn: random.Random, world: int) -> Drawn:
    """The shape of a name."""
    if name.startswith("megatron"):
        return {"megatron": megatron, "megatron_pp": pipeline, "megatron_uneven": uneven_stages}[name](drawn)
    if name in {"fsdp2", "hsdp", "fsdp_tp", "ring_cp", "ulysses"}:
        return sharded(name, drawn)
    if name == "moe":
        return experts(drawn)
    if name == "ddp_llm":
        accumulating = transformer(drawn)
        return Drawn(accumulating, world, uneven=accumulating.documents)
    rest: dict[str, Callable[[random.Random], Shape]] = {
        "ddp_vision": vision,
        "zero3": stage3,
        "zero1": stage1,
    }
    return Drawn(rest[name](drawn), world)


def megatron(drawn: random.Random) -> Drawn:
    """Tensor, pipeline and data parallelism."""
    meshes = [(2, 2, 2), (2, 4, 2), (4, 2, 2), (2, 2, 4), (4, 4, 2), (8, 2, 2), (1, 4, 4), (1, 8, 2)]
    tp, pp, dp = drawn.choice(meshes)
    shape = Megatron(
        tp=tp,
        pp=pp,
        micro=min(8, drawn.choice([pp, 2 * pp, 2 * pp])),
        layers=drawn.choice([1, 2]),
        unit=drawn.uniform(100, 260),
        activations=4096 * drawn.choice([1024, 2048]),
        parameters=drawn.choice([4, 10]) * 10**6,
        synchronous=drawn.random() < 0.6,
        sequence=drawn.random() < 0.7,
        overlap=drawn.random() < 0.6,
        shared_state=drawn.random() < 0.7,
        recompute=drawn.random() < 0.3,
        logit=drawn.choice([0.3, 0.8]),
    )
    return Drawn(shape, tp * pp * dp)


def pipeline(drawn: random.Random) -> Drawn:
    """A pipeline with replicas alone."""
    pp, dp = drawn.choice([(4, 2), (8, 1), (4, 4), (2, 4), (8, 2)])
    shape = Megatron(
        tp=1,
        pp=pp,
        micro=min(12, drawn.choice([pp, 2 * pp])),
        layers=2,
        unit=drawn.uniform(150, 400),
        activations=4096 * 4096,
        parameters=10**7,
        synchronous=drawn.random() < 0.5,
        overlap=drawn.random() < 0.5,
        shared_state=drawn.random() < 0.5,
        recompute=drawn.random() < 0.3,
        documents=drawn.random() < 0.3,
        logit=0.5,
    )
    return Drawn(shape, pp * dp, uneven=shape.documents)


def uneven_stages(drawn: random.Random) -> Drawn:
    """A pipeline of which one stage has more layers, or slower ones."""
    tp, pp, dp = drawn.choice([(2, 4, 1), (2, 4, 2), (1, 4, 2), (1, 4, 4)])
    unit, synchronous = drawn.uniform(150, 300), drawn.random() < 0.5
    shape = Megatron(tp, pp, 2 * pp, 2, unit, 4096 * 1024, 5 * 10**6, synchronous)
    if drawn.random() < 0.5:
        layers = [2] * pp
        layers[drawn.choice([0, pp - 1, 1])] = 3
        return Drawn(replace(shape, stage_layers=tuple(layers)), tp * pp * dp)
    others = (1.0,) * (pp - 1)
    if drawn.random() < 0.5:
        return Drawn(replace(shape, stage_pace=(drawn.uniform(1.1, 1.35), *others)), tp * pp * dp)
    return Drawn(replace(shape, stage_pace=(*others, drawn.uniform(1.1, 1.4))), tp * pp * dp)


def sharded(name: str, drawn: random.Random) -> Drawn:
    """FSDP2, alone or with another axis."""
    world = drawn.choice([8, 16, 32])
    shape = Sharded(
        layers=drawn.choice([4, 6]),
        unit=drawn.uniform(120, 420),
        parameters=drawn.choice([20, 50]) * 10**6,
        activations=4096 * 2048,
        micro=drawn.choice([1, 1, 2]),
        recompute=drawn.random() < 0.4,
        log=drawn.choice([1, 5, 10]),
        clip_read=drawn.random() < 0.3,
        twin=drawn.random() < 0.3,
        documents=drawn.random() < 0.2,
    )
    if name == "hsdp":
        world = drawn.choice([16, 32])
        shape = replace(shape, replicas=world // PER_HOST)
    elif name == "fsdp_tp":
        world = drawn.choice([8, 16])
        shape = replace(shape, tp=drawn.choice([2, 4]), micro=1, layers=4)
    elif name != "fsdp2":
        shape = replace(shape, cp=drawn.choice([2, 4]), ring=name == "ring_cp", micro=1)
    return Drawn(shape, world, uneven=shape.documents)


def vision(drawn: random.Random) -> Vision:
    """A convolutional network."""
    return Vision(
        layers=drawn.choice([20, 40]),
        unit=drawn.uniform(25, 180),
        bucket=drawn.choice([2, 6]) * 10**6,
        buffers=drawn.random() < 0.5,
        read_every=drawn.choice([0, 1, 10]),
    )


def transformer(drawn: random.Random) -> Transformer:
    """A transformer that accumulates gradients."""
    return Transformer(
        layers=4,
        unit=drawn.uniform(120, 300),
        micro=drawn.choice([1, 2, 4]),
        clip=drawn.choice(["", "norm", "read"]),
        log=drawn.choice([1, 4, 10]),
        documents=drawn.random() < 0.25,
        recompute=drawn.random() < 0.3,
        read_each=drawn.random() < 0.2,
    )


def odd_step(shape: Transformer, drawn: random.Random, step: int) -> Transformer:
    """The shape with a step that evaluates or saves as well."""
    if drawn.choice(["evaluated", "saved"]) == "evaluated":
        return replace(shape, evaluated=step)
    return replace(shape, saved=step)


def stage3(drawn: random.Random) -> Stage3:
    """ZeRO-3."""
    return Stage3(
        layers=5,
        unit=drawn.uniform(150, 350),
        parameters=drawn.choice([20, 50]) * 10**6,
        micro=drawn.choice([1, 2]),
        recompute=drawn.random() < 0.4,
    )


def stage1(drawn: random.Random) -> Stage1:
    """ZeRO-1."""
    return Stage1(
        layers=4,
        unit=drawn.uniform(150, 350),
        parameters=drawn.choice([10, 30]) * 10**6,
        micro=drawn.choice([2, 4]),
        read_each=drawn.random() < 0.3,
    )


def experts(drawn: random.Random) -> Drawn:
    """A mixture of experts."""
    world = drawn.choice([8, 16])
    shape = Experts(
        ep=drawn.choice([4, 8]),
        layers=drawn.choice([3, 4]),
        unit=drawn.uniform(150, 350),
        activations=4096 * 2048,
        parameters=10**7,
        micro=drawn.choice([1, 2]),
        uneven=drawn.choice([0.1, 0.4]),
    )
    return Drawn(shape, world, uneven=True)
