"""Seeds from 4000: the jobs a thousand below, of which some ranks were recorded, or only what the GPU did."""

import random
from dataclasses import replace

from tests.shapes.case import Case
from tests.shapes.newer import newer

FIRST = 4000
LOWER = 1000
UNSEEN = 0.15
"""The part of jobs whose hosts were not recorded."""
SUBSETS = ("one per host", "one host", "half", "few", "without the culprit", "without one", "all")


def partly(seed: int) -> Case:
    """The case of a seed."""
    case = newer(seed - LOWER)
    drawn = random.Random(seed * 524287 + 3)
    subset, unseen = drawn.choice(SUBSETS), drawn.random() < UNSEEN
    return replace(
        case,
        seed=seed,
        recorded=some_of(case, subset, drawn),
        subset=subset,
        habits=replace(case.habits, host=not unseen),
    )


def some_of(case: Case, subset: str, drawn: random.Random) -> tuple[int, ...]:
    """The ranks recorded."""
    ranks = range(case.world)
    chosen = {
        "one per host": ranks[:: case.per_host],
        "one host": ranks[: case.per_host],
        "half": drawn.sample(ranks, case.world // 2),
        "few": drawn.sample(ranks, drawn.choice([2, 3])),
        "without the culprit": [rank for rank in ranks if rank not in case.culprits],
        "without one": sorted(set(ranks) - {drawn.randrange(case.world)}),
        "all": ranks,
    }
    return tuple(sorted(chosen[subset])) or tuple(ranks)
