"""One recorded tensor that was checked and where it stands in the run, and what is open though nothing is wrong."""

from dataclasses import dataclass

from numerics.local.forced_pass import Check


@dataclass(frozen=True)
class LocalCheck:
    """One recorded tensor that was checked, and where it stands in the run.

    `place` is the data-parallel index and micro-batch, None after the reduction. `rows` are the rows of a collective's
    outputs, `ranks` those that hold what was judged, where copies of it are unequal.
    """

    step: int
    place: tuple[int, int] | None
    check: Check
    rows: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Doubt:
    """What a run does that is meant or a bug, which no record tells: a sentence, and what would settle it."""

    sentence: str
    settled: str
