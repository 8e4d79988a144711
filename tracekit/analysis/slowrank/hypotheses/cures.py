"""What a step takes after the cure of slow ranks, a slow link and a long stage, alone or together.

A fault hidden behind another costs nothing now and is next in line: it is priced after the cure of the other.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.candidates import bounded, typical_without, usual_of
from tracekit.analysis.slowrank.hypotheses.link_cure import without_link
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink
from tracekit.analysis.slowrank.price import Price, link_doubt_ns, rank_doubt_ns, stage_doubt_ns


class Kind(Enum):
    """What is cured."""

    RANKS = "ranks"
    LINK = "link"
    STAGE = "stage"


@dataclass(frozen=True)
class Faults:
    """Faults of one case (rows of Steps for ranks): each of them, or some together, can be cured in the model."""

    case: Case
    rows: tuple[int, ...] = ()
    link: SlowLink | None = None
    stage: LongStage | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of faults that there are; none for an operation table."""
        stage = self.stage is not None and self.stage.cured is not None
        there = {Kind.RANKS: bool(self.rows), Kind.LINK: self.link is not None, Kind.STAGE: stage}
        return tuple(kind for kind in there if there[kind]) if self.case.timeline is not None else ()

    def step_ns(self, cured: Collection[Kind]) -> float:
        """Return the mean step without the faults `cured`, ns."""
        case, model = self.case, self.case.timeline
        if model is None:
            return self.case.step_ns
        own, usual, rows = case.steps.own, None, np.array(self.rows, np.int64)
        if Kind.RANKS in cured and len(rows):
            own, usual = typical_without(case, rows), usual_of(case, rows)
        if Kind.STAGE in cured and self.stage is not None and self.stage.cured is not None:
            own = own * np.where(np.isfinite(case.steps.own), self.stage.cured / case.steps.own, 1.0)
            shorter = set(self.stage.rows) - set(self.rows)  # by their work, not by what waits beside it
            usual = usual and {place: parts for place, parts in usual.items() if place[1] not in shorter}
        if Kind.LINK in cured and self.link is not None:
            model = without_link(case, model, self.link.delays)
        return model.step_ns(own, usual=usual)

    def price(self, kind: Kind, after: Collection[Kind] = ()) -> Price:
        """Return what the cure of `kind` saves after the cures `after`, ns a step, widened by its own doubt."""
        saved = max(self.step_ns(after) - self.step_ns((*after, kind)), 0.0)
        rows = np.array(self.rows, np.int64)
        if kind == Kind.RANKS:
            saved, doubt = bounded(self.case, rows, saved), rank_doubt_ns(self.case, rows)
        elif kind == Kind.LINK and self.link is not None:
            doubt = link_doubt_ns(self.case, saved, self.link.z)
        else:
            doubt = stage_doubt_ns(self.case, np.array(self.stage.rows if self.stage else (), np.int64))
        return Price(saved, saved, saved).widened(doubt)
