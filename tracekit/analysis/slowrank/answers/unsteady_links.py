"""Links that are slow at times, which no comparison of groups shows.

At times a few transfers of a group take much longer than the same calls usually do. That needs no other group: a card
that drops packets, or a network under foreign load, delays some calls and leaves the rest unchanged. The group's own
calls do not show which member causes the delay, so no rank is blamed.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.evidence import Evidence, Gap
from tracekit.analysis.slowrank.hypotheses.link_cure import price_of
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import link_ends
from tracekit.case.case import Case
from tracekit.case.wording import listed, of_step
from tracekit.expected.like_transfers import message_of
from tracekit.findings import Suspect
from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.rank_events.operation_names import ROOTED
from tracekit.thresholds.report import RANKS_SHOWN
from tracekit.thresholds.slowrank import KIND_RATIO, MAJORITY, NO_ACCIDENT
from tracekit.units import F64, I64, Mask, ms


@dataclass(frozen=True)
class UnsteadyLink:
    """Ranks with irregular transfers, and their price; ns."""

    ranks: tuple[int, ...]
    axes: tuple[str, ...]
    message: bool  # whether the link carries point-to-point messages of two ranks
    calls: tuple[int, int]  # how many were late, of how many that were compared
    steps: tuple[int, ...]  # the steps with late calls
    summed: float  # their total lateness over all steps
    gain: float  # what the step would save if no transfer were late, ns a step
    others: int  # other groups along these axes
    as_late: int  # how many of these are late in the same steps


def unsteady_link(case: Case) -> UnsteadyLink | None:
    """The group with transfers that are late at times; None where that costs too little, or is a single call.

    None as well where only the first steps of captures are late, in which connections and caches warm up.
    """
    late, compared = _late(case)
    rows = case.waits.first_row
    step = case.ops.step[rows]
    lateness: dict[tuple[int, ...], float] = defaultdict(float)
    link = [tuple(sorted(channel.members)) for channel in case.ops.channels]  # of both directions
    where = [link[c] for c in case.ops.channel[rows].tolist()]
    for number in np.flatnonzero(late > 0).tolist():
        lateness[where[number]] += float(late[number])
    if not lateness or (gain := price_of(case, late).best) < case.threshold_ns:
        return None
    worst = max(lateness, key=lambda members: lateness[members])
    mine = np.array([members == worst for members in where])
    struck = np.flatnonzero(mine & (late > 0))
    steps = tuple(np.unique(step[struck]).tolist())
    if _warming(case, steps) or (len(steps) == 1 and len(struck) < NO_ACCIDENT):
        return None
    channel = case.ops.channels[int(case.ops.channel[rows[struck[0]]])]
    shape, beside = case.shape_of(channel), np.where(np.isin(step, steps), late, 0.0)
    alike = {link[c.number] for c in case.ops.channels if shape and case.shape_of(c) == shape}
    others = sorted(alike.intersection(where) - {link[channel.number]})
    spent = [sum(beside[i] for i, at in enumerate(where) if at == other) for other in others]
    as_late = [ns for ns in spent if ns > MAJORITY * lateness[worst]]
    return UnsteadyLink(
        worst, case.axes_of(channel), channel.p2p, (len(struck), int((mine & compared).sum())), steps,
        lateness[worst], gain, len(others), len(as_late),
    )  # fmt: skip


def _warming(case: Case, steps: tuple[int, ...]) -> bool:
    """Whether all of `steps` are first steps of captures, in which connections and caches warm up."""
    known = case.steps.numbers
    first = {n for n in known if n - 1 not in known}
    return len(known) == 1 or (set(steps) <= first and (len(steps) == 1 or len(first) < len(known)))


def _late(case: Case) -> tuple[F64, Mask]:
    """(ns by which each transfer is longer than usual for its call, whether it was compared), by instance."""
    ops, waits, rows = case.ops, case.waits, case.waits.first_row
    message, scale = message_of(case)
    late, compared = np.zeros(len(rows)), np.zeros(len(rows), bool)
    calls: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number in np.flatnonzero(waits.complete & case.analysed[rows]).tolist():
        on_gpu = ops.per_rank[int(ops.rank[rows[number]])].on_gpu
        if on_gpu and str(ops.op[rows[number]]) not in ROOTED:
            calls[int(ops.channel[rows[number]]), message[number]].append(number)
    for numbers in map(np.array, calls.values()):
        lasted = waits.transfer[numbers] / scale[numbers]
        usual = _usual(case, numbers, lasted)
        over = np.where(lasted > KIND_RATIO**2 * usual, (lasted - usual) * scale[numbers], 0.0)
        late[numbers], compared[numbers] = over, np.isfinite(usual)
    return late, compared


def _usual(case: Case, numbers: I64, lasted: F64) -> F64:
    """The usual time of each call of one message, in the unit of `lasted`: the group's median, or that of its place.

    The longer of the two counts: work that overlaps with a call lengthens it at the same place of every step. Calls of
    unknown size are compared at their place only; infinite where steps do not repeat them.
    """
    ops, rows = case.ops, case.waits.first_row[numbers]
    unknown = str(ops.token[rows[0]]).endswith(UNKNOWN_SIZE)
    usual = np.full(len(numbers), 0.0 if unknown else float(np.median(lasted)))
    steps = [np.flatnonzero(ops.step[rows] == n) for n in np.unique(ops.step[rows])]
    regular = len({len(step) for step in steps}) == 1
    if not regular or len(steps) == 1:
        return np.full(len(numbers), np.inf) if unknown else usual
    if unknown and len(steps) < NO_ACCIDENT:
        return np.full(len(numbers), np.inf)
    by_place = np.quantile(lasted[np.array(steps)], 0.5, axis=0, method="lower")
    for step in steps:
        usual[step] = np.maximum(usual[step], by_place)
    return usual


def link_is_irregular(e: Evidence) -> Iterator[Gap]:
    """Some transfers of a group take much longer than the same calls usually do."""
    case, found = e.case, unsteady_link(e.case)
    if found is None:
        return
    axes = "_".join(found.axes) or "no axis"
    transfers = "messages between rank" if found.message else "transfers of rank"
    late, compared = found.calls
    which = f"none of {found.others} other groups along {axes} is as late in these steps"
    if not found.others:
        which = f"no other group along {axes} was recorded that would show which link is slow"
    elif found.as_late:
        which = f"{found.as_late} of {found.others} other groups along {axes} are as late in these steps"
    what = (
        f"{transfers} {listed(found.ranks)} along {axes} are irregular: {late} of {compared} take much longer than "
        f"the same calls usually do, {ms(found.summed):.1f} ms in total in step {listed(found.steps)}, although every "
        f"member had arrived; such calls cost {of_step(case, found.gain)}, and {which}"
    )
    yield Gap(what, found.gain, _DECIDE, _candidates(case, found))


_DECIDE: Final = (
    "record more steps, and read the counters of dropped and resent packets of these ranks' network cards before and "
    "after them: rising counters show an intermittently slow card"
)


def _candidates(case: Case, found: UnsteadyLink) -> tuple[Suspect, ...]:
    """The members as candidates where other groups exist and are not late, and the members are few enough to check."""
    if not found.others or found.as_late or len(found.ranks) > RANKS_SHOWN:
        return ()
    price = Price.up_to(found.gain, found.gain)
    return tuple(replace(s, steps=found.steps) for s in link_ends(case, found.ranks, price))
