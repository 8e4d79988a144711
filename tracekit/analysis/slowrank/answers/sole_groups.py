"""Groups that have no peers in the job: a slow link in one of them shows in no comparison.

Their bandwidth tells something: no slow link is as fast as sound ones are everywhere. Where it is lower, and their
transfers take much of the step, a slow link and a slow network look alike.
"""

import numpy as np

from tracekit.analysis.slowrank.answers.lone_groups import LoneGroup, sole_groups
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.matching.ring import ring_share
from tracekit.thresholds.unlike import FAST_BUS_GB_S, SOLE_GROUP_SHARE
from tracekit.timing.buffered_sends import bytes_of
from tracekit.units import ms


def sole_group_answer(case: Case) -> Answer | None:
    """The answer that the only group of its axes may hide a slow link; None where that could save little."""
    dearest, most, speed = None, SOLE_GROUP_SHARE * case.step_ns, None
    for found in sole_groups(case):
        bus = bus_gb_s(case, found)
        saved = found.spent * max(1 - (bus or 0.0) / FAST_BUS_GB_S, 0.0)
        if saved >= most:
            dearest, most, speed = found, saved, bus
    if dearest is None:
        return None
    axes = "_".join(dearest.axes)
    told = (
        "a bandwidth that the sizes do not tell" if speed is None else f"a bus bandwidth of {speed:.3g} GB/s"
    )
    reason = (
        f"the transfers of the only group along {axes} take {ms(dearest.spent):.1f} ms of {ms(case.step_ns):.1f} ms a "
        f"step at {told}, and nothing in this job tells whether its links should do more: a slow link and a slow "
        "network would look alike"
    )
    decide = (
        "measure the links between these hosts with nccl-tests, a pair at a time, or compare with a run that was "
        "quick: tracekit diff BEFORE AFTER"
    )
    return left_open(reason, decide)


def bus_gb_s(case: Case, group: LoneGroup) -> float | None:
    """The bus bandwidth of a group's collectives, GB/s, over those whose size is known; None where none is."""
    ops, waits = case.ops, case.waits
    mine = case.analysed & (ops.channel == group.channel) & (ops.instance >= 0)
    instance, first = np.unique(ops.instance[mine], return_index=True)
    timed = waits.complete[instance] & waits.timed[instance] & (waits.delivery[instance] > 0)
    rows = np.flatnonzero(mine)[first[timed]]
    size = np.array([bytes_of(str(t)) for t in ops.token[rows]], np.float64)
    share = np.array([ring_share(str(op), len(group.ranks)) for op in ops.op[rows]])
    known = size > 0
    taken = float(waits.delivery[instance[timed][known]].sum())
    return float((size * share)[known].sum()) / taken if taken else None
