"""What the rules of the decision read of a case: every hypothesis and every gap, measured once and only when asked."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import (
    Undecided,
    in_the_only_step,
    told_by_steps,
    undecided,
)
from tracekit.analysis.slowrank.gaps.recurrence import (
    OneStep,
    costs_in_others,
    in_one_step,
    others_prove_health,
)
from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, price, slow_ranks
from tracekit.analysis.slowrank.hypotheses.data_imbalance import uneven_data, uneven_tokens
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage, long_stage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import MovingStalls, moving_stalls
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink, slow_link
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen
from tracekit.analysis.slowrank.unrecorded.unseen_replay import waited_for_unseen
from tracekit.thresholds.slowrank import MIN_LOST_SHARE, STAGE_GAIN

RANKS: Final = "ranks"
STAGE: Final = "stage"
LINK: Final = "link"


@dataclass(frozen=True)
class Evidence:
    """The hypotheses about a case with their prices, and the gaps of its evidence; times in ns a step."""

    case: Case

    @cached_property
    def least(self) -> float:
        """The price from which a hypothesis is worth an answer."""
        return MIN_LOST_SHARE * self.case.step_ns

    @cached_property
    def slow(self) -> Hypothesis | None:
        """Ranks that work significantly longer than their peers, and for which the step waits."""
        return slow_ranks(self.case)

    @cached_property
    def accident(self) -> bool:
        """Whether the slow ranks cost something in one step alone, and nothing fills that step."""
        found, case = self.slow, self.case
        if found is None or found.rows[0] in case.found.throughout:
            return False
        return not costs_in_others(case, np.array(found.rows), found.gain)

    @cached_property
    def ranks(self) -> Hypothesis | None:
        """The slow ranks that no accident explains, or the one that other steps price higher."""
        return told_by_steps(self.case, None if self.accident else self.slow)

    @cached_property
    def stage(self) -> LongStage | None:
        """The stage that works longer than the others, or stands still."""
        return long_stage(self.case)

    @cached_property
    def link(self) -> SlowLink | None:
        """The link whose transfers take longer than its peers'."""
        return slow_link(self.case)

    @cached_property
    def prices(self) -> dict[str, float]:
        """What ranks, a stage and a link cost; a stage costs nothing where one slow rank explains as much."""
        ranks = price(self.case, self.ranks) if self.ranks else 0.0
        stage = self.stage.gain if self.stage and not self.stage.idle else 0.0
        return {
            RANKS: ranks,
            STAGE: stage if stage >= STAGE_GAIN * ranks else 0.0,
            LINK: self.link.gain if self.link else 0.0,
        }

    @cached_property
    def dearest(self) -> str:
        """Which of `prices` is the highest; empty where none is worth an answer."""
        first = max(self.prices, key=lambda kind: self.prices[kind])
        return first if self.prices[first] >= self.least else ""

    @cached_property
    def unseen(self) -> Unseen:
        """What the recorded ranks wait for those without a trace."""
        return waited_for_unseen(self.case)

    @cached_property
    def stalls(self) -> MovingStalls | None:
        """Stalls that move from rank to rank, or strike all ranks at once."""
        return moving_stalls(self.case)

    @cached_property
    def once(self) -> OneStep | None:
        """The rank that was slow in one step alone."""
        return in_one_step(self.case)

    @cached_property
    def once_in_doubt(self) -> bool:
        """Whether too few other steps tell that its one slow step was an accident."""
        return self.once is not None and not others_prove_health(self.case, self.once)

    @cached_property
    def only_step(self) -> Undecided | None:
        """Ranks that work longer in the only step that they recorded whole."""
        return in_the_only_step(self.case)

    @cached_property
    def undecided(self) -> Undecided | None:
        """Ranks with a significant excess whose price is an interval that reaches the threshold."""
        return undecided(self.case)

    @cached_property
    def tokens(self) -> float:
        """What tokens that are dealt unevenly to experts cost."""
        return uneven_tokens(self.case)

    @cached_property
    def data(self) -> float:
        """What work that follows the data costs."""
        return uneven_data(self.case)

    def is_accident(self, found: Undecided) -> bool:
        """Whether `found` is the rank of `once` alone, which costs nothing in the other steps."""
        return self.once is not None and found.rows == (self.once.row,)
