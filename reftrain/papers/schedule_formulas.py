"""The papers' formulas of bubbles and memory, and our closed forms where our tables deviate.

Source: "Chimera" (SC'21), table 2, as functions of p and m at f = 1, b = 2, p2p = 0. docs/schedules.md derives the
closed forms. The schemes themselves know none of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

Span = tuple[int, int]
"""Least and greatest over the ranks."""
Formula = Callable[[int, int], Fraction]
Spread = Callable[[int, int], Span]


def flushed(p: int, m: int) -> Fraction:
    """(p-1)/(m+p-1): GPipe and 1F1B."""
    return Fraction(p - 1, m + p - 1)


def gems_paper(p: int, m: int) -> Fraction:
    """(p-1)/(p+1/2), whatever m."""
    del m
    return Fraction(2 * (p - 1), 2 * p + 1)


def gems_derived(p: int, m: int) -> Fraction:
    """1 - 3m/(m(2p+1) + p-1): the first forward's way down the pipeline comes before the periods."""
    return 1 - Fraction(3 * m, m * (2 * p + 1) + p - 1)


def with_middle(p: int, m: int) -> Fraction:
    """(p-2)/(3m/2+p-2): Chimera with bubbles in the middle."""
    return Fraction(2 * (p - 2), 3 * m + 2 * (p - 2))


def without_middle(p: int, m: int) -> Fraction:
    """(p-2)/(2m+p-2): Chimera with forward and backward slots of equal length."""
    return Fraction(p - 2, 2 * m + p - 2)


def direct_derived(p: int, m: int) -> Fraction:
    """Each unit of p after the first leaves p-2 slots of f more in its middle: idle (m/p+1)(p-2)."""
    idle = (m // p + 1) * (p - 2)
    return Fraction(idle, 3 * m + idle)


def halving_derived(p: int, m: int) -> Fraction:
    """(p/2-1)(f+b) idle at m a multiple of 2p, however many units; at m = p the base unit."""
    return with_middle(p, m) if m == p else without_middle(p, m)


def doubling_derived(p: int, m: int) -> Fraction:
    """Idle (p/2-1)(f+3f), and p-2 more for every unit of 2p after the first: a pair's 2f against 3f."""
    if m == p:
        return with_middle(p, m)
    idle = 2 * (p - 2) + (m // (2 * p) - 1) * (p - 2)
    return Fraction(idle, 4 * m + idle)


def zero(p: int, m: int) -> Fraction:
    """No bubble over a steady window."""
    del p, m
    return Fraction(0)


def one(p: int, m: int) -> Span:
    """One on every rank."""
    del p, m
    return 1, 1


def two(p: int, m: int) -> Span:
    """Two on every rank."""
    del p, m
    return 2, 2


def up_to_p(p: int, m: int) -> Span:
    """One on the last rank, p on the first."""
    del m
    return 1, p


def all_m(p: int, m: int) -> Span:
    """Every micro-batch on every rank."""
    del p
    return m, m


def half_to_p(p: int, m: int) -> Span:
    """p/2+1 on the outer ranks, p on the middle ones."""
    del m
    return p // 2 + 1, p


def doubled(p: int, m: int) -> Span:
    """Pairs of forwards: p plus half as many more pairs' on the outer ranks, 2p in the middle."""
    return half_to_p(p, m) if m == p else (p + p // 2 + 1, 2 * p)


def recomputed(p: int, m: int) -> Span:
    """With recomputation only the micro-batch at work has its activations."""
    return half_to_p(p, m) if m == p else (1, 1)


@dataclass(frozen=True)
class Published:
    """One row of the table: bubble by the paper and by our closed form, weights and activations by the paper."""

    name: str
    paper: Formula
    derived: Formula
    weights: Spread
    activations: Spread
    concatenation: str = "direct"

    @property
    def label(self) -> str:
        """Name with Chimera's concatenation."""
        return f"chimera {self.concatenation}" if self.name == "chimera" else self.name


PUBLISHED = (
    Published("pipedream", zero, zero, up_to_p, up_to_p),
    Published("pipedream_2bw", zero, zero, two, up_to_p),
    Published("gpipe", flushed, flushed, one, all_m),
    Published("gems", gems_paper, gems_derived, two, one),
    Published("1f1b", flushed, flushed, one, up_to_p),
    Published("chimera", with_middle, direct_derived, two, half_to_p),
    Published("chimera", without_middle, doubling_derived, two, recomputed, "doubling"),
    Published("chimera", without_middle, halving_derived, two, doubled, "halving"),
)
