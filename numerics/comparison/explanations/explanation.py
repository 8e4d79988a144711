"""An explanation of a divergence, and the question that each rule of `rules.explain` answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from numerics.comparison.first_divergence import Found
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.thresholds.report import RANKS_TOLD


@dataclass(frozen=True)
class Explanation:
    """A relation in words; `axis` where it names one; `dtype` where the value was rounded to that format.

    `rounding` says that the difference is of the size of roundings, and nothing more is known. `sizes` are the numbers
    of the run that a factor may be.
    """

    text: str
    axis: str | None = None
    dtype: str | None = None
    rounding: bool = False
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """The wrong tensor to relate to the right one: `rows` of the run, which `pairs` joins with the replay's.

    `sizes` names the numbers of the run that a factor may equal: sizes of axes, micro-batches, valid tokens.
    """

    pairs: RowPairs
    found: Found
    rows: list[int]
    sizes: Mapping[str, int]

    @property
    def likely(self) -> str | None:
        """The axis to name where several sizes fit: that of the collective before the divergence."""
        return self.found.near_axis


def ranks_in_words(question: Question, texts: list[str]) -> str:
    """Return one text for each row as "rank 0: …; rank 1: …"; only the first `RANKS_TOLD` are named."""
    run = question.pairs.run
    shown = list(zip(question.rows, texts, strict=True))[:RANKS_TOLD]
    return "; ".join(f"rank {int(run['rank'][row])}: {text}" for row, text in shown)


def agreed_axis(axes: set[str | None]) -> str | None:
    """Return the axis that all rows agree on, None where they do not."""
    return next(iter(axes)) if len(axes) == 1 else None
