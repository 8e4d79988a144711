"""What an optimiser steps for a parameter: the parameter, a master of it, or a stretch of a flat master."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch

from numerics.record.batch_place import Layout
from numerics.record.placement import Placed
from numerics.schema import Box


@dataclass(frozen=True)
class Stretch:
    """Where a parameter lies in a flat tensor: `count` elements from `at` on are the parameter's from `first` on."""

    at: int
    first: int
    count: int


@dataclass(frozen=True)
class Stepped:
    """A tensor that an optimiser steps, and the stretch of it that is a parameter's; None: all of it."""

    tensor: torch.Tensor
    stretch: Stretch | None = None

    def place(self, value: torch.Tensor, parameter: torch.Tensor, layout: Layout) -> Placed:
        """Return the place of what belongs to the parameter in a value of the tensor: its own, its gradient, a state.

        A state of one number counts for every parameter of the tensor.
        """
        if self.stretch is None or not value.dim():
            return layout.shared(value)
        at, count = self.stretch.at, self.stretch.count
        return layout.part(
            value.detach()[at : at + count], parameter, boxes_of_stretch(parameter.shape, self.stretch)
        )


class Masters:
    """The tensors that an optimiser steps in the place of a model's weights; empty where it steps the weights."""

    def __init__(self, by: dict[int, Stepped] | None = None) -> None:
        self._by = by or {}

    def __bool__(self) -> bool:
        return bool(self._by)

    def of(self, parameter: torch.Tensor) -> Stepped | None:
        """Return what this rank's optimiser steps for a parameter; None where that is another rank's."""
        own = self._by.get(id(parameter))
        flat = any(one.stretch is not None for one in self._by.values())
        return Stepped(parameter) if own is None and not flat else own


NONE: Final = Masters()
"""The masters of a model that has none."""


def direction(placed: Sequence[tuple[int, int | None]]) -> int:
    """Return 1 or -1 where the tensors of each group follow one another up or down a row; 0 where they show neither.

    `placed` gives the group of each tensor and its place in the row; None for one that is not known.
    """
    known = [(group, at) for group, at in placed if at is not None]
    ways = {1 if behind > at else -1 for (group, at), (other, behind) in pairwise(known) if group == other}
    return ways.pop() if len(ways) == 1 else 0


def boxes_of_stretch(shape: tuple[int, ...], stretch: Stretch) -> tuple[Box, ...]:
    """Return the boxes that a stretch of a tensor's elements covers, in the order of the elements."""
    boxes, first, end = [], stretch.first, stretch.first + stretch.count
    while first < end:
        offsets, within, size, rest = [], 1, [1] * len(shape), first
        for extent in reversed(shape):
            offsets.append(rest % extent)
            rest //= extent
        offsets.reverse()
        # the widest box that begins here: whole inner dimensions, and as many rows of one outer dimension as are left
        for dim in reversed(range(len(shape))):
            rows = min(shape[dim] - offsets[dim], (end - first) // within)
            size[dim] = rows
            within *= rows
            if rows < shape[dim]:
                break
        boxes.append(Box(tuple(offsets), tuple(size)))
        first += within
    return tuple(boxes)
