"""What the rules of the decision read: every hypothesis about a case, each measured once, on demand; and what a gap is.

A fault hidden behind another costs nothing now and is next in line: `Faults` price it after the cure of the other.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

import numpy as np

from tracekit.analysis.slowrank.gaps.evidence_gaps import Undecided, in_the_only_step, undecided
from tracekit.analysis.slowrank.gaps.lone_transfers import LoneTransfers, could_hide, lone_transfers
from tracekit.analysis.slowrank.gaps.recurrence import costs_in_others, in_one_step, others_prove_health
from tracekit.analysis.slowrank.hypotheses.candidates import Hypothesis, price, slow_ranks, those_that_cost
from tracekit.analysis.slowrank.hypotheses.data_imbalance import uneven_data, uneven_tokens
from tracekit.analysis.slowrank.hypotheses.link_cure import not_awaiting, without_link
from tracekit.analysis.slowrank.hypotheses.loading_role import Role, role_of_stage, role_of_tensor_groups
from tracekit.analysis.slowrank.hypotheses.lone_rank import LoneFault, lone_accident, lone_faults
from tracekit.analysis.slowrank.hypotheses.long_stage import LongStage, long_stage
from tracekit.analysis.slowrank.hypotheses.moving_stalls import moving_stalls, moving_work
from tracekit.analysis.slowrank.hypotheses.slow_link import SlowLink, slow_link
from tracekit.analysis.slowrank.price import Price, link_doubt_ns, rank_doubt_ns, stage_doubt_ns
from tracekit.analysis.slowrank.suspects import longest_takes_turns
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen, waited_for_unseen
from tracekit.case.case import Case
from tracekit.case.cures import typical_without, usual_of, with_hosts
from tracekit.causes import CAUSES
from tracekit.findings import Suspect
from tracekit.step_graph.replay import StepModel
from tracekit.thresholds.slowrank import USUAL_VARIATION


class Kind(Enum):
    """What is cured."""

    RANKS = "ranks"
    LINK = "link"
    STAGE = "stage"
    ROLE = "role"


@dataclass(frozen=True)
class Gap:
    """What the evidence does not show, as a clause, and the most that it could hide, ns a step; with what would decide.

    candidates: the ranks that it may hide as slow. decides: whether it leaves a job open, or is only listed.
    """

    what: str
    could_hide: float
    to_decide: str
    candidates: tuple[Suspect, ...] = ()
    decides: bool = True


_Measured = TypeVar("_Measured")


class _OfCase(cached_property[_Measured]):
    """A property of `Evidence` that is what `measure` finds about its case."""

    def __init__(self, measure: Callable[[Case], _Measured]) -> None:
        super().__init__(lambda evidence: self.measure(evidence.case))
        self.measure = measure


@dataclass(frozen=True)
class Evidence:
    """The hypotheses about a case with their prices, and the gaps of its evidence; times in ns a step."""

    case: Case

    @cached_property
    def least(self) -> float:
        """The threshold, ns a step: a hypothesis that costs less is not reported."""
        return self.case.threshold_ns

    slow = _OfCase(slow_ranks)
    """The ranks that work significantly longer than their peers and make the step longer."""

    @cached_property
    def accident(self) -> bool:
        """Whether the slow ranks cost something in one step only, in which their device was not slow throughout."""
        found, case = self.slow, self.case
        if found is None or found.rows[0] in case.found.throughout:
            return False
        return not costs_in_others(case, np.array(found.rows), found.gain)

    @cached_property
    def ranks(self) -> Hypothesis | None:
        """The slow ranks unless an accident."""
        return None if self.accident else self.slow

    @cached_property
    def stage(self) -> LongStage | None:
        """The stage that works longer than the others, or has devices that are idle longer, not by its role."""
        return self._any_stage if self._role_of_stage is None else None

    _any_stage = _OfCase(long_stage)
    """The stage that works or is idle longer, also by its role."""

    @cached_property
    def _role_of_stage(self) -> Role | None:
        """The role that explains `_any_stage`."""
        stage = self._any_stage
        if stage is None or set(stage.loaders) != set(stage.rows):
            return None
        return role_of_stage(self.case, stage.rows, stage.over, stage.price)

    @cached_property
    def lone(self) -> LoneFault | None:
        """The slow device or host of a rank that is alone on its stage."""
        return next((found for found, role in self._lone if role is None), None)

    @cached_property
    def _lone(self) -> list[tuple[LoneFault, Role | None]]:
        """What each rank that is alone on its stage does longer, the dearest first, with the role that explains it."""
        return [(found, self._role_of_lone(found)) for found in lone_faults(self.case)]

    def _role_of_lone(self, found: LoneFault) -> Role | None:
        """The role of a rank that is alone on its stage and loads data in every step; None where it is a fault."""
        if not CAUSES[found.cause].shown_by("loader") or len(found.struck) < len(self.case.steps.numbers):
            return None
        return role_of_stage(self.case, (found.row,), self.case.steps.mean(found.over), found.price)

    @cached_property
    def role(self) -> Role | None:
        """The ranks that load data for others by design, if that costs something: the dearest such role."""
        lone = [role for _, role in self._lone]
        roles = [role for role in (role_of_tensor_groups(self.case), self._role_of_stage, *lone) if role]
        return max(roles, key=lambda role: role.price.best, default=None)

    lone_once = _OfCase(lone_accident)
    """The late host, in one of few steps, of a rank that is alone on its stage."""

    any_link = _OfCase(slow_link)
    """The link with transfers that take longer than its peers' transfers, however little it costs."""

    @cached_property
    def link(self) -> SlowLink | None:
        """The link with transfers that take longer than its peers' transfers, if it may cost the threshold."""
        return self.any_link if self.any_link and self.any_link.may_cost(self.least) else None

    @cached_property
    def behind_link(self) -> Hypothesis | None:
        """The slow ranks that cost something once the slow link is cured, priced after that cure."""
        link, model, rows = self.any_link, self.case.timeline, self.case.significant(self.case.suspect_ns)
        if link is None or link.doubted or model is None or not len(rows):
            return None
        return those_that_cost(self.case, rows, without_link(self.case, model, link.delays))

    @cached_property
    def prices(self) -> dict[Kind, float]:
        """What ranks, a stage, a link and a role cost; a stage not if it costs no more than slow ranks do.

        Prices within the usual variation are equal: if both explain one cost, the ranks are blamed. A rank alone on its
        stage counts only if its price is proven: its stage may cost the same for certain.
        """
        lone = self.lone if self.lone and self.lone.price.low >= self.least else None
        ranks = max(price(self.case, self.ranks) if self.ranks else 0.0, lone.gain if lone else 0.0)
        stage = self.stage.price.best if self.stage and not self.stage.idle else 0.0
        return {
            Kind.RANKS: ranks,
            Kind.STAGE: stage if stage >= (1.0 + USUAL_VARIATION) * ranks else 0.0,
            Kind.LINK: self.link.price.best if self.link else 0.0,
            Kind.ROLE: self.role.price.best if self.role else 0.0,
        }

    @cached_property
    def dearest(self) -> Kind | None:
        """The kind with the highest of `prices`; None where that is below the threshold."""
        first = max(self.prices, key=lambda kind: self.prices[kind])
        return first if self.prices[first] >= self.least else None

    @cached_property
    def unseen(self) -> Unseen:
        """What waits of recorded ranks for ranks without a trace cost."""
        cured = typical_without(self.case, self.case.significant(self.case.suspect_ns))
        return waited_for_unseen(self.case, cured)

    stalls = _OfCase(moving_stalls)
    """Host stalls that move from rank to rank, or hit all ranks in the same step."""

    moving = _OfCase(moving_work)
    """Work beyond chance in single steps of several ranks: each alone would be an accident."""

    once = _OfCase(in_one_step)
    """The rank that was slow in one step only."""

    @cached_property
    def once_in_doubt(self) -> bool:
        """Whether too few other steps were recorded to call the one slow step an accident."""
        return self.once is not None and not others_prove_health(self.case, self.once)

    @cached_property
    def unproven(self) -> list[tuple[LoneTransfers, Price]]:
        """The transfers without recorded peers that could hide the threshold, each with what it could."""
        found = [(one, could_hide(self.case, one)) for one in lone_transfers(self.case)]
        return [(one, hidden) for one, hidden in found if hidden.high >= self.least]

    @property
    def peerless(self) -> list[LoneTransfers]:
        """The transfers of `unproven`."""
        return [one for one, _ in self.unproven]

    only_step = _OfCase(in_the_only_step)
    """Ranks that work longer in the only step that they recorded whole."""

    undecided = _OfCase(undecided)
    """Ranks with a significant excess and a price interval that reaches the threshold."""

    tokens = _OfCase(uneven_tokens)
    """What an uneven distribution of tokens over experts costs."""

    @cached_property
    def data(self) -> float:
        """What unevenly distributed data costs; nothing where the longest rank only waits for its turn on its core."""
        cost = uneven_data(self.case)
        return 0.0 if cost and longest_takes_turns(self.case) else cost

    def is_accident(self, found: Undecided) -> bool:
        """Whether `found` names only the rank of `once`, which costs nothing in the other steps."""
        return self.once is not None and set(found.rows) <= set(self.once.rows)


