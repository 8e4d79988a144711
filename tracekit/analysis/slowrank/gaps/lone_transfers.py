"""Communication that hides a fault: transfers that nothing can be compared with, and unmatched waits of one rank.

A slow link shows by comparison with the transfers of its peers, which are other groups along its axes. Where all
transfers that are compared with each other pass the same ranks or the same node, a fault there slows them alike: they
are compared with nothing. That is so for the only group along its axes, for the messages of a pipeline of two stages,
and for links between two nodes. It is so as well for calls that no other group makes, because of their size or number.

What such transfers could hide is bounded by what calls of their kind take along the same axes, size for size; where
there are none, by what sound transfers take on the hardware of the job. Where the user describes that, transfers with
peers are bounded as well, because a network may be slow for all of them.

Ranks of one stage do the same work, so each kind of operation should delay all of them equally. An unmatched operation
has no price, but where it delays no rank more than its peers, it hides no single slow rank or link.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.price import Price
from tracekit.case.case import Case
from tracekit.case.wording import add_traces, listed, of_step, ranks_in_words
from tracekit.expected.excess import without_longest
from tracekit.expected.like_transfers import families, message_of
from tracekit.expected.nodes import nodes_of
from tracekit.expected.sound_transfers import beyond_hardware, sized, sound_transfers
from tracekit.matching.channels import Channel
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.steps.medians import median_of_others
from tracekit.thresholds.slowrank import KIND_RATIO, SOLE_GROUP_SHARE
from tracekit.timing.buffered_sends import bytes_of
from tracekit.units import F64, I64, Mask, ms

_MEASURE: Final = (
    "measure the groups of these ranks without the job (tracekit next TRACES prints the script), or compare with a "
    "faster run: tracekit diff BEFORE AFTER"
)


@dataclass(frozen=True)
class LoneTransfers:
    """Transfers on `channels` between `ranks`; `spent`: of the rank that spends most in them, ns a step.

    Messages all pass the ranks in `hub`. `peers` are of an unrecorded group to compare with. `expected` holds what
    calls of the kind take elsewhere, ns, by instance (infinite: none is made), where only some of the transfers are
    lone. What is not `longer` is bounded by the hardware of the job.
    """

    channels: tuple[int, ...]
    ranks: tuple[int, ...]
    spent: float
    which: str = ""
    why: str = ""  # they were compared with nothing
    hub: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()
    expected: Mapping[int, float] = field(default_factory=dict)
    longer: bool = False  # than `expected`
    between_nodes: bool = False
    unfit: bool = False  # no transfer of the job is as quick as described hardware


def lone_transfers(case: Case) -> list[LoneTransfers]:
    """Return all transfers of `case` without recorded peers, and all that described hardware does not explain."""
    seen = [case.ops.channels[c] for c in np.unique(case.ops.channel[case.analysed & case.matched]) if c >= 0]
    found = [*_beyond_hardware(case, seen), *_through_one_place(case, seen)]
    return [*found, *_unlike(case, {c for one in found for c in one.channels})]


def _beyond_hardware(case: Case, seen: list[Channel]) -> Iterator[LoneTransfers]:
    """The transfers that are longer than described hardware lets them."""
    slow, every = beyond_hardware(case, [c.number for c in seen])
    if slow and case.run.hardware is not None:
        given, found = case.run.hardware.name, _of(case, [c for c in seen if c.number in slow])
        why = f"sound ones on {given} are quicker"
        if every:
            why = f"no transfer is as quick as {given} lets it: it does not describe this job, or all links are slow"
        yield replace(found, which=f"of {ranks_in_words(found.ranks)}", why=why, unfit=every)


def _through_one_place(case: Case, seen: list[Channel]) -> Iterator[LoneTransfers]:
    """The transfers that are compared with each other and all pass the same ranks, or the same node."""
    nodes, sets = nodes_of(case), defaultdict[tuple[tuple[str, ...], bool], list[Channel]](list)
    passed = {c.number: {nodes[m] for m in c.members if m in nodes} for c in seen}
    across = [c for c in seen if len(passed[c.number]) > 1]
    for channel in seen:
        if axes := case.axes_of(channel):
            sets[axes, channel.p2p].append(channel)
    for (axes, p2p), channels in sorted(sets.items()):
        if common := set.intersection(*(set(c.members) for c in channels)):
            yield _along(case, axes, channels, tuple(sorted(common)) if p2p else ())
    if len(across) > 1 and (shared := set.intersection(*(passed[c.number] for c in across))):
        many = f"node{'s' if len(shared) > 1 else ''} {listed(sorted(shared, key=str))}"
        why = f"all pass {many}, and a slow network there slows them alike"
        yield replace(_of(case, across), which="between nodes", why=why, between_nodes=True)


def _along(case: Case, axes: tuple[str, ...], channels: list[Channel], hub: tuple[int, ...]) -> LoneTransfers:
    """The transfers on `channels` along `axes`, messages that all pass the `hub` or collectives of one group."""
    members, along = set(channels[0].members), f"along {'_'.join(axes)}"
    others = sorted(set(case.mesh.coordinates) - members - set(case.steps.ranks))
    lines = (case.mesh.line(r, axes) for r in others)
    peers = next((line for line in lines if members.isdisjoint(line)), ())
    which = f"of messages {along}" if hub else along if peers else f"of the only group {along}"
    why = "no other group along these axes was recorded whole"
    why = why if peers else "this job has no other group to compare with"
    why = f"all pass {ranks_in_words(hub)}, so that a slow link there slows them alike" if hub else why
    return replace(_of(case, channels), which=which, why=why, hub=hub, peers=tuple(peers))


def _unlike(case: Case, found: Collection[int]) -> Iterator[LoneTransfers]:
    """The calls that no other channel makes: those clearly longer than others of the kind, size for size.

    And those without others of the kind, on channels that were not `found` to have no peer.
    """
    kinds: dict[tuple[object, ...], list[tuple[int, list[int], bool]]] = defaultdict(list)
    made = families(case, message_of(case)[0], nodes_of(case), case.waits.complete)
    for (*where, message), channels in made.items():
        calls = [(c, numbers, len(channels) == 1) for c, numbers in channels.items()]
        kinds[*where, message.partition("/")[0]] += calls
    delivery, tokens = case.waits.delivery, case.ops.token[case.waits.first_row]
    expected: dict[tuple[int, bool], dict[int, float]] = defaultdict(dict)
    for calls in kinds.values():
        known = [(c, bytes_of(str(tokens[n[0]])), float(np.median(delivery[n]))) for c, n, _ in calls]
        for (c, size, took), (_, numbers, alone) in zip(known, calls, strict=True):
            usual = _as_large(size, [k[1:] for k in known if k[0] != c]) if alone else np.inf
            if took > KIND_RATIO * usual or (alone and np.isinf(usual) and c not in found):
                expected[c, np.isfinite(usual)].update(dict.fromkeys(numbers, usual))
    for (c, longer), likes in sorted(expected.items()):
        channel = case.ops.channels[c]
        which = f"along {'_'.join(case.axes_of(channel))} of {ranks_in_words(channel.members)}"
        why = f"no other group there makes calls of this size or number{', and theirs are quicker' if longer else ''}"
        yield replace(_of(case, [channel]), which=which, why=why, expected=likes, longer=longer)


def _as_large(size: int, others: Sequence[tuple[int, float]]) -> float:
    """Return what the quickest of `others` (bytes, ns) takes for `size` bytes, ns; infinite without any.

    Large calls move more bytes in the same time than small ones do. Where the size is unknown, the usual call counts.
    """
    if size > 0:
        return min((took * max(1.0, size / n) for n, took in others if n > 0), default=np.inf)
    return float(np.median([took for _, took in others])) if others else np.inf


def _of(case: Case, channels: Sequence[Channel]) -> LoneTransfers:
    """The transfers on `channels`, with the exposed time of the rank that spends most in them."""
    numbers = tuple(c.number for c in channels)
    mine = case.analysed & np.isin(case.ops.channel, numbers)
    moved = np.where(mine, case.ops.exposed - case.waits.exposed_wait, 0)
    spent = float((np.bincount(case.ops.rank, moved) / case.steps.count).max())
    return LoneTransfers(numbers, tuple(sorted({m for c in channels for m in c.members})), spent)


def could_hide(case: Case, found: LoneTransfers) -> Price:
    """Return what a step saves if the transfers of `found` were sound, at least and at most, ns.

    At least: where they take no longer than sound ones on the hardware of the job, and nothing where their size is
    unknown. At most: where they take what that hardware reaches, or no time where their size is unknown.
    """
    sound = sound_transfers(case, found.channels)
    likes = np.array([found.expected.get(n, np.inf) for n in sound.numbers.tolist()])
    if found.longer:
        return Price.up_to(_saved_ns(case, sound.numbers, likes))
    here = np.isin(sound.numbers, list(found.expected or sound.numbers))
    low = _saved_ns(case, sound.numbers[here], sound.most[here])
    return Price.between(low, low, _saved_ns(case, sound.numbers[here], sound.usual[here]))


def prove_no_health(case: Case, found: LoneTransfers, hidden: Price) -> bool:
    """Return whether a job is not called healthy for transfers that could hide `hidden`.

    It is not where they take longer than sound ones. Otherwise a slow link and a slow network look the same, so that it
    needs a large share of the step; not for links between nodes unless they are described, because few networks reach
    the bandwidth that proves health. Where peers can be recorded, it suffices that a link slow by the smallest ratio
    that two groups would show could cost the threshold. Calls that are clearly longer than those of peers prove none.
    """
    least_slow = found.spent * (1 - 1 / KIND_RATIO**2)
    slow = found.longer or hidden.low >= case.suspect_ns
    bounded = not found.between_nodes or case.run.hardware is not None
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
    return (
        could_hide(case, replace(passing[0], channels=channels, expected={}, longer=False)).high
        if passing
        else 0.0
    )


def remedy(case: Case, found: LoneTransfers) -> str:
    """Return what would decide: traces of a peer where there is one, else a measurement, or a right description."""
    if found.unfit:
        return f"give --hardware the machines of this job; if it did, {_MEASURE}"
    lacking = [r for r in found.peers if r not in case.steps.ranks]
    return add_traces(lacking) if lacking else _MEASURE


def in_words(case: Case, found: LoneTransfers, hidden: Price) -> str:
    """Return the sentence about the transfers of `found`: how long, how fast, why no peer; they may hide `hidden`."""
    numbers, size = sized(case, found.channels)
    known = (size > 0) & (case.waits.delivery[numbers] > 0)
    rate = "an unknown bandwidth (sizes were not recorded)"
    if known.any():
        speed = float(size[known].sum()) / float(case.waits.delivery[numbers[known]].sum())
        rate = f"a bus bandwidth of {speed:.3g} GB/s"
    if hidden.low > 0:
        rate += f" (the slowest sound network of such devices would save {ms(hidden.low):.1f} ms a step)"
    return f"the transfers {found.which} take {of_step(case, found.spent)} at {rate}, and {found.why}"


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
