"""Replays ranks without a trace, which gives the waits that need no slow unseen rank.

An unseen rank is a copy of a typical recorded one of its stage, in the corresponding groups. What slows all recorded
ranks of its host slows it as well. Where its stage has none, it is a relay. If the step model with such ranks gives the
recorded waits, nothing shows that an unseen rank is slow; if the recorded ranks wait longer than it gives, they wait
for an unseen rank.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ne

import numpy as np
import numpy.typing as npt

from tracekit.matching.channels import Channel
from tracekit.rank_events.coded_words import numbered
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.step_graph.rank_timeline import MARK, NEED, POST, RankTimeline
from tracekit.step_graph.relays import Relay, least_transfers, relays_of
from tracekit.step_graph.replay import StepModel, StepRun
from tracekit.step_graph.statistics import Excess
from tracekit.timing.buffered_sends import as_most_sends
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64

Place = tuple[Hashable, str, int, int]
"""(channel, kind, step, ordinal of the operation among one member's operations of that kind in that step)."""


@dataclass(frozen=True)
class StandIns:
    """A step model with ranks without a trace: copies of typical peers, and relays.

    ranks: the rank of each of their operations, which follow the recorded ones. relayed, copied: whether some are.
    """

    model: StepModel
    ranks: I64
    relayed: bool
    copied: bool

    @property
    def lines(self) -> list[list[RankTimeline]]:
        """The timelines of ranks without a trace, by run of steps."""
        first = len(self.model.instance) - len(self.ranks)
        return [[line for line in lines if (line.events >= first).any()] for _, lines in self.model.runs]


def with_unseen(
    run: Measured, model: StepModel, found: Excess, nodes: Mapping[int, str | int],
    late: float = np.inf, most: float = np.inf, *, copied: bool = True,
) -> StandIns | None:  # fmt: skip
    """Return `model` of `run` with ranks without a trace; None if no rank is unseen, or results precede inputs.

    A rank is a copy of a typical peer of its stage, as `found` shows; `nodes` are the hosts of ranks, as far as known:
    it works like those of its host where all of them are slow. Without such a peer it is a relay, as all are unless
    `copied`. These work as long as the recording admits, but no longer than stages that work `most`, ns a step, and
    where all receivers came after their results, no longer than stages that work `late`.
    """
    missing = [r for r in run.missing if r in run.mesh.coordinates]
    if not missing or len(missing) < len(run.missing):
        return None
    known = {r: row for r in missing if copied and (row := _like(run, found, nodes, r)) is not None}
    draft, runs, relayed = _Draft(run, model, frozenset(known)), list[StepRun](), len(known) < len(missing)
    for columns, lines in model.runs:
        steps = [run.steps.numbers[c] for c in columns]
        relays = tuple(relays_of(run, lines, known, steps)) if relayed else ()
        if relayed and not _hold(relays, lines):
            return None
        for relay in relays:
            draft.join(relay)
        by_row = {line.row: line for line in lines}
        added = [
            replace(by_row[row], events=draft.copied(by_row[row].events, run.steps.ranks[row], rank))
            for rank, row in known.items()
            if row in by_row
        ]
        for row, relay in enumerate(relays, len(run.steps.ranks)):
            added.append(draft.relayed(relay, *relay.works(late, most, len(columns)), row))
        runs.append((columns, (*lines, *added)))
    return StandIns(draft.model(tuple(runs)), np.array(draft.ranks, np.int64), relayed, bool(known))


def _hold(relays: Sequence[Relay], lines: Sequence[RankTimeline]) -> bool:
    """Whether there are `relays` beside `lines`, and all their results follow their inputs."""
    cut = any((line.kinds == MARK).any() for line in lines)
    return bool(relays) and not cut and not any((relay.given > relay.due).any() for relay in relays)


def _like(run: Measured, found: Excess, nodes: Mapping[int, str | int], rank: int) -> int | None:
    """Return the row of the rank that `rank` is assumed to work like: of its stage and data, without an excess.

    Where all of the recorded ranks of its stage on its host have an excess, two or more, it is one of these.
    """
    mesh, steps, slow = run.mesh, run.steps, np.nan_to_num(found.z) > found.limit
    stage = run.stages[mesh.stage(rank)]
    host = np.array([nodes.get(steps.ranks[row]) == nodes.get(rank) for row in stage.tolist()], bool)
    mates = stage[host] if rank in nodes else stage[:0]
    struck = len(mates) > 1 and bool(slow[mates].all())
    like = mates if struck else stage[~slow[stage]]

    def far(row: int) -> tuple[bool, int, float, int]:
        """Other data first, which may be more or less work, then other coordinates."""
        it = steps.ranks[row]
        apart = sum(map(ne, mesh.coordinates[it], mesh.coordinates[rank]))
        return mesh.replica(it) != mesh.replica(rank), apart, abs(float(found.mean[row])), row

    return min(like[np.isfinite(steps.own[like]).all(axis=1)].tolist(), key=far, default=None)


@dataclass
class _Draft:
    """A step model while operations of unseen ranks are added to it; `copies` are those with a peer."""

    run: Measured
    base: StepModel
    copies: frozenset[int]

    def __post_init__(self) -> None:
        """Number each operation that a copy takes part in, and give it a transfer without a wait for it."""
        run, base = self.run, self.base
        self.instance, self.transfer = base.instance.tolist(), base.transfer.tolist()
        self.fixed, self.later = base.fixed.tolist(), base.later.tolist()
        self.made: dict[tuple[int, int], int] = {}
        self.number: dict[Place, int] = {}
        self.ranks: list[int] = []
        self.named = _named(run.ops.channels)
        self.rank_at = {place: rank for rank, place in run.mesh.coordinates.items()}
        self.moved: dict[tuple[int, int, int], Hashable] = {}
        self.partial = [not self.copies.isdisjoint(c.members) for c in run.ops.channels]
        self.groups = self._groups()
        self.place = _places(run)
        self.eager = as_most_sends(run.ops, run.buffered.eager)
        self.least, _ = least_transfers(run)
        for row in self._rows():
            at = self._at(row, self.named[int(run.ops.channel[row])])
            known = self.instance[row] if self.instance[row] >= 0 else self.number.get(at, len(self.transfer))
            number = self.number.setdefault(at, known)
            usual = float(self.least[row])
            if number == len(self.transfer):
                self.transfer.append(usual)
            self.transfer[number] = min(self.transfer[number], usual)
            if self.instance[row] < 0:
                self.instance[row] = number
                self.fixed[row] = self.fixed[row] if self.eager[row] else -1.0

    def _rows(self) -> Iterator[int]:
        """Yield recorded operations that a copy takes part in, matched ones first."""
        ops = self.run.ops
        mine = (ops.channel >= 0) & np.array([*self.partial, False], bool)[ops.channel] & self.run.analysed
        yield from np.flatnonzero(mine & (ops.instance >= 0)).tolist()
        yield from np.flatnonzero(mine & (ops.instance < 0)).tolist()

    def _at(self, row: int, channel: Hashable) -> Place:
        ops = self.run.ops
        kind = "message" if ops.op[row] in MESSAGES else str(ops.op[row])  # equal for both ends
        return channel, kind, int(ops.step[row]), int(self.place[row])

    def copied(self, events: npt.NDArray[np.int32], like: int, rank: int) -> npt.NDArray[np.int32]:
        """Return the operations of `rank` that correspond to those of `like` in `events`."""
        return np.array([self._copy(row, like, rank) for row in events.tolist()], np.int32)

    def _copy(self, row: int, like: int, rank: int) -> int:
        """Return the operation of `rank` that corresponds to the operation `row` of `like`."""
        if (rank, row) in self.made:
            return self.made[rank, row]
        ops, number = self.run.ops, self.instance[row]  # without a channel, that of its stage
        if ops.channel[row] >= 0:
            at = self._at(row, self._moved(int(ops.channel[row]), like, rank))
            number = self.number.get(at, len(self.transfer))
            self.number[at] = number
            if number == len(self.transfer):
                same = self.instance[row]  # a slow link of `like` is not one of `rank`
                self.transfer.append(min(self.transfer[same], self.least[row]) if same >= 0 else 0.0)
        self.made[rank, row] = len(self.instance)
        alone = number < 0 or self.eager[row]
        self.instance.append(number)
        self.fixed.append(float(self.base.fixed[row]) if alone else -1.0)
        self.later.append(float(self.base.later[row]))
        self.ranks.append(rank)
        return self.made[rank, row]

    def join(self, relay: Relay) -> None:
        """Let `relay` take part in its inputs and results; unchanged where others do.

        A message of the same kernel as a result takes no longer than a result.
        """
        ops, quick = self.run.ops, np.full(len(relay.results), relay.quick)
        beside = np.isin(ops.kernel[relay.inputs], ops.kernel[relay.results])
        lasted = np.where(beside, quick, (ops.end - ops.start)[relay.inputs])
        both = np.append(relay.inputs, relay.results), np.append(lasted, quick)
        for event, ns in zip(*(column.tolist() for column in both), strict=True):
            if self.instance[event] < 0:
                self.instance[event], self.fixed[event] = len(self.transfer), -1.0
                self.transfer.append(ns)

    def relayed(self, relay: Relay, needs: I64, works: F64, row: int) -> RankTimeline:
        """Return the timeline of `relay` in `row`, which needs an input and then posts each result.

        It ends with the last operation that the rank which gets results waits for.
        """
        ranks, begin, many = self.run.ops.rank, len(self.instance), 2 * len(relay.results)
        events = np.stack([relay.inputs[needs], relay.results], axis=1).ravel().tolist()
        events += relay.near.events[relay.near.kinds == NEED].tolist()
        events = [self.made.get((relay.beside[int(ranks[at])], at), at) for at in events]
        events[many:] = [at for at in events[many:] if self.instance[at] >= 0 and self.fixed[at] < 0][-1:]
        self.instance += [self.instance[at] for at in events]
        self.fixed += [-1.0] * len(events)
        self.later += [0.0] * len(events)
        self.ranks += [relay.rank] * len(events)
        kinds = np.array([NEED, POST] * (many // 2) + [NEED] * (len(events) - many), np.int8)
        readings = np.cumsum(np.append(works, np.zeros(len(events) - many)))
        knots, numbers = np.array([0.0, readings[-1]]), np.arange(begin, begin + len(events), dtype=np.int32)
        return RankTimeline(row, kinds, readings, numbers, knots, knots, (), relay.near.start)

    def _moved(self, channel: int, like: int, rank: int) -> Hashable:
        """Return the channel of `rank` that corresponds to `channel` of `like`: of a group the one that it is in.

        Without such a group, and for messages, `channel` is shifted by the mesh offset; members outside the mesh stay.
        """
        if (channel, like, rank) not in self.moved:
            mesh, (members, p2p, copy) = self.run.mesh, self.named[channel]
            sizes = [mesh.sizes[d] for d in mesh.order]
            by = [b - a for a, b in zip(mesh.coordinates[like], mesh.coordinates[rank], strict=True)]
            found = []
            for member in members:
                where = mesh.coordinates.get(member)
                at = where and tuple((c + d) % s for c, d, s in zip(where, by, sizes, strict=True))
                found.append(self.rank_at.get(at, member) if at else member)
            mine = set() if p2p else self.groups[rank, *self._extent(channel)]
            shifted = tuple(found) if p2p else tuple(sorted(found))
            self.moved[channel, like, rank] = next(iter(mine)) if len(mine) == 1 else shifted, p2p, copy
        return self.moved[channel, like, rank]

    def _groups(self) -> Mapping[Hashable, set[tuple[int, ...]]]:
        """Return by rank, size and axes of a group the members of all such groups that the rank is in."""
        found: dict[Hashable, set[tuple[int, ...]]] = defaultdict(set)
        for channel, (members, p2p, _) in enumerate(self.named):
            for rank in () if p2p else members:
                found[rank, *self._extent(channel)].add(members)
        return found

    def _extent(self, channel: int) -> tuple[int, Hashable]:
        """Return the size of a channel and its axes."""
        found = self.run.ops.channels[channel]
        return len(found.members), self.run.shape_of(found)

    def model(self, runs: tuple[StepRun, ...]) -> StepModel:
        """Return the model with the added operations."""
        more = np.full(len(self.transfer) - len(self.base.before), -1)
        return replace(
            self.base, runs=runs, instance=np.array(self.instance, np.int64), fixed=np.array(self.fixed, np.float64),
            transfer=np.array(self.transfer, np.float64), before=np.append(self.base.before, more),
            later=np.array(self.later, np.float64), caused=self._caused(),
        )  # fmt: skip

    def _caused(self) -> I64:
        """Return the pairs of instances in which one starts when the other ends, with the pairs of unseen ranks."""
        ops, base, asked = self.run.ops, self.base, defaultdict(list)
        for late, of in base.caused.T.tolist():
            asked[late].append(of)
        mine = {(int(ops.rank[row]), int(base.instance[row])): row for _, row in self.made}
        pairs = {
            (self.instance[copy], self.instance[self.made[rank, before]])
            for (rank, row), copy in self.made.items()
            for of in asked.get(int(base.instance[row]), ())
            if (before := mine.get((int(ops.rank[row]), of))) is not None and (rank, before) in self.made
        }
        more = sorted(pairs - set(map(tuple, base.caused.T.tolist())))
        return np.concatenate([base.caused, np.array(more, np.int64).reshape(-1, 2).T], axis=1)


def _named(channels: tuple[Channel, ...]) -> list[tuple[tuple[int, ...], bool, tuple[bool, int]]]:
    """Return by channel (members, whether between two ranks, whether inferred and its number among such of them)."""
    seen: Counter[tuple[tuple[int, ...], bool, bool]] = Counter()
    found = []
    for channel in channels:
        members = channel.members if channel.p2p else tuple(sorted(channel.members))
        key = members, channel.p2p, channel.inferred  # recorded and inferred peers are two channels
        found.append((members, channel.p2p, (channel.inferred, seen[key])))
        seen[key] += 1
    return found


def _places(run: Measured) -> I64:
    """Return by operation its ordinal among those of its rank, channel, kind and step."""
    ops = run.ops
    words, code = ops.kinds
    sort = numbered("message" if word in MESSAGES else word for word in words)[1][code]
    key = np.stack([ops.rank, ops.channel, sort, ops.step], axis=1).astype(np.int64)
    order = np.lexsort((np.arange(len(key)), ops.step, sort, ops.channel, ops.rank))
    fresh = np.ones(len(order), bool)
    fresh[1:] = (np.diff(key[order], axis=0) != 0).any(axis=1)
    place = np.empty(len(order), np.int64)
    at = np.arange(len(order))
    place[order] = at - np.maximum.accumulate(np.where(fresh, at, 0))
    return place
