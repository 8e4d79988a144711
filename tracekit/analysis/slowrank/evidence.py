"""What the rules of the decision read: every hypothesis and every gap of a case, each measured once, on demand."""

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
from tracekit.analysis.slowrank.suspects import explain_rank
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen
from tracekit.analysis.slowrank.unrecorded.unseen_replay import waited_for_unseen
from tracekit.causes import CPU_CONTENTION
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
        """The threshold, ns a step: a hypothesis that costs less is not reported."""
        return MIN_LOST_SHARE * self.case.step_ns

    @cached_property
    def slow(self) -> Hypothesis | None:
        """The ranks that work significantly longer than their peers and make the step longer."""
        return slow_ranks(self.case)

    @cached_property
    def accident(self) -> bool:
        """Whether the slow ranks cost something in one step only, in which their device was not slow throughout."""
        found, case = self.slow, self.case
        if found is None or found.rows[0] in case.found.throughout:
            return False
        return not costs_in_others(case, np.array(found.rows), found.gain)

    @cached_property
    def ranks(self) -> Hypothesis | None:
        """The slow ranks unless an accident, or the rank with the largest excess where other steps price it higher."""
        return told_by_steps(self.case, None if self.accident else self.slow)

    @cached_property
    def stage(self) -> LongStage | None:
        """The stage that works longer than the others, or has devices that are idle longer."""
        return long_stage(self.case)

    @cached_property
    def link(self) -> SlowLink | None:
        """The link with transfers that take longer than its peers' transfers."""
        return slow_link(self.case)

    @cached_property
    def prices(self) -> dict[str, float]:
        """What ranks, a stage and a link cost; a stage counts only from `STAGE_GAIN` times the price of the ranks."""
        ranks = price(self.case, self.ranks) if self.ranks else 0.0
        stage = self.stage.price.best if self.stage and not self.stage.idle else 0.0
        return {
            RANKS: ranks,
            STAGE: stage if stage >= STAGE_GAIN * ranks else 0.0,
            LINK: self.link.price.best if self.link else 0.0,
        }

    @cached_property
    def dearest(self) -> str:
        """The key of the highest of `prices`; empty where that is below the threshold."""
        first = max(self.prices, key=lambda kind: self.prices[kind])
        return first if self.prices[first] >= self.least else ""

    @cached_property
    def unseen(self) -> Unseen:
        """The time that the recorded ranks wait for ranks without a trace."""
        return waited_for_unseen(self.case)

    @cached_property
    def stalls(self) -> MovingStalls | None:
        """Host stalls that move from rank to rank, or hit all ranks in the same step."""
        return moving_stalls(self.case)

    @cached_property
    def once(self) -> OneStep | None:
        """The rank that was slow in one step only."""
        return in_one_step(self.case)

    @cached_property
    def once_in_doubt(self) -> bool:
        """Whether too few other steps were recorded to call the one slow step an accident."""
        return self.once is not None and not others_prove_health(self.case, self.once)

    @cached_property
    def only_step(self) -> Undecided | None:
        """Ranks that work longer in the only step that they recorded whole."""
        return in_the_only_step(self.case)

    @cached_property
    def undecided(self) -> Undecided | None:
        """Ranks with a significant excess and a price interval that reaches the threshold."""
        return undecided(self.case)

    @cached_property
    def tokens(self) -> float:
        """What an uneven distribution of tokens over experts costs."""
        return uneven_tokens(self.case)

    @cached_property
    def data(self) -> float:
        """What unevenly distributed data costs; nothing where the longest rank only waits for its turn on its core."""
        cost = uneven_data(self.case)
        return 0.0 if cost and _longest_takes_turns(self.case) else cost

    def is_accident(self, found: Undecided) -> bool:
        """Whether `found` names only the rank of `once`, which costs nothing in the other steps."""
        return self.once is not None and found.rows == (self.once.row,)


def _longest_takes_turns(case: Case) -> bool:
    """Whether the rank with the largest lasting excess over its peers waits for its turn on its core."""
    row = int(np.argmax(np.nan_to_num(case.found.mean)))
    return explain_rank(case, row, (row,))[0] == CPU_CONTENTION
