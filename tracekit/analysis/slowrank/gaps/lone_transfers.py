"""Communication that hides a fault: transfers that nothing can be compared with, and unmatched waits of one rank.

A slow link shows by comparison with the transfers of its peers, which are other groups along its axes. The only group
along its axes has none, nor have messages that all pass one rank, as in a pipeline of two stages. Links between nodes
have none if all of them pass one node, as between two nodes: its network slows them alike. What such transfers could
hide is bounded by what sound transfers take on the hardware of the job. Where the user describes that, transfers with
peers are bounded as well, because a network may be slow for all of them.

Ranks of one stage do the same work, so each kind of operation should delay all of them equally. An unmatched operation
has no price, but where it delays no rank more than its peers, it hides no single slow rank or link.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.excess import without_longest
from tracekit.analysis.slowrank.expected.like_transfers import families, message_of
from tracekit.analysis.slowrank.expected.nodes import nodes_of
from tracekit.analysis.slowrank.expected.sound_transfers import beyond_hardware, sized, sound_transfers
from tracekit.analysis.slowrank.price import Price
from tracekit.analysis.slowrank.wording import add_traces, listed, of_step, ranks_in_words
from tracekit.matching.channels import Channel
from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.steps.medians import median_of_others
from tracekit.thresholds.slowrank import KIND_RATIO, SOLE_GROUP_SHARE
from tracekit.units import F64, I64, Mask, ms

_MEASURE: Final = (
    "measure the groups of these ranks without the job (tracekit next TRACES prints the script), or compare with a "
    "faster run: tracekit diff BEFORE AFTER"
)


@dataclass(frozen=True)
class LoneTransfers:
    """Transfers without peers on `channels` between `ranks`; `spent`: of the rank that spends most in them, ns a step.

    They are of the only group along `axes`, or messages along them that all pass the rank or ranks in `hub`, with the
    ranks of an unrecorded group that would be its `peers`; or all those between nodes, where each passes all of
    `nodes`; or transfers longer than described hardware allows, be it `some` of the job's or `all`; or calls of unknown
    size of a group that runs other numbers of them than its peers, with what each kind usually takes these, ns.
    """

    channels: tuple[int, ...]
    ranks: tuple[int, ...]
    spent: float
    axes: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    nodes: tuple[str | int, ...] = ()
    hub: tuple[int, ...] = ()
    beyond: Literal["", "some", "all"] = ""
    usual: tuple[tuple[str, float], ...] = ()


def lone_transfers(case: Case) -> list[LoneTransfers]:
    """Return all transfers of `case` without recorded peers, and all that described hardware does not explain."""
    seen = [case.ops.channels[c] for c in np.unique(case.ops.channel[case.analysed & case.matched]) if c >= 0]
    lone = *_beyond_hardware(case, seen), *_only_groups(case, seen), *_past_one_node(case, seen)
    return [*lone, *_of_other_counts(case)]


def _beyond_hardware(case: Case, seen: list[Channel]) -> Iterator[LoneTransfers]:
    """The transfers that are longer than described hardware lets them."""
    slow, every = beyond_hardware(case, [c.number for c in seen])
    if slow:
        found = _of(case, [c for c in seen if c.number in slow])
        yield replace(found, beyond="all" if every else "some")


def _only_groups(case: Case, seen: list[Channel]) -> Iterator[LoneTransfers]:
    """The collectives that are the only recorded ones along their axes, and messages that all pass one rank."""
    groups: dict[tuple[tuple[str, ...], bool], list[Channel]] = defaultdict(list)
    for channel in seen:
        if axes := case.axes_of(channel):
            groups[axes, channel.p2p].append(channel)
    for (axes, p2p), channels in sorted(groups.items()):
        hub = sorted(set.intersection(*(set(c.members) for c in channels))) if p2p else []
        if hub or len(channels) == 1:
            members = set(channels[0].members)
            others = sorted(set(case.mesh.coordinates) - members - set(case.steps.ranks))
            lines = (case.mesh.line(r, axes) for r in others)
            peers = next((line for line in lines if members.isdisjoint(line)), ())
            yield _of(case, channels, axes, tuple(peers), hub=tuple(hub))


def _of_other_counts(case: Case) -> Iterator[LoneTransfers]:
    """The collectives of unknown size of a group whose peers run another number of them, if they are clearly longer."""
    found = families(case, message_of(case)[0], nodes_of(case), case.waits.complete)
    sizeless = {k: channels for k, channels in found.items() if UNKNOWN_SIZE in k[3] and not k[2]}
    compared = {c for channels in sizeless.values() if len(channels) > 1 for c in channels}
    took: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    for (shape, near, _, message), channels in sizeless.items():
        for c, numbers in channels.items():
            took[shape, near, message.partition("/")[0]][c] = float(np.median(case.waits.delivery[numbers]))
    usual: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for (_, _, op), levels in took.items():
        for c in levels.keys() - compared:
            others = [level for other, level in levels.items() if other != c]
            if others and levels[c] > KIND_RATIO * float(np.median(others)):
                usual[c].append((str(op), float(np.median(others))))
    for c, likes in sorted(usual.items()):
        channel = case.ops.channels[c]
        yield _of(case, [channel], case.axes_of(channel), usual=tuple(likes))


def _past_one_node(case: Case, seen: list[Channel]) -> Iterator[LoneTransfers]:
    """The links between nodes, if there are several and all pass one node."""
    nodes = nodes_of(case)
    passed = {c.number: {nodes[m] for m in c.members if m in nodes} for c in seen}
    across = [c for c in seen if len(passed[c.number]) > 1]
    common = set.intersection(*(passed[c.number] for c in across)) if len(across) > 1 else set()
    if common:
        yield _of(case, across, nodes=tuple(sorted(common, key=str)))


def _of(
    case: Case, channels: list[Channel], axes: tuple[str, ...] = (), peers: tuple[int, ...] = (),
    nodes: tuple[str | int, ...] = (), hub: tuple[int, ...] = (), usual: tuple[tuple[str, float], ...] = (),
) -> LoneTransfers:  # fmt: skip
    """The transfers on `channels`, with the exposed time of the rank that spends most in them."""
    numbers = tuple(c.number for c in channels)
    mine = case.analysed & np.isin(case.ops.channel, numbers)
    moved = np.where(mine, case.ops.exposed - case.waits.exposed_wait, 0)
    spent = float((np.bincount(case.ops.rank, moved) / case.steps.count).max())
    ranks = tuple(sorted({m for c in channels for m in c.members}))
    return LoneTransfers(numbers, ranks, spent, axes, peers, nodes, hub, usual=usual)


def could_hide(case: Case, found: LoneTransfers) -> Price:
    """Return what a step saves if the transfers of `found` were sound, at least and at most, ns.

    At least: where they take no longer than sound ones on the hardware of the job, and nothing where their size is
    unknown. At most: where they take what that hardware reaches, or no time where their size is unknown.
    """
    sound, likes = sound_transfers(case, found.channels), dict(found.usual)
    if likes:
        ops = case.ops.op[case.waits.first_row[sound.numbers]].tolist()
        return Price.up_to(_saved_ns(case, sound.numbers, np.array([likes.get(op, np.inf) for op in ops])))
    low = _saved_ns(case, sound.numbers, sound.most)
    return Price.between(low, low, _saved_ns(case, sound.numbers, sound.usual))


def prove_no_health(case: Case, found: LoneTransfers, hidden: Price) -> bool:
    """Return whether a job is not called healthy for transfers that could hide `hidden`.

    It is not where they take longer than sound ones. Otherwise a slow link and a slow network look the same, so that it
    needs a large share of the step; not for links between nodes unless they are described, because few networks reach
    the bandwidth that proves health. Where peers can be recorded, it suffices that a link slow by the smallest ratio
    that two groups would show could cost the threshold. Calls that are clearly longer than those of peers prove none.
    """
    least_slow = found.spent * (1 - 1 / KIND_RATIO**2)
    slow = bool(found.usual) or hidden.low >= case.suspect_ns
    bounded = not found.nodes or case.run.hardware is not None
    much = bounded and hidden.high >= SOLE_GROUP_SHARE * case.step_ns
    return slow or much or bool(found.peers and least_slow >= case.threshold_ns)


def _saved_ns(case: Case, numbers: I64, usual: F64) -> float:
    """What a step saves if the instances `numbers` took no longer than `usual`, ns."""
    late = np.zeros(len(case.waits.delivery))
    late[numbers] = np.maximum(case.waits.delivery[numbers] - usual, 0.0)
    cured = np.maximum(case.waits.transfer - late, 0.0)
    model = case.seen or case.model  # copies of ranks without a trace would be as slow
    return max(model.recorded_ns - model.step_ns(case.steps.own, cured), 0.0)


def all_could_hide_ns(case: Case, hub: tuple[int, ...]) -> float:
    """Return what a step saves by `could_hide` of all transfers without peers that pass `hub`, ns; 0 without one.

    A slow link delays the collectives of its rank as well as its messages.
    """
    passing = [one for one in lone_transfers(case) if set(hub).issubset(one.ranks)] if hub else []
    channels = tuple(sorted({c for one in passing for c in one.channels}))
    return could_hide(case, replace(passing[0], channels=channels)).high if passing else 0.0


def remedy(case: Case, found: LoneTransfers) -> str:
    """Return what would decide: traces of a peer where there is one, else a measurement, or a right description."""
    if found.beyond == "all":
        return f"give --hardware the machines of this job; if it did, {_MEASURE}"
    lacking = [r for r in found.peers if r not in case.steps.ranks]
    return add_traces(lacking) if lacking else _MEASURE


def in_words(case: Case, found: LoneTransfers, hidden: Price) -> str:
    """Return the sentence about the transfers of `found`: how long, how fast, why no peer; they may hide `hidden`."""
    speed = bus_gb_s(case, found)
    rate = "an unknown bandwidth (sizes were not recorded)"
    rate = rate if speed is None else f"a bus bandwidth of {speed:.3g} GB/s"
    which, why = (
        f"of the only group along {'_'.join(found.axes)}",
        "this job has no other group to compare with",
    )
    if found.nodes:
        many = "s" if len(found.nodes) > 1 else ""
        which, why = (
            "between nodes",
            f"all pass node{many} {listed(found.nodes)}, and a slow network there slows them alike",
        )
    elif found.hub:
        which = f"of messages along {'_'.join(found.axes)}"
        why = f"all pass {ranks_in_words(found.hub)}, so that a slow link there slows them alike"
    elif found.usual:
        which = f"along {'_'.join(found.axes)} of {ranks_in_words(found.ranks)}"
        why = "the other groups there run another number of such calls, which are shorter"
    elif found.beyond:
        given = case.run.hardware.name if case.run.hardware is not None else ""
        which, why = f"of {ranks_in_words(found.ranks)}", f"sound ones on {given} are quicker"
        if found.beyond == "all":
            why = f"no transfer is as quick as {given} lets it: it does not describe this job, or all links are slow"
    elif found.peers:
        which, why = f"along {'_'.join(found.axes)}", "no other group along these axes was recorded whole"
    if hidden.low > 0:
        rate += f" (the slowest sound network of such devices would save {ms(hidden.low):.1f} ms a step)"
    took = f"take {of_step(case, found.spent)}"
    return f"the transfers {which} {took} at {rate}, and {why}"


def bus_gb_s(case: Case, found: LoneTransfers) -> float | None:
    """Return the bus bandwidth of the transfers of `found` with a known size, GB/s; None without any."""
    numbers, size = sized(case, found.channels)
    known = (size > 0) & (case.waits.delivery[numbers] > 0)
    taken = float(case.waits.delivery[numbers[known]].sum())
    return float(size[known].sum()) / taken if taken else None


@dataclass(frozen=True)
class Lopsided:
    """The rank (row of Steps) that waits longest beyond its peers in one kind of operation, ns a step."""

    row: int
    kind: str
    over: float


def lopsided(case: Case) -> Lopsided | None:
    """The rank that waits longest beyond its peers in a kind of operation that was not matched everywhere.

    A rank without peers counts with its whole wait; of several steps the longest is left out. None where everything
    was matched, or no rank waits longer than its peers.
    """
    ops = case.ops
    seen = case.matched
    names, code = ops.kinds
    names = ["message" if name in (*MESSAGES, *_MAY_BE_MESSAGES) else name for name in names]
    kinds = np.array(names, object)[code]
    worst: Lopsided | None = None
    for kind in sorted(set(kinds[case.analysed & ~seen].tolist())):
        over = _beyond_peers(case, case.analysed & (kinds == kind), ~seen)
        over = over[:, 0] if over.shape[1] == 1 else without_longest(over / case.steps.shares)
        row = int(np.argmax(over))
        if over[row] > 0 and (worst is None or over[row] > worst.over):
            worst = Lopsided(row, kind, float(over[row]))
    return worst


def _beyond_peers(case: Case, kind: Mask, open_: Mask) -> F64:
    """The wait of ranks in operations of a `kind` beyond their peers, rows × steps, ns; `open_`: not matched.

    Compares only unmatched operations where all peers have equally many of the kind, and otherwise all of the kind:
    kernels that lost their arguments leave different operations unmatched on each rank.
    """
    asked = (np.flatnonzero(rows) for rows in (kind & open_, kind))
    (count, some), (_, every) = (
        (case.by_step(rows, np.ones(len(rows))), case.by_step(rows, case.ops.exposed[rows])) for rows in asked
    )
    over = np.where(np.isfinite(median_of_others(every, case.stages)), 0.0, some)
    for group in (g for g in case.stages if len(g) > 1):
        spent = some if len(np.unique(count[group], axis=0)) == 1 else every
        over[group] = (spent - median_of_others(spent, case.stages))[group]
    return over


_MAY_BE_MESSAGES = ("send_recv", "other")
