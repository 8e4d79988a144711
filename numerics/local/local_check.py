"""One recorded tensor that was checked, and where it stands in the run."""

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
