"""Waits and slow transfers in the all-to-alls of experts, by source and destination.

A trace holds one kernel a rank and call, not one for each pair. Two things separate pairs all the same. The member that
comes last shows which source the others wait for. The split sizes show how much each source sends to each destination:
where these differ from call to call, the time of slow calls follows what passes the slow sender, receiver or path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.suspects import Answer
from tracekit.case.case import Case
from tracekit.findings import ExpertWaits
from tracekit.matching.channels import Channel
from tracekit.mesh.parts import ALL_TO_ALL
from tracekit.rank_events.event_columns import categories, ints, matches
from tracekit.thresholds.slowrank import NEARLY_ALL
from tracekit.units import F64, ms

_SPLITS: Final = re.compile(r"\[\d{1,15}(?:, ?\d{1,15})+\]")
"""Split sizes as torch writes them; a list that it has cut does not match."""

Part = tuple[str, tuple[object, ...]]
"""A kind of a part of the network, and what names the part within it; `network_parts.KINDS` lists the kinds."""

UNSEPARATED: Final = (
    "their all-to-alls do not show whether a sender, a receiver or a path is slow: record calls with different split "
    "sizes, or take the script of tracekit next TRACES, in which neighbours send to each other"
)


@dataclass(frozen=True)
class Calls:
    """All-to-alls of one group.

    members: global ranks, by place in the group. sent: elements, (calls, sources, destinations). took: ns, (calls,).
    """

    members: tuple[int, ...]
    sent: F64
    took: F64


def expert_waits(case: Case, answer: Answer) -> ExpertWaits | None:
    """Return the waits in all-to-alls of the first suspect's group, or of the group that waits most without one.

    None where no all-to-all was matched. Every wait counts for the member that came last in its call.
    """
    if case.table is not None:
        return None
    ops, waits = case.ops, case.waits
    mine = np.flatnonzero((ops.instance >= 0) & ops.among((ALL_TO_ALL,)) & case.analysed & ~case.in_message)
    if not len(mine):
        return None
    spent = np.bincount(ops.channel[mine], waits.wait[mine].astype(np.float64), len(ops.channels))
    named = {s.rank for s in (*answer.suspects, *answer.candidates)[:1]}
    groups = [ops.channels[c] for c in np.unique(ops.channel[mine]).tolist()]
    group = max(groups, key=lambda c: (not named.isdisjoint(c.members), spent[c.number], -c.number))
    place = {rank: i for i, rank in enumerate(group.members)}
    here = mine[ops.channel[mine] == group.number]
    found = np.zeros((len(place), len(place)))
    for row, last in zip(here.tolist(), waits.last[ops.instance[here]].tolist(), strict=True):
        at = place[int(ops.rank[last])], place[int(ops.rank[row])]
        found[at] += waits.wait[row] / len(case.steps.numbers)
    return ExpertWaits(group.members, tuple(tuple(ms(ns) for ns in line) for line in found.tolist()))


def parts_by_load(calls: Calls) -> tuple[Part, ...]:
    """Return the senders, receivers and paths with a load that explains how long calls take; none if nothing separates.

    One of them must explain nearly all of the differences between calls. Others are left where they explain as much,
    but for what the best of as many unrelated loads explains by chance, 2 ln(parts) / calls.
    """
    loads = dict(_loads(calls))
    if not len(calls.took) or np.ptp(calls.took) == 0:
        return ()
    share = {part: _explained(load, calls.took) for part, load in loads.items()}
    chance = 2.0 * np.log(len(loads)) / len(calls.took)
    best = max(share.values())
    if best < NEARLY_ALL or best <= chance:
        return ()
    return tuple(part for part, explained in share.items() if explained >= best - chance)


def _loads(calls: Calls) -> Iterator[tuple[Part, F64]]:
    """The elements that pass each part in each call; what a rank keeps passes none."""
    here = np.eye(len(calls.members), dtype=bool)
    sent = np.where(here, 0.0, calls.sent)
    for place, rank in enumerate(calls.members):
        yield ("send", (rank,)), sent[:, place].sum(axis=-1)
        yield ("receive", (rank,)), sent[:, :, place].sum(axis=-1)
        for other, target in enumerate(calls.members):
            if other != place:
                yield ("way", (rank, target)), sent[:, place, other]


def _explained(load: F64, took: F64) -> float:
    """The share of the variance of `took` that a `load` explains by which calls take longer."""
    if np.ptp(load) == 0:
        return 0.0
    return max(float(np.corrcoef(load, took)[0, 1]), 0.0) ** 2


def of_experts(case: Case, channel: int) -> bool:
    """Return whether a channel carries all-to-alls."""
    calls = case.ops.among((ALL_TO_ALL,)) & (case.ops.channel == channel)
    return bool(calls.any()) and not case.ops.p2p[channel]


def calls_of(case: Case, channel: Channel) -> Calls:
    """Return the all-to-alls of a group with split sizes that every member recorded; equal splits separate nothing."""
    ops, waits = case.ops, case.waits
    members = channel.members
    rows = np.flatnonzero((ops.channel == channel.number) & (ops.instance >= 0) & ops.among((ALL_TO_ALL,)))
    rows = rows[case.analysed[rows] & waits.complete[ops.instance[rows]] & waits.timed[ops.instance[rows]]]
    numbers = np.unique(ops.instance[rows])
    ranks, sent = ops.rank[rows], np.full((len(numbers), len(members), len(members)), np.nan)
    at = np.searchsorted(numbers, ops.instance[rows])
    for place, rank in enumerate(members):
        splits = _splits(case, rank, len(members))
        for call, start in zip(
            at[ranks == rank].tolist(), ops.start[rows[ranks == rank]].tolist(), strict=True
        ):
            sent[call, place] = splits.get(start, np.nan)
    known = np.isfinite(sent).all(axis=(1, 2))
    return Calls(members, sent[known], waits.delivery[numbers[known]].astype(np.float64))


def _splits(case: Case, rank: int, size: int) -> dict[int, F64]:
    """The elements that `rank` sends to each member of a group of `size`, by the begin of the kernel, ns."""
    events = case.run.events(rank, ["ts", "cat", "in_nelems", "in_split"])
    text = matches(events, "in_split", lambda split: split if split and _SPLITS.fullmatch(split) else "")
    rows = np.flatnonzero((text != "") & (categories(events) == "kernel"))
    start, elements = ints(events, "ts", 0)[rows].tolist(), ints(events, "in_nelems", 0)[rows].tolist()
    found: dict[int, F64] = {}
    for ts, count, split in zip(start, elements, text[rows].tolist(), strict=True):
        parts = np.array(split[1:-1].split(","), np.float64)
        if len(parts) == size and parts.any():
            found[ts] = count * parts / parts.sum()
    return found
