"""Seeds from 3000: frameworks' newer and other ways, faults that come and go, and what slows jobs without a culprit."""

import random
from dataclasses import replace

from tests.shapes.broad import RECENT, habits_of
from tests.shapes.case import Case
from tests.shapes.newer_faults import background, chosen
from tests.shapes.newer_shapes import SHAPES

FIRST = 3000


def newer(seed: int) -> Case:
    """The case of a seed."""
    drawn = random.Random(seed * 7368787 + 11)
    name = list(SHAPES)[seed % len(SHAPES)]
    made = SHAPES[name](drawn, drawn.uniform(140, 380))
    torch = drawn.choice([(2, 4), *RECENT, *RECENT, (2, 12), (2, 13)])
    first = drawn.choice([3, 12, 103])
    steps = tuple(range(first, first + drawn.choice([3, 4, 5])))
    cycles: tuple[tuple[int, ...], ...] = ()
    if made.repeated:
        cycles = (steps[:2], tuple(range(first + 4, first + 6)))
        steps = tuple(range(first, first + 6))
    size = made.world, made.per_host, made.loading or made.world
    fault = chosen(made.kinds, size, steps, drawn)
    around = made.background or background(made.world, steps, drawn)
    habits = habits_of(drawn)
    if made.repeated:
        habits = replace(habits, names="tb")
    return Case(
        seed=seed,
        name=name,
        shape=made.shape,
        world=made.world,
        torch=torch,
        steps=steps,
        fault=fault,
        noise=drawn.choice([0.005, 0.01, 0.02]),
        host_us=drawn.choice([6.0, 9.0, 9.0, 14.0]),
        contention=drawn.choice([1.0, 1.05, 1.12]),
        habits=replace(habits, host=True, amd=made.amd),
        recorded=tuple(range(made.world)),
        uneven=made.uneven,
        per_host=made.per_host,
        serial=True,
        background=around,
        cycles=cycles,
    )
