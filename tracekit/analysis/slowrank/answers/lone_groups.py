"""Answers that a slow link may hide in transfers without peers, or an intermittent fault in ranks without peers."""

from typing import Final

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.lone_ranks import lone_ranks, varies_ns
from tracekit.analysis.slowrank.gaps.lone_transfers import in_words, remedy
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_end, suspect_of
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.thresholds.slowrank import LINK_RATIO_OF_TWO, RANKS_LISTED, SOLE_GROUP_SHARE
from tracekit.units import ms


def group_has_no_peer(e: Evidence) -> Answer | None:
    """A group's transfers have no peer to compare with: all other groups along its axes lack a trace.

    Assumes the smallest ratio that a comparison of two groups would report.
    """
    case = e.case
    found = max((f for f, _ in e.unproven if f.peers), key=lambda f: f.spent, default=None)
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
    return left_open(reason, remedy(case, found), candidates)


def lone_ranks_vary(e: Evidence) -> Answer | None:
    """Ranks without a peer work longer in some steps than in their quickest one, which costs the threshold."""
    case, rows = e.case, lone_ranks(e.case)
    lost = varies_ns(case, rows) if len(rows) else 0.0
    if lost < e.least:
        return None
    alone = {int(row): varies_ns(case, np.array([row])) for row in rows}
    ranks = ranks_in_words([case.steps.ranks[row] for row in rows])
    reason = (
        f"{ranks} do work that no other rank does, and would save {ms(lost):.1f} ms of {ms(case.step_ns):.1f} ms a "
        "step if every step were as quick as their quickest: uneven data and a device that is slow at times would "
        "look the same"
    )
    candidates = tuple(
        suspect_of(case, row, Price.up_to(alone[row]), 0.0, "unknown", ())
        for row in sorted(alone, key=lambda row: (-alone[row], row))[:RANKS_LISTED]
    )
    return left_open(reason, _REPEAT, candidates)


_REPEAT: Final = (
    "record the same steps again with the same data in another order, or on another host: a slow device stays slow; "
    "or test the devices alone: tracekit next TRACES"
)


def lone_transfers_may_be_slow(e: Evidence) -> Answer | None:
    """Transfers without peers in the job could save much of the step, and their bandwidth proves no healthy link."""
    found, hidden = max((u for u in e.unproven if not u[0].peers), key=lambda u: u[1], default=(None, 0.0))
    if found is None or hidden < SOLE_GROUP_SHARE * e.case.step_ns:
        return None
    reason = f"{in_words(e.case, found)}: a slow link and a slow network would look the same"
    return left_open(reason, remedy(e.case, found))
