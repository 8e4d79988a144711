"""One checked tensor and its place in the run, and doubts that remain although nothing is wrong."""

from dataclasses import dataclass

from numerics.local.forced_pass import Check


@dataclass(frozen=True)
class LocalCheck:
    """One recorded tensor that was checked, and its place in the run.

    `place` is the data-parallel index and micro-batch, None after the reduction. `rows` are the rows of a collective's
    outputs, `ranks` the ranks that hold the judged copy, if copies are unequal. `axis` is named by the relation.
    """

    step: int
    place: tuple[int, int] | None
    check: Check
    rows: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    axis: str | None = None


@dataclass(frozen=True)
class Doubt:
    """Something that may be intended or a bug, which the records do not show: a sentence, and what would settle it.

    `of_loss` says that it is about what positions count in the loss, which a baseline may have alike.
    """

    sentence: str
    settled: str
    of_loss: bool = False
