"""Replays ranks without a trace as typical peers, which gives the waits that need no slow unseen rank.

An unseen rank runs the program of a recorded one of its stage, in the corresponding groups. What slows all recorded
ranks of its host slows it as well. If the step model with such
ranks gives the recorded waits, nothing shows that an unseen rank is slow; if the recorded ranks wait longer than it
gives, they wait for an unseen rank.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracekit.matching.channels import Channel
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import numbered
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.statistics import Excess
from tracekit.timing.buffered_sends import as_most_sends, bytes_of
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask

Place = tuple[Hashable, str, int, int]
"""(channel, kind, step, ordinal of the operation among one member's operations of that kind in that step)."""


@dataclass(frozen=True)
class Copies:
    """A step model with copies of typical peers for ranks without a trace.

    ranks: the rank of each operation of a copy; these follow the recorded ones.
    """

    model: StepModel
    ranks: I64

    @property
    def lines(self) -> list[list[RankTimeline]]:
        """The timelines of copies, by run of steps."""
        first = len(self.model.instance) - len(self.ranks)
        return [[line for line in lines if (line.events >= first).any()] for _, lines in self.model.runs]


def with_unseen(
    run: Measured, model: StepModel, found: Excess, nodes: Mapping[int, str | int]
) -> Copies | None:
    """Return `model` of `run` with ranks without a trace that work like typical peers; `found` shows which are typical.

    `nodes` are the hosts of ranks, as far as known: a rank works like those of its host where all of them are slow.
    None if no rank is unseen, or if a stage was not recorded at all.
    """
    missing = [r for r in run.missing if r in run.mesh.coordinates]
    if not missing or len(missing) < len(run.missing):
        return None
    known = {r: row for r in missing if (row := _like(run, found, nodes, r)) is not None}
    if len(known) < len(missing):
        return None
    draft = _Draft(run, model)
    lines: list[tuple[tuple[int, ...], tuple[RankTimeline, ...]]] = []
    for columns, timelines in model.runs:
        by_row = {line.row: line for line in timelines}
        added = [
            replace(by_row[row], events=draft.copied(by_row[row].events, run.steps.ranks[row], rank))
            for rank, row in known.items()
            if row in by_row
        ]
        lines.append((columns, (*timelines, *added)))
    return Copies(draft.model(tuple(lines)), np.array([rank for rank, _ in draft.made], np.int64))


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
    far = {
        row: (
            mesh.replica(steps.ranks[row]) != mesh.replica(rank),  # other data may be more or less work
            sum(
                a != b
                for a, b in zip(mesh.coordinates[steps.ranks[row]], mesh.coordinates[rank], strict=True)
            ),
        )
        for row in like[np.isfinite(steps.own[like]).all(axis=1)].tolist()
    }
    return min(far, key=lambda row: (far[row], abs(float(found.mean[row])), row), default=None)


def least_transfers(run: Measured) -> tuple[F64, Mask]:
    """Return by operation (the transfer of complete ones of its kind in a typical group, ns; whether that is shown).

    Without a complete one, the shortest duration, which is a transfer where several replicas recorded the kind: not all
    of them always wait for an unrecorded rank, unless that is of a stage without any trace. Infinite for operations of
    unknown groups.
    """
    ops, waits, seen = run.ops, run.waits, {run.mesh.stage(rank) for rank in run.ops.ranks}
    kinds = {row: _kind(run, row) for row in np.flatnonzero((ops.channel >= 0) & run.analysed).tolist()}
    whole: dict[Hashable, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    shortest: dict[Hashable, float] = defaultdict(lambda: np.inf)
    replicas: dict[Hashable, set[int]] = defaultdict(set)
    within = [_replica(run, channel, seen) for channel in ops.channels]
    for row, kind in kinds.items():
        shortest[kind] = min(shortest[kind], float(ops.end[row] - ops.start[row]))
        replicas[kind] |= within[int(ops.channel[row])]
        if (number := int(ops.instance[row])) >= 0 and waits.complete[number]:
            whole[kind][int(ops.channel[row])].append(float(waits.transfer[number]))
    usual = shortest | {
        kind: float(
            np.quantile([np.median(ns) for ns in of.values()], 0.5, method="lower")
        )  # of two the sound one
        for kind, of in whole.items()
    }
    least, shown = np.full(len(ops.start), np.inf), np.zeros(len(ops.start), bool)
    for row, kind in kinds.items():
        least[row], shown[row] = usual[kind], kind in whole or len(replicas[kind]) > 1
    return least, shown


def _replica(run: Measured, channel: Channel, stages: Collection[int]) -> set[int]:
    """Return the replica of the members of `channel`; none where they are of several, or not all of the `stages`."""
    found = {run.mesh.replica(rank) for rank in channel.members}
    return found if len(found) == 1 and {run.mesh.stage(r) for r in channel.members} <= set(stages) else set()


def _kind(run: Measured, row: int) -> Hashable:
    """Return the kind of an operation; of a stage, where the size is unknown and stages may move different ones."""
    channel, token = run.ops.channels[int(run.ops.channel[row])], str(run.ops.token[row])
    stages = {run.mesh.stage(rank) for rank in channel.members} if bytes_of(token) < 0 else ()
    return token, channel.p2p, run.shape_of(channel), tuple(sorted(stages))


@dataclass
class _Draft:
    """A step model while operations of unseen ranks are added to it."""

    run: Measured
    base: StepModel

    def __post_init__(self) -> None:
        """Number each operation that an unseen rank takes part in, and give it a transfer without a wait for it."""
        run, base = self.run, self.base
        self.instance, self.transfer = base.instance.tolist(), base.transfer.tolist()
        self.fixed, self.later = base.fixed.tolist(), base.later.tolist()
        self.made: dict[tuple[int, int], int] = {}
        self.number: dict[Place, int] = {}
        seen = set(run.ops.ranks)
        self.named = _named(run.ops.channels)
        self.rank_at = {place: rank for rank, place in run.mesh.coordinates.items()}
        self.moved: dict[tuple[int, int, int], Hashable] = {}
        self.partial = [not seen.issuperset(c.members) for c in run.ops.channels]
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
        """Yield recorded operations that an unseen rank takes part in, matched ones first."""
        ops = self.run.ops
        mine = (ops.channel >= 0) & np.array([*self.partial, False], bool)[ops.channel] & self.run.analysed
        yield from np.flatnonzero(mine & (ops.instance >= 0)).tolist()
        yield from np.flatnonzero(mine & (ops.instance < 0)).tolist()

    def _at(self, row: int, channel: Hashable) -> Place:
        ops = self.run.ops
        return channel, _sort_of(ops, row), int(ops.step[row]), int(self.place[row])

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
        return self.made[rank, row]

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

    def model(self, runs: tuple[tuple[tuple[int, ...], tuple[RankTimeline, ...]], ...]) -> StepModel:
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


def _sort_of(ops: Operations, row: int) -> str:
    """Return the kind of an operation, equal for both ends of a message."""
    return "message" if ops.op[row] in MESSAGES else str(ops.op[row])
