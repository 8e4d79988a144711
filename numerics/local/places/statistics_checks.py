"""Judges places of a model that computes over its batch: each by itself, or all data-parallel ranks as one batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from numerics.local.judgement import Standing
from numerics.local.places.batch_statistics import BatchStatistics, batch_statistics
from numerics.local.places.place_pass import PlacePass, explained_by_positions, judged_place
from numerics.local.places.place_walk import Tensors
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.recorded import ALL
from tracekit.errors import InputError

Passes = Mapping[Place, PlacePass]
"""What was judged, by place."""


@dataclass
class StatisticsChecks:
    """What the model computes over its batch, asked once, at the first step; `loss` is the given loss function."""

    loss: Callable[..., torch.Tensor] | None = None
    found: BatchStatistics = field(default_factory=BatchStatistics)
    asked: bool = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence where ranks shared their statistics."""
        if not self.found.shared:
            return ()
        return (
            f"batch statistics: {self.found.words} computes over the sequences of all data-parallel ranks",
        )

    def judged(self, state: RecordedStep, held: Tensors, each: Passes) -> Passes:
        """Return the passes of a step's places, or of its micro-batches over all ranks where these shared statistics.

        Where outputs are wrong for another reason that is known, the first says so.
        """
        first = not self.asked
        if first:
            self.asked = True
            self.found = batch_statistics(state, next(iter(each)), held, self.loss)
        if not any(_wrong(one) for one in each.values()):
            return each
        several = len({dp for dp, _ in each}) > 1
        if several and self.found.words and (together := _together(state, held, each)):
            self.found = replace(self.found, shared=True)
            return together
        wrong = next(place for place, one in each.items() if _wrong(one))
        return {**each, wrong: explained_by_positions(state, wrong, held, each[wrong])} if first else each


def _together(state: RecordedStep, held: Tensors, each: Passes) -> Passes:
    """Return the passes of each micro-batch over all data-parallel ranks; none where one is wrong, or cannot run."""
    found: dict[Place, PlacePass] = {}
    for number in sorted({number for _, number in each}):
        try:
            found[ALL, number] = judged_place(state, (ALL, number), held, asked=False)
        except InputError:
            return {}
        if _wrong(found[ALL, number]):
            return {}
    return found


def _wrong(one: PlacePass) -> bool:
    return any(check.judged.standing == Standing.BEYOND for check in one.checks)
