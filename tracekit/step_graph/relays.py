"""Replays unrecorded pipeline stages as relays: each result follows its input, as it did in the recording.

Messages show when a stage without a trace got each input, and when its result arrived. It works on one micro-batch
after the other, so that no result took longer than from its input, or from its previous result, until it was there. If
an input comes earlier, so does its result. Activations go down the pipeline and gradients up it; where the last stages
are unrecorded, a gradient answers an activation. The recording shows as well what operations with unrecorded ranks take
without a wait for them.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracekit.matching.channels import Channel
from tracekit.matching.clock import aligned
from tracekit.step_graph.rank_timeline import RankTimeline
from tracekit.step_graph.statistics import NO_ROWS, Excess
from tracekit.thresholds.slowrank import CLEARLY_MORE
from tracekit.timing.buffered_sends import bytes_of
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class Relay:
    """An unrecorded rank: operations that brought its inputs and their results, in order of results; times in ns.

    rank: its number. beside: for each rank whose messages these are, that of its own pipeline. near: the timeline of a
    recorded rank that gets results. quick: the shortest transfer. moves: what messages take between two results. given,
    due: when inputs and results were there at the latest, aligned. waited: whether the receiver waited for a result.
    way: the channel of each result. ways: how many results a micro-batch has. stages: how many unrecorded stages lie
    between an input and its result.
    """

    rank: int
    beside: Mapping[int, int]
    near: RankTimeline
    inputs: I64
    results: I64
    quick: float
    moves: float
    given: F64
    due: F64
    waited: Mask
    way: I64
    ways: int
    stages: int

    @cached_property
    def newest(self) -> I64:
        """By result, the newest input before one that its receiver waited for, else its own input."""
        order = np.argsort(self.given, kind="stable")
        newest = order[np.searchsorted(self.given[order], self.due, side="right") - 1]
        return np.where(self.waited, newest, np.arange(len(order)))

    @cached_property
    def longest(self) -> F64:
        """By result, the longest work on another of its way that a receiver waited for, ns; infinite without any."""
        works = self.due - np.maximum(np.append(self.near.start, self.due[:-1]), self.given)
        found = np.full(len(works), np.inf)
        for way in np.unique(self.way).tolist():
            mine = self.way == way
            if (mine & self.waited).any():
                found[mine] = works[mine & self.waited].max()
        return found

    def works(self, late: float, most: float, steps: int) -> tuple[I64, F64]:
        """Return by result the input that it follows, and, times 2, how long the relay moves messages, then works, ns.

        After a result it sends that one and receives the next input. Stages work at most `most`, ns in each of `steps`.
        A receiver may come after its result. Such a result takes at most as long as the longest one of its way that a
        receiver waited for, or as its part of `late`, ns a step, if no receiver waited.
        """
        needs = self.newest if late < np.inf else np.arange(len(self.inputs))
        share = steps * self.ways / len(self.results)  # of a micro-batch in a step
        late, each = late * share, most * share
        passed = self.given[self.newest] + self.stages * each + 2 * (self.stages - 1) * self.quick
        ready, works = self.near.start, list[float]()
        moments = (of.tolist() for of in (self.given[needs], self.due, passed, self.waited, self.longest))
        for given, due, soon, waited, longest in zip(*moments, strict=True):
            moved = min(self.moves, max(due - ready, 0.0)) if works else 0.0
            begin = max(ready + moved, given)
            least = np.inf if waited else begin + (longest if np.isfinite(longest) else late / self.ways)
            ready = max(min(due, least, max(soon, ready + each / self.ways)), begin)
            works += [moved, ready - begin]
        return needs, np.array(works)


def usual_work_ns(run: Measured, found: Excess) -> float:
    """Return how long a typical rank works and moves data in its stage, ns a step; `found` shows which are typical."""
    inside = np.flatnonzero(run.analysed & run.matched & ~run.in_message)
    moved = run.by_step(inside, (run.ops.exposed - run.waits.exposed_wait)[inside])
    usual = run.steps.means(run.steps.own + moved)[np.nan_to_num(found.z) <= found.limit]
    return float(np.nanmedian(usual)) if np.isfinite(usual).any() else np.inf


def relays_of(
    run: Measured, lines: tuple[RankTimeline, ...], copied: Mapping[int, int], steps: list[int]
) -> Iterator[Relay]:
    """Yield the relays of `steps`: ranks between those of `lines` on a pipeline, or behind them, without a copy.

    Between copies (rank → the row that it works like), they work as between the ranks that these are copies of.
    """
    ops, ranks_of = run.ops, run.steps.ranks
    near = {ranks_of[line.row]: line for line in lines}
    like = {rank: rank for rank in near} | {rank: ranks_of[row] for rank, row in copied.items()}
    ends = aligned(ops, run.clocks, ops.end).astype(np.float64)
    messages = _messages(run, steps)
    for line in sorted({run.mesh.pipeline(r) for r in run.missing if r in run.mesh.coordinates}):
        ranks = sorted(line, key=run.mesh.stage)
        for first, last in _gaps([rank in like for rank in ranks]):
            source = sorted(run.mesh.pipeline(like[ranks[first - 1]]), key=run.mesh.stage)
            beside = {like.get(rank, rank): rank for rank in ranks}
            if not beside.keys() >= {source[first - 1], *source[last + 1 : last + 2]}:
                continue
            for stage, to, pairs in _pairs(messages, source, first, last):
                inputs, results = (np.concatenate(side) for side in zip(*pairs, strict=True))
                order = np.argsort(ends[results], kind="stable")
                inputs, results = inputs[order], results[order]
                quick = float((ops.end - ops.start)[np.append(inputs, results)].min())
                waited = (ops.end - ops.start)[results] > CLEARLY_MORE * quick
                both = np.isin(ops.kernel[inputs], ops.kernel[results]).any()  # one kernel, two directions
                times = quick * (1 if both else 2), ends[inputs], ends[results] - quick
                way, stages = ops.channel[results], last - first + 1
                where = ranks[stage], beside, near[source[to]]
                yield Relay(*where, inputs, results, quick, *times, waited, way, len(pairs), stages)


def _gaps(seen: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield the first and last stage of each part of a pipeline that was not `seen`, but for one at its begin."""
    first = None
    for stage, known in enumerate([*seen, True]):
        if known and first:
            yield first, stage - 1
        first = None if known else stage if first is None else first


