"""Ranks with devices that are idle behind hosts as fast as the others, in jobs where the hosts set the pace.

Without such a rank another host would be the last to launch, so that curing its gaps saves little.
"""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.candidates import bound_by_hosts, significant_rows
from tracekit.analysis.slowrank.hypotheses.host_bound import most_saved_ns
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, left_open, suspect_of
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.units import ms


def launch_bound_answer(case: Case) -> Answer | None:
    """The open answer that ranks are idle behind hosts as fast as the others; None where no rank is.

    Asked only where the model's error leaves health open: that error bounds what the rank may cost.
    """
    rows = significant_rows(case, MIN_LOST_SHARE)
    if (
        not len(rows)
        or most_saved_ns(case, rows) >= MIN_LOST_SHARE * case.step_ns
        or not bound_by_hosts(case, rows)
    ):
        return None
    first = int(rows[np.argmax(case.found.mean[rows])])
    rank, most = case.steps.ranks[first], max(case.residual_ns, case.pinned_residual_ns)
    cause, evidence = explain_rank(case, first, rows.tolist())
    candidate = suspect_of(case, first, Price.up_to(most), 0.0, cause, evidence)
    reason = (
        f"rank {rank} works {ms(float(case.found.mean[first])):.1f} ms of {ms(case.step_ns):.1f} ms a step longer than "
        "its peers, but the hosts set the pace, and other hosts take as long to launch a step: without this rank "
        f"another one would be the last. The model of the steps is off by {ms(most):.1f} ms, and the rank may cost up "
        "to that"
    )
    decide = "record more steps: if this is chance, another host will be the last in them"
    return left_open(reason, decide, (candidate,))