def evidence_of(case: Case) -> Evidence:
    """Return the evidence of `case`, which keeps it: the decision, its challenges and the working read the same."""
    found: Evidence = vars(case).setdefault("evidence", Evidence(case))
    return found


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
        stage, link = self.stage is not None and self.stage.cured is not None, self.link is not None
        there = {Kind.RANKS: bool(self.rows), Kind.LINK: link, Kind.STAGE: stage}
        return tuple(kind for kind in there if there[kind]) if self.case.timeline is not None else ()

    def step_ns(self, cured: Collection[Kind], model: StepModel | None = None) -> float:
        """Return the mean step without the faults `cured`, ns, in `model` or that of the case."""
        case, model = self.case, model or self.case.timeline
        if model is None:
            return self.case.step_ns
        own, usual = case.steps.own, None
        if Kind.RANKS in cured and len(rows := np.array(self.rows, np.int64)):
            own, usual = typical_without(case, rows), usual_of(case, rows)
        if Kind.STAGE in cured and self.stage is not None and self.stage.cured is not None:
            own = own * np.where(np.isfinite(case.steps.own), self.stage.cured / case.steps.own, 1.0)
            shorter = set(self.stage.rows) - set(self.rows)  # by their work, not by what waits beside it
            usual = usual and {place: parts for place, parts in usual.items() if place[1] not in shorter}
        if Kind.LINK in cured and self.link is not None:
            model = without_link(case, model, self.link.delays)
            own, spared = not_awaiting(case, own, self.link.delays)
            usual = {**spared, **(usual or {})}
        return model.step_ns(own, usual=usual)

    def price(self, kind: Kind, after: Collection[Kind] = ()) -> Price:
        """Return what the cure of `kind` saves after the cures `after`, ns a step, widened by its own doubt."""
        case, stage = self.case, self.stage.rows if self.stage else ()
        model = case.timeline and with_hosts(case, case.timeline, (*self.rows, *stage))
        saved = max(self.step_ns(after, model) - self.step_ns((*after, kind), model), 0.0)
        doubt = stage_doubt_ns(case, np.array(stage, np.int64))
        if kind == Kind.RANKS:
            doubt = rank_doubt_ns(case, np.array(self.rows, np.int64))
        elif kind == Kind.LINK and self.link is not None:
            doubt = link_doubt_ns(case, saved, self.link.z)
        return Price.exactly(saved).widened(doubt)
