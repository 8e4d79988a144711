"""Seeds from 2000: twelve situations that are easily got wrong, each with what varies."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.shapes.broad import RECENT, broad
from tests.shapes.broad import odd_step as broad_odd_step
from tests.shapes.case import Case, Shape
from tests.shapes.ddp import Transformer, Vision
from tests.shapes.experts import Experts
from tests.shapes.fault import Fault, Part
from tests.shapes.fsdp import Sharded
from tests.shapes.interleaved import Interleaved
from tests.shapes.megatron import Megatron
from tests.shapes.network import PER_HOST
from tests.shapes.zero import Stage3

FIRST = 2000


@dataclass
class Situation:
    """A shape with its fault."""

    name: str
    shape: Shape
    world: int
    fault: Fault | None = None
    host_us: float | None = None
    uneven: bool = False

    def slow(
        self,
        drawn: random.Random,
        kind: str,
        amounts: list[float],
        what: str = "gpu",
        steps: Callable[[], tuple[int, ...] | None] = lambda: None,
    ) -> "Situation":
        """This with a fault of one rank; amount, steps and rank are drawn in this order."""
        amount = amounts[0] if len(amounts) == 1 else drawn.choice(amounts)
        when = steps()
        self.fault = Fault(kind, (Part(what, (drawn.randrange(self.world),), amount, when),))
        return self


def targets(seed: int) -> Case:
    """The case of a seed; its habits are those of a seed of `broad`."""
    base = broad(seed % 97 + 100)
    drawn = random.Random(seed * 131 + 7)
    torch = drawn.choice([(2, 4), *RECENT, (2, 12)])
    steps = tuple(range(12, 12 + drawn.choice([3, 4, 5])))
    noise, host_us = drawn.choice([0.01, 0.02]), drawn.choice([6.0, 9.0, 14.0])
    made = SITUATIONS[seed % len(SITUATIONS)](drawn, drawn.uniform(150, 350))
    return replace(
        base,
        seed=seed,
        name=made.name,
        shape=made.shape,
        world=made.world,
        torch=torch,
        steps=steps,
        fault=made.fault,
        noise=noise,
        host_us=made.host_us or host_us,
        habits=replace(base.habits, host=True),
        recorded=tuple(range(made.world)),
        subset="all",
        uneven=made.uneven,
    )


def pipeline_across(drawn: random.Random, unit: float) -> Situation:
    """A pipeline across hosts, nothing wrong."""
    tp, pp, dp = drawn.choice([(2, 4, 2), (1, 4, 4), (4, 4, 1), (1, 8, 2)])
    shape = Megatron(
        tp=tp,
        pp=pp,
        micro=min(8, drawn.choice([pp, 2 * pp])),
        layers=2,
        unit=unit,
        activations=4096 * drawn.choice([1024, 2048, 4096]),
        parameters=5 * 10**6,
        synchronous=drawn.random() < 0.5,
        shared_state=drawn.random() < 0.5,
        logit=0.3,
    )
    return Situation("pipeline_across", shape, tp * pp * dp)


def slow_across(drawn: random.Random, unit: float) -> Situation:
    """The same with a slow GPU."""
    return pipeline_across(drawn, unit).slow(drawn, "slow_gpu", [1.1, 1.2])


def small_fsdp(unit: float, parameters: int = 2 * 10**7) -> Sharded:
    """FSDP2 with four layers and short sequences."""
    return Sharded(layers=4, unit=unit, parameters=parameters, activations=4096 * 1024)


def ring(drawn: random.Random, unit: float) -> Situation:
    """Ring attention across hosts."""
    world = drawn.choice([8, 16])
    shape = replace(
        small_fsdp(unit),
        ring=True,
        cp=drawn.choice([2, 4, 8]),
        log=drawn.choice([1, 5]),
        documents=drawn.random() < 0.3,
    )
    made = Situation("ring", shape, world, uneven=shape.documents)
    return made.slow(drawn, "slow_gpu", [1.1, 1.3]) if drawn.random() < 0.7 else made


def odd_step(drawn: random.Random, unit: float) -> Situation:
    """A step that evaluates or saves as well."""
    shape = Transformer(4, unit, drawn.choice([1, 2]), "norm", 1, documents=drawn.random() < 0.4)
    shape = broad_odd_step(shape, drawn, 13)
    made = Situation("odd_step", shape, 8, uneven=shape.documents)
    return made.slow(drawn, "slow_gpu", [1.2]) if drawn.random() < 0.3 else made


def tokens(drawn: random.Random, unit: float) -> Situation:
    """Uneven experts: one of them hot, or a slow GPU, or neither."""
    shape = Experts(8, 4, unit, 4096 * 2048, 10**7, 1, drawn.choice([0.1, 0.3]))
    if drawn.random() < 0.3:
        return Situation("tokens", replace(shape, hot=drawn.randrange(8)), 16, uneven=True)
    made = Situation("tokens", shape, 16, uneven=True)
    return made.slow(drawn, "slow_gpu", [1.15, 1.3]) if drawn.random() < 0.7 else made


def host_bound(drawn: random.Random, _: float) -> Situation:
    """Small kernels, one host slower than the others."""
    shape = replace(small_fsdp(drawn.uniform(60, 120)), tp=drawn.choice([1, 2]))
    made = Situation("host_bound", shape, 16, host_us=drawn.choice([14.0, 25.0]))
    return made.slow(drawn, "slow_host", [1.3, 1.6, 2.0], "host")


def replicas_card(drawn: random.Random, unit: float) -> Situation:
    """HSDP with a slow network card."""
    made = Situation("replicas_card", replace(small_fsdp(unit, 3 * 10**7), replicas=4), 32)
    return made.slow(drawn, "slow_nic", [2.0, 4.0], "nic")


def late_loader(drawn: random.Random, _: float) -> Situation:
    """A convolutional network that waits for one rank's batches, always or once."""
    world, unit = drawn.choice([8, 16]), drawn.uniform(60, 150)
    shape = Vision(30, unit, 4 * 10**6, drawn.random() < 0.6, drawn.choice([0, 1]))
    made = Situation("late_loader", shape, world).slow(drawn, "late_data", [8000.0, 20000.0], "data")
    if drawn.random() < 0.3:
        made.slow(drawn, "late_data", [25000.0], "data", lambda: (13,))
    return made