def _messages(run: Measured, steps: list[int]) -> dict[tuple[int, ...], I64]:
    """Return by sender and receiver, one of them unrecorded, their messages in `steps`, in order."""
    ops, missing = run.ops, frozenset(run.missing)
    known = [c for c in ops.channels if c.p2p and not missing.isdisjoint(c.members)]
    numbers = np.array([c.number for c in known], np.int64)
    inside = run.analysed & (np.isin(ops.step, steps) | (not run.steps.labelled))
    rows = np.flatnonzero(inside & np.isin(ops.channel, numbers))
    rows = rows[np.argsort(ops.channel[rows], kind="stable")]
    begin, end = (np.searchsorted(ops.channel[rows], numbers, side=side) for side in ("left", "right"))
    return {c.members: rows[i:j] for c, i, j in zip(known, begin.tolist(), end.tolist(), strict=True)}


def _pairs(
    messages: dict[tuple[int, ...], I64], ranks: list[int], first: int, last: int
) -> list[tuple[int, int, list[tuple[I64, I64]]]]:
    """Return by relay of a gap (its stage, that which gets results, (operations of inputs, of results) by direction).

    Empty where inputs and results of a direction are not equally many. `ranks` are those of the pipeline.
    """

    def between(one: int, other: int) -> I64:
        return messages.get((ranks[one], ranks[other]), NO_ROWS)

    down, up = between(first - 1, first), between(first, first - 1)
    if last + 1 == len(ranks):
        sides = [(first, first - 1, down, up)]
    else:
        out, back = between(last, last + 1), between(last + 1, last)
        sides = [(last, last + 1, down, out), (first, first - 1, back, up)]
    if not all(len(given) == len(made) > 0 for *_, given, made in sides):
        return []
    found: dict[int, list[tuple[I64, I64]]] = defaultdict(list)
    for stage, _, given, made in sides:
        found[stage].append((given, made))
    near = {stage: to for stage, to, *_ in sides}
    return [(stage, near[stage], pairs) for stage, pairs in found.items()]


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
