"""Answers that a slow link may hide in transfers without peers."""

from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.lone_transfers import MEASURE, in_words
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_end
from tracekit.analysis.slowrank.wording import add_traces, ranks_in_words
from tracekit.thresholds.slowrank import LINK_RATIO_OF_TWO, RANKS_LISTED, SOLE_GROUP_SHARE
from tracekit.units import ms


def group_has_no_peer(e: Evidence) -> Answer | None:
    """A group's transfers have no peer to compare with: all other groups along its axes lack a trace.

    Assumes the smallest ratio that a comparison of two groups would report.
    """
    case = e.case
    found = max((f for f in e.lone if f.peers), key=lambda f: f.spent, default=None)
    if found is None or found.spent * (1 - 1 / LINK_RATIO_OF_TWO) < e.least:
        return None
    axes = "_".join(found.axes)
    reason = (
        f"the transfers of {ranks_in_words(found.ranks)} along {axes} take {ms(found.spent):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step, and no other group along {axes} was recorded whole to compare them with: a "
        "slow link would not show"
    )
    price = Price.up_to(found.spent, found.spent)
    candidates = tuple(link_end(case, case.steps.row(r), price) for r in found.ranks[:RANKS_LISTED])
    return left_open(reason, add_traces([r for r in found.peers if r not in case.steps.ranks]), candidates)


def lone_transfers_may_be_slow(e: Evidence) -> Answer | None:
    """Transfers without peers in the job could save much of the step, and their bandwidth proves no healthy link."""
    found, hidden = max(e.unproven, key=lambda u: u[1], default=(None, 0.0))
    if found is None or hidden < SOLE_GROUP_SHARE * e.case.step_ns:
        return None
    reason = f"{in_words(e.case, found)}: a slow link and a slow network would look the same"
    return left_open(reason, MEASURE)