def documents(drawn: random.Random, unit: float) -> Situation:
    """Documents of uneven length, often with a slow GPU."""
    shape = replace(small_fsdp(unit), micro=drawn.choice([1, 2]), documents=True)
    made = Situation("documents", shape, 16, uneven=True)
    return made.slow(drawn, "slow_gpu", [1.1, 1.25]) if drawn.random() < 0.6 else made


def pauses(drawn: random.Random, unit: float) -> Situation:
    """Pauses of a host in a pipeline of virtual stages, always or in one step."""
    made = Situation("pauses", Interleaved(2, 1, 4, 2, 8, 1, unit, 5 * 10**6), 16)
    once = lambda: None if drawn.random() < 0.5 else (13,)  # noqa: E731
    return made.slow(drawn, "pauses", [3000.0, 8000.0], "pause", once)


def slow_node(drawn: random.Random, unit: float) -> Situation:
    """All GPUs of a host a little slow."""
    shape = replace(small_fsdp(unit, 3 * 10**7), replicas=drawn.choice([1, 4]))
    first = PER_HOST * drawn.randrange(4)
    part = Part("gpu", tuple(range(first, first + PER_HOST)), drawn.choice([1.05, 1.1]))
    return Situation("slow_node", shape, 32, Fault("slow_node", (part,)))


def two_slow(drawn: random.Random, unit: float) -> Situation:
    """Two GPUs as slow as each other under ZeRO-3."""
    first = drawn.randrange(16)
    part = Part("gpu", (first, (first + 5) % 16), 1.2)
    return Situation("two_slow", Stage3(4, unit, 2 * 10**7, 1), 16, Fault("two_gpus", (part,)))


SITUATIONS = (
    *(pipeline_across, slow_across, ring, odd_step, tokens, host_bound),
    *(replicas_card, late_loader, documents, pauses, slow_node, two_slow),
)
"""In the order in which seeds go through them."""
