"""Groups with transfers that have nothing to compare with, because no other group along their axes was recorded.

A slow link shows by comparison with the transfers of its peers. Without these, nothing proves a healthy link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.gaps.evidence_gaps import whole
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.suspects import Answer, left_open, link_end
from tracekit.analysis.slowrank.wording import add_traces, ranks_in_words
from tracekit.matching.channels import Channel
from tracekit.rank_events.operation_names import ring_share
from tracekit.thresholds.slowrank import (
    FAST_BUS_GB_S,
    LINK_RATIO_OF_TWO,
    MIN_LOST_SHARE,
    RANKS_LISTED,
    SOLE_GROUP_SHARE,
)
from tracekit.timing.buffered_sends import bytes_of
from tracekit.units import ms


@dataclass(frozen=True)
class LoneGroup:
    """The only recorded group along `axes`: its channel, ns a step spent in transfers, and the ranks of a peer."""

    channel: int
    ranks: tuple[int, ...]
    axes: tuple[str, ...]
    spent: float
    peers: tuple[int, ...]


def lone_group(case: Case) -> LoneGroup | None:
    """The group without recorded peers that could hide the most in its transfers; None below the threshold.

    Assumes the smallest ratio that a comparison of two groups would report. Groups without any peer in the job are left
    out: no recording could help.
    """
    found = [_lone(case, channel, axes) for channel, axes in _alone(case)]
    return _dearest(case, [f for f in found if f is not None])


def sole_group_note(case: Case) -> str | None:
    """The note that transfers of a group without peers in the job could hide a slow link; None where they are short."""
    most = _dearest(case, sole_groups(case))
    if most is None:
        return None
    return (
        f"transfers of the only group along {'_'.join(most.axes)} take {ms(most.spent):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step and have no peers in this job: a slow link in it would not show"
    )


def sole_groups(case: Case) -> list[LoneGroup]:
    """The groups that have no peers in the job."""
    return [
        LoneGroup(channel.number, channel.members, axes, _spent(case, channel), ())
        for channel, axes in _alone(case)
        if _lone(case, channel, axes) is None
    ]


def _alone(case: Case) -> list[tuple[Channel, tuple[str, ...]]]:
    """The channels of collectives that are the only recorded ones along their axes, each with its axes."""
    groups: dict[tuple[str, ...], set[int]] = {}
    seen = np.unique(case.ops.channel[case.analysed & whole(case)])
    for channel in (case.ops.channels[c] for c in seen.tolist() if c >= 0):
        if not channel.p2p and (axes := case.axes_of(channel)):
            groups.setdefault(axes, set()).add(channel.number)
    return [(case.ops.channels[min(c)], axes) for axes, c in sorted(groups.items()) if len(c) == 1]


def _dearest(case: Case, found: Sequence[LoneGroup]) -> LoneGroup | None:
    """The group that spends most in transfers; None where its least detectable slowness is below the threshold."""
    most = max(found, key=lambda f: f.spent, default=None)
    if most is None or most.spent * (1 - 1 / LINK_RATIO_OF_TWO) < MIN_LOST_SHARE * case.step_ns:
        return None
    return most


def _lone(case: Case, channel: Channel, axes: tuple[str, ...]) -> LoneGroup | None:
    """The group of a channel with an unrecorded peer; None where the job has no such peer along its axes."""
    members, recorded = set(channel.members), set(case.steps.ranks)
    others = (r for r in sorted(case.mesh.coordinates) if r not in members and r not in recorded)
    peers = next((line for r in others if members.isdisjoint(line := case.mesh.line(r, axes))), None)
    return (
        None
        if peers is None
        else LoneGroup(channel.number, channel.members, axes, _spent(case, channel), tuple(peers))
    )


def _spent(case: Case, channel: Channel) -> float:
    """The time in transfers of `channel` of the rank that spends most in them, ns a step."""
    mine = case.analysed & (case.ops.channel == channel.number)
    moved = np.where(mine, case.ops.exposed - case.waits.exposed_wait, 0)
    return float((np.bincount(case.ops.rank, moved) / len(case.steps.numbers)).max())


def group_has_no_peer(e: Evidence) -> Answer | None:
    """A group's transfers have no peer to compare with: all other groups along its axes lack a trace."""
    case, found = e.case, lone_group(e.case)
    if found is None:
        return None
    axes = "_".join(found.axes)
    reason = (
        f"the transfers of {ranks_in_words(found.ranks)} along {axes} take {ms(found.spent):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step, and no other group along {axes} was recorded whole to compare them with: a "
        "slow link would not show"
    )
    lacking = [r for r in found.peers if r not in case.steps.ranks]
    rows = [case.steps.row(r) for r in found.ranks]
    price = Price.up_to(found.spent, found.spent)
    candidates = tuple(link_end(case, row, price) for row in rows[:RANKS_LISTED])
    decide = add_traces(lacking)
    return left_open(reason, decide, candidates)


def sole_group_may_be_slow(e: Evidence) -> Answer | None:
    """The only group along its axes has no peer in the job, and its bandwidth does not prove a healthy link."""
    case = e.case
    dearest, most, speed = None, SOLE_GROUP_SHARE * case.step_ns, None
    for found in sole_groups(case):
        bus = bus_gb_s(case, found)
        saved = found.spent * max(1 - (bus or 0.0) / FAST_BUS_GB_S, 0.0)
        if saved >= most:
            dearest, most, speed = found, saved, bus
    if dearest is None:
        return None
    axes = "_".join(dearest.axes)
    rate = (
        "an unknown bandwidth (sizes were not recorded)"
        if speed is None
        else f"a bus bandwidth of {speed:.3g} GB/s"
    )
    reason = (
        f"the transfers of the only group along {axes} take {ms(dearest.spent):.1f} ms of {ms(case.step_ns):.1f} ms a "
        f"step at {rate}, and this job has no other group to compare with: a slow link and a slow network would look "
        "the same"
    )
    decide = (
        "measure the links between these hosts with nccl-tests, one pair at a time, or compare with a faster run: "
        "tracekit diff BEFORE AFTER"
    )
    return left_open(reason, decide)


def bus_gb_s(case: Case, group: LoneGroup) -> float | None:
    """The bus bandwidth of a group's collectives, GB/s, over the calls of known size; None without any."""
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
