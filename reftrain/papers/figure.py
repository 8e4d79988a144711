"""One published figure as data: each value beside ours, how ours came about, and why the two differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reftrain.cost.hardware import Hardware

How = Literal["predicted", "fitted", "counted"]
"""`predicted` by the projection, `fitted` to this very value, `counted` on a schedule's table without hardware."""
Bound = Literal["", "≥", "≤"]


@dataclass(frozen=True)
class Line:
    """One published value and ours, in `unit`.

    `published` is None where the paper prints a plot without the number. With a `bound` the paper states only that the
    value is at least, or at most, `published`. `why` gives the reason of the difference; empty without one.
    """

    what: str
    unit: str
    published: float | None
    ours: float
    how: How = "predicted"
    bound: Bound = ""
    why: str = ""

    @property
    def deviation(self) -> float | None:
        """Ours over the published value, less 1; 0 where a bound holds, None where none is published, or 0."""
        if self.published is None or self.ours == self.published:
            return None if self.published is None else 0.0
        if self.published == 0:
            return None
        off = self.ours / self.published - 1
        holds = (self.bound == "≥" and off >= 0) or (self.bound == "≤" and off <= 0)
        return 0.0 if holds else off


@dataclass(frozen=True)
class Figure:
    """One table or figure of a paper: `lines` computes it on a machine, or on the `machine` that the paper names."""

    name: str
    source: str
    title: str
    lines: Callable[[Hardware], Sequence[Line]]
    machine: str = "h100"


@dataclass(frozen=True)
class Missing:
    """A figure that is not reproduced, and the reason."""

    name: str
    source: str
    title: str
    why: str
