"""Hosts that launch late, although their devices work no longer than their peers' devices, at an open price.

The peers queued the same collective long before. On the late rank it starts as soon as it is launched, so its transfer
overlaps with less compute: the step loses overlap, which no own time shows. Where the hosts set the pace, a device may
be idle behind a host as fast as the others: without it another host would be the last, so curing its gaps saves little.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.hypotheses.candidates import bound_by_hosts, significant_rows
from tracekit.analysis.slowrank.hypotheses.host_bound import most_saved_ns
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, explain_rank, left_open, suspect_of
from tracekit.causes import CPU_LAUNCH
from tracekit.thresholds.slowrank import FAR_MORE, LAUNCHED_NS, MAJORITY, MIN_LOST_SHARE
from tracekit.units import F64, I64, ms


@dataclass(frozen=True)
class LateLaunch:
    """The rank that launches late (row of Steps), and the median wait of the others for it, ns a step."""

    row: int
    waited: float


def late_launch(case: Case) -> LateLaunch | None:
    """The rank that the others wait for longest because of late launches; None where that is below the threshold.

    An instance counts if the member that came last started it as soon as its host launched it, and most of the others
    had launched theirs long before. The wait of an instance is the median over the others.
    """
    ops = case.ops
    issued = np.concatenate([np.zeros(0, np.int64), *(ops.per_rank[r].issued for r in ops.ranks)])
    lag = (ops.start - issued).astype(np.float64)
    spent = dict.fromkeys(range(len(case.steps.ranks)), 0.0)
    for last, others in _awaited(case):
        queued = lag[others] > FAR_MORE * max(lag[last], LAUNCHED_NS)
        if lag[last] <= LAUNCHED_NS and queued.mean() > MAJORITY:
            spent[case.steps.row(int(ops.rank[last]))] += float(np.median(case.waits.exposed_wait[others]))
    row, most = max(spent.items(), key=lambda item: item[1])
    most /= max(len(case.steps.numbers), 1)
    return LateLaunch(row, most) if most >= MIN_LOST_SHARE * case.step_ns else None


def waited_for(case: Case) -> F64:
    """The median wait of the other members for a rank that joins a collective last, ns, by row and column of Steps."""
    ops, steps = case.ops, case.steps
    spent = np.zeros(steps.own.shape)
    column = {number: i for i, number in enumerate(steps.numbers)}
    for last, others in _awaited(case):
        at = column[int(ops.step[last])] if steps.labelled else 0
        spent[steps.row(int(ops.rank[last])), at] += float(np.median(case.waits.exposed_wait[others]))
    return spent


def _awaited(case: Case) -> Iterator[tuple[int, I64]]:
    """(the last operation to arrive, the other operations) of each collective with all members and launches."""
    ops, waits = case.ops, case.waits
    rows = np.flatnonzero((ops.instance >= 0) & case.analysed & ~case.in_message & np.isfinite(ops.at_ready))
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    for members in np.split(rows, np.flatnonzero(np.diff(ops.instance[rows])) + 1) if len(rows) else []:
        last = int(waits.last[ops.instance[members[0]]])
        others = members[members != last]
        if 0 < len(others) < len(members) and waits.complete[ops.instance[last]]:
            yield last, others


def host_launches_late(e: Evidence) -> Answer | None:
    """A host launches collectives late, at a price that the traces do not show."""
    case, found = e.case, late_launch(e.case)
    if found is None:
        return None
    rank = case.steps.ranks[found.row]
    candidate = suspect_of(case, found.row, Price.up_to(found.waited), 0.0, CPU_LAUNCH, ())
    reason = (
        f"no rank works longer than its peers, but the host of rank {rank} launches collectives long after the other "
        f"ranks queued theirs: they wait {ms(found.waited):.1f} ms of {ms(case.step_ns):.1f} ms a step for it, and the "
        "traces do not show how much of that a faster host would hide"
    )
    decide = (
        f"profile the host of rank {rank} and a peer's host, and record a few steps with it on another host"
    )
    return left_open(reason, decide, (candidate,))


def hosts_set_the_pace(case: Case) -> Answer | None:
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
