"""Ranks without a trace: the recorded ranks may wait for one of them.

An operation with an unrecorded member is compared with complete operations of its kind, else with the same operation in
the other data-parallel replicas. Without either, waiting and transfer cannot be separated.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.sound_transfers import beyond_likes, beyond_quickest, slowest_ns
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.axes import crosses_replicas
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.thresholds.slowrank import MINOR
from tracekit.timing.buffered_sends import bytes_of
from tracekit.units import F64, ms


class Kind(NamedTuple):
    """A kind of comparable operations."""

    message: str
    shape: tuple[object, ...]  # of the channel
    stages: tuple[int, ...]  # pipeline stages of its members; empty for those at any stage
    recorded: tuple[int, ...] = ()  # stages of its recorded members, if these are some of a collective's


@dataclass(frozen=True)
class Unseen:
    """What ranks without a trace may cost, ns a step on the rank that loses most.

    known: excess of operations with unrecorded members over others of their kind. undecided: time in such operations
    without anything to compare with. ranks: unrecorded members of the operations in `known`, worst first; without such,
    of those in `undecided`. awaited: the part of `undecided` beyond what the slowest network needs, or beyond the
    fastest transfer of the same message, which may be waiting.
    """

    known: float
    undecided: float
    ranks: tuple[int, ...]
    awaited: float = 0.0


def waited_for_missing(case: Case) -> Unseen:
    """Return the time that the recorded ranks wait for ranks without a trace.

    Members wait for each other in every job, so the expected time is the transfer plus the wait of the other members if
    one member of a complete operation is left out.
    """
    missing = frozenset(case.missing)
    partial = _partial(case, missing)
    open_ends = _open_ends(case) if missing else {}
    if not partial and not open_ends:
        return Unseen(0.0, 0.0, ())
    over: dict[int, float] = {}
    undecided: dict[int, float] = {}
    unsized: dict[int, float] = {}
    longer: dict[int, float] = {}
    kinds: dict[Kind, dict[int, float]] = defaultdict(dict)
    for row, spent in partial.items():
        kinds[_kind(case, row)][row] = spent
    usual, shortest = _usual(case, kinds), _usual(case, kinds, min)
    for kind, group in kinds.items():
        compared = _beside_complete(group, usual.get(kind))
        if compared is None:
            compared = _beside_replicas(case, kind, group)
            undecided.update({} if compared is None else _in_every_replica(group))
        if not compared and bytes_of(kind.message) < 0:  # those of other stages may move other sizes
            unsized.update(_beside_complete(group, shortest.get(_any_stage(kind))) or {})
        compared = compared or _beside_complete(group, usual.get(_any_stage(kind)))
        over.update(compared or {})
        undecided.update(group if compared is None else {})
        longer.update(beyond_quickest(case, [*group]) if compared is None else {})
    lasted = {row: float(case.waits.transfer[case.ops.instance[row]]) for row in longer}
    awaited = max(beyond_network(case, undecided), _worst(case, longer), beyond_others(case, lasted))
    undecided.update(unsized)
    known, named = _worst(case, over), _behind(case, over, missing)
    if not named:  # one rank waits longer, but no unrecorded rank makes its groups wait in total
        known, named = 0.0, _behind(case, undecided, missing)
    undecided.update(open_ends)
    named = named or (tuple(sorted(missing)) if open_ends else ())
    return Unseen(known, _worst(case, undecided), named, awaited)


def reason_of(case: Case, unseen: Unseen) -> str:
    """Return the sentence on how long the recorded ranks wait, or may wait, and for which ranks."""
    found = unseen.known >= case.threshold_ns
    spent = ms(unseen.known if found else unseen.undecided)
    doubt = "" if found else ", and no recorded operation shows whether they wait there"
    ranks = unseen.ranks if found else sorted(unseen.ranks)  # worst first, where some are worse
    traces = "its trace" if len(ranks) == 1 else "their traces"
    return (
        f"the ranks read {'wait' if found else 'spend'} {spent:.1f} ms of {ms(case.step_ns):.1f} ms a step in groups "
        f"with {ranks_in_words(ranks)}, which left no trace{doubt}; add {traces}"
    )


def partial_rows(case: Case, missing: frozenset[int]) -> list[int]:
    """Return the rows of the analysed operations that have a member among the `missing` ranks."""
    ops = case.ops
    absent = np.array([bool(missing & set(c.members)) for c in ops.channels] or [False])
    found = np.flatnonzero((ops.channel >= 0) & absent[np.maximum(ops.channel, 0)] & case.analysed)
    return [int(row) for row in found]


def beyond_network(case: Case, spent: Mapping[int, float]) -> float:
    """Return the largest total of `spent` (by operation, ns) on a rank beyond the slowest network's need, ns a step.

    Of GPU collectives: the last recorded member may wait for an unrecorded one, and the network bounds its transfer.
    """
    ops = case.ops
    beyond = {
        row: max(lasted - slowest_ns(str(ops.token[row])), 0.0)
        for row, lasted in spent.items()
        if ops.per_rank[int(ops.rank[row])].on_gpu and not ops.channels[int(ops.channel[row])].p2p
    }
    return _worst(case, beyond)


def beyond_others(case: Case, lasted: Mapping[int, float]) -> float:
    """Return the largest total of `beyond_likes` on one rank, ns a step."""
    return _worst(case, beyond_likes(case, lasted))


def _partial(case: Case, missing: frozenset[int]) -> dict[int, float]:
    """The least exposed time of each analysed operation that has a member without a trace, ns."""
    ops, waits = case.ops, case.waits
    found = {}
    for i in partial_rows(case, missing):
        alone = ops.channels[int(ops.channel[i])].p2p or ops.instance[i] < 0
        least = ops.end[i] - ops.start[i] if alone else waits.transfer[ops.instance[i]]
        found[i] = float(min(least, ops.exposed[i]))
    return found


def _beside_complete(group: Mapping[int, float], should: float | None) -> dict[int, float] | None:
    """The time of each operation beyond the usual one `should` of complete operations, ns; None where that is None."""
    return None if should is None else {row: spent - should for row, spent in group.items()}


def _any_stage(kind: Kind) -> Kind:
    return kind._replace(stages=())


def _kind(case: Case, row: int) -> Kind:
    channel = case.ops.channels[int(case.ops.channel[row])]
    token = case.ops.op if channel.p2p else case.ops.token
    stages = [case.mesh.stage(r) for r in channel.members]
    if channel.p2p:
        return Kind(str(token[row]), case.shape_of(channel), tuple(stages))
    every = tuple(sorted(set(stages)))
    there = zip(stages, channel.members, strict=True)
    recorded = tuple(sorted({stage for stage, r in there if r in case.ops.per_rank}))
    return Kind(str(token[row]), case.shape_of(channel), every, () if recorded == every else recorded)


def _beside_replicas(case: Case, kind: Kind, group: Mapping[int, float]) -> dict[int, float] | None:
    """The time of each operation beyond the lower median of the replicas, ns; None where replicas cannot be compared.

    The lower median is right if fewer than half of the replicas, or one of two, wait for an unrecorded rank. Where a
    stage was not recorded at all, it may be too long in every replica.
    """
    ops = case.ops
    spent: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row, ns in group.items():
        rank = int(ops.rank[row])
        spent[case.mesh.replica(rank)][rank] += ns
    count = Counter(ops.rank[[*group]].tolist())
    seen = {case.mesh.stage(r) for r in ops.ranks}
    across = crosses_replicas(str(axis[0] if isinstance(axis, tuple) else axis) for axis in kind.shape)
    if across or len(spent) < 2 or not seen.issuperset(kind.stages):
        return None
    levels = sorted(float(np.mean(list(by_rank.values()))) for by_rank in spent.values())
    usual = levels[(len(levels) - 1) // 2]
    return {row: ns - usual / count[int(ops.rank[row])] for row, ns in group.items()}


def _in_every_replica(group: Mapping[int, float]) -> dict[int, float]:
    """The time of each operation beyond the shortest one, ns: all replicas may wait for unrecorded ranks."""
    least = min(group.values())
    return {row: spent - least for row, spent in group.items()}


def _open_ends(case: Case) -> dict[int, float]:
    """The exposed time of messages without a known peer and collectives without a known group, ns, by operation.

    Their unknown members may be ranks without a trace.
    """
    ops = case.ops
    rows = np.flatnonzero((ops.channel < 0) & case.analysed & ~ops.among(("other",)))
    return {int(row): float(ops.exposed[row]) for row in rows}


def _worst(case: Case, over: Mapping[int, float]) -> float:
    """The largest total of `over` (by operation) on one rank, ns a step: 0 where none is positive, at most the step."""
    lost: dict[int, float] = defaultdict(float)
    for row, value in over.items():
        lost[int(case.ops.rank[row])] += value
    return min(max(0.0, *lost.values(), 0.0) / case.steps.count, case.step_ns)


def _behind(case: Case, over: Mapping[int, float], missing: frozenset[int]) -> tuple[int, ...]:
    """The ranks without a trace, by the time that others spend in operations with them, longest first.

    Unrecorded members of the group in which others spend most cannot be separated: all are named or none.
    """
    blame: dict[int, float] = defaultdict(float)
    groups: dict[tuple[int, ...], float] = defaultdict(float)
    for row, value in over.items():
        members = case.ops.channels[int(case.ops.channel[row])].members
        groups[members] += value
        for rank in missing.intersection(members):
            blame[rank] += value
    worst = max(blame.values(), default=0.0)
    kept = {r for r, v in blame.items() if v > 0 and v >= MINOR * worst}
    first = max(groups, key=lambda g: (groups[g], g), default=())
    if kept.intersection(first):
        kept |= missing.intersection(first)
    return tuple(sorted(kept, key=lambda r: (-blame[r], r)))


def _usual(
    case: Case, asked: Iterable[Kind], usual_of: Callable[[list[float]], float] = fmean
) -> dict[Kind, float]:
    """The mean exposed time of complete operations (or what `usual_of` returns), by kind, and by kind at any stage; ns.

    A message counts with its pipeline bubble. A collective counts with its shortest member, averaged over which member
    could be unrecorded; for `asked` kinds with members of some stages only, with the shortest of these stages.
    """
    ops, waits = case.ops, case.waits
    spent: dict[Kind, list[float]] = defaultdict(list)
    for i in np.flatnonzero((ops.instance >= 0) & ops.among(MESSAGES)).tolist():
        spent[_kind(case, i)].append(float(min(ops.exposed[i], ops.end[i] - ops.start[i])))
    least, of_stage = _least(case), _least_of_stages(case)
    parts: dict[Kind, list[Kind]] = defaultdict(list)
    for part in asked:
        parts[part._replace(recorded=())] += [part] if part.recorded else []
    for number in np.flatnonzero(waits.complete & np.isfinite(least)).tolist():
        row = int(waits.first_row[number])
        if str(ops.op[row]) not in MESSAGES:
            kind = _kind(case, row)
            spent[kind].append(float(least[number]))
            spent[_any_stage(kind)].append(float(least[number]))
            for part in parts.get(kind, ()):
                spent[part].append(float(of_stage[number, list(part.recorded)].min()))
    return {k: float(usual_of(v)) for k, v in spent.items()}


def _least_of_stages(case: Case) -> F64:
    """The duration of the shortest member of each stage, instances × stages, ns; infinite where it has none."""
    ops, stage = case.ops, {rank: case.mesh.stage(rank) for rank in case.ops.ranks}
    shortest = np.full((len(case.waits.members), case.mesh.stages), np.inf)
    rows = np.flatnonzero(ops.instance >= 0)
    stages = np.array([stage[rank] for rank in ops.rank[rows].tolist()], np.int64)
    np.minimum.at(shortest, (ops.instance[rows], stages), (ops.end - ops.start)[rows].astype(np.float64))
    return shortest


def _least(case: Case) -> F64:
    """The mean duration of the shortest member of each instance if any one member is left out, ns; infinite for one."""
    ops, waits = case.ops, case.waits
    duration = (ops.end - ops.start).astype(np.float64)
    second = np.full(len(waits.members), np.inf)
    rows = np.flatnonzero(ops.instance >= 0)
    rows = rows[waits.last[ops.instance[rows]] != rows]
    np.minimum.at(second, ops.instance[rows], duration[rows])
    return np.asarray(waits.transfer + (second - waits.transfer) / np.maximum(waits.members, 1), np.float64)
