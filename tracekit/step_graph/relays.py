"""Replays unrecorded pipeline stages as relays: each result follows its input, as it did in the recording.

Messages show when a stage without a trace got each input, and when its result arrived. It works on one micro-batch
after the other, so that no result took longer than from its input, or from its previous result, until it was there. If
an input comes earlier, so does its result. Activations go down the pipeline and gradients up it; where the last stages
are unrecorded, a gradient answers an activation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.matching.clock import aligned
from tracekit.step_graph.rank_timeline import MARK, NEED, POST, RankTimeline
from tracekit.step_graph.replay import StepModel, StepRun
from tracekit.step_graph.statistics import NO_ROWS, Excess
from tracekit.thresholds.slowrank import CLEARLY_MORE
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class _Relay:
    """An unrecorded rank: operations that brought its inputs and their results, in order of results; times in ns.

    near: the timeline of a recorded rank that gets results. quick: the shortest transfer. moves: what messages take
    between two results. given, due: when inputs and results were there at the latest, aligned. waited: whether the
    receiver waited for a result. way: the channel of each result. ways: how many results a micro-batch has. stages:
    how many unrecorded stages lie between an input and its result.
    """

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

    def works(self, needs: I64, late: float, each: float) -> F64:
        """Return by result, times 2, how long the relay moves messages, then works after the input in `needs`, ns.

        After a result it sends that one and receives the next input. Stages work at most `each` on a micro-batch.
        A receiver may come after its result. Such a result takes at most as long as the longest one of its way that a
        receiver waited for, or as its part of `late` if no receiver waited.
        """
        passed = self.given[self.newest] + self.stages * each + 2 * (self.stages - 1) * self.quick
        ready, works = self.near.start, list[float]()
        moments = (of.tolist() for of in (self.given[needs], self.due, passed, self.waited, self.longest))
        for given, due, most, waited, longest in zip(*moments, strict=True):
            moved = min(self.moves, max(due - ready, 0.0)) if works else 0.0
            begin = max(ready + moved, given)
            least = np.inf if waited else begin + (longest if np.isfinite(longest) else late / self.ways)
            ready = max(min(due, least, max(most, ready + each / self.ways)), begin)
            works += [moved, ready - begin]
        return np.array(works)


def with_relays(
    run: Measured, model: StepModel, late: float = np.inf, most: float = np.inf
) -> StepModel | None:
    """Return `model` of `run` with relays of unrecorded stages; None without any, or where results precede inputs.

    Relays work as long as the recording admits, but no longer than stages that work `most`, ns a step. Those that all
    receivers came after work no longer than stages that work `late`.
    """
    draft, runs = _Draft(model), list[StepRun]()
    for columns, lines in model.runs:
        relays = list(_relays(run, lines, [run.steps.numbers[c] for c in columns]))
        cut = any((line.kinds == MARK).any() for line in lines)
        if not relays or cut or any((relay.given > relay.due).any() for relay in relays):
            return None
        added = []
        for row, relay in enumerate(relays, len(run.steps.ranks)):
            needs = relay.newest if late < np.inf else np.arange(len(relay.inputs))
            share = len(columns) * relay.ways / len(relay.results)  # of a micro-batch in a step
            added.append(draft.line(run, relay, needs, relay.works(needs, late * share, most * share), row))
        runs.append((columns, (*lines, *added)))
    return draft.model(tuple(runs))


def usual_work_ns(run: Measured, found: Excess) -> float:
    """Return how long a typical rank works and moves data in its stage, ns a step; `found` shows which are typical."""
    inside = np.flatnonzero(run.analysed & run.matched & ~run.in_message)
    moved = run.by_step(inside, (run.ops.exposed - run.waits.exposed_wait)[inside])
    usual = run.steps.means(run.steps.own + moved)[np.nan_to_num(found.z) <= found.limit]
    return float(np.nanmedian(usual)) if np.isfinite(usual).any() else np.inf


def _relays(run: Measured, lines: tuple[RankTimeline, ...], steps: list[int]) -> Iterator[_Relay]:
    """Yield the relays of `steps`: unrecorded ranks between ranks of `lines` on a pipeline, or behind the last one."""
    ops, near = run.ops, {run.steps.ranks[line.row]: line for line in lines}
    ends = aligned(ops, run.clocks, ops.end).astype(np.float64)
    messages = _messages(run, steps)
    for line in sorted({run.mesh.pipeline(r) for r in run.missing if r in run.mesh.coordinates}):
        ranks = sorted(line, key=run.mesh.stage)
        for first, last in _gaps([rank in near for rank in ranks]):
            for to, pairs in _pairs(messages, ranks, first, last):
                inputs, results = (np.concatenate(side) for side in zip(*pairs, strict=True))
                order = np.argsort(ends[results], kind="stable")
                inputs, results = inputs[order], results[order]
                quick = float((ops.end - ops.start)[np.append(inputs, results)].min())
                waited = (ops.end - ops.start)[results] > CLEARLY_MORE * quick
                both = np.isin(ops.kernel[inputs], ops.kernel[results]).any()  # one kernel, two directions
                times = quick * (1 if both else 2), ends[inputs], ends[results] - quick
                way, stages = ops.channel[results], last - first + 1
                yield _Relay(near[to], inputs, results, quick, *times, waited, way, len(pairs), stages)


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
) -> list[tuple[int, list[tuple[I64, I64]]]]:
    """Return for each relay of a gap the rank that gets results, and (operations of inputs, of results) by direction.

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
    found: dict[int, tuple[int, list[tuple[I64, I64]]]] = {}
    for stage, to, given, made in sides:
        found[stage] = ranks[to], [*found.get(stage, (0, []))[1], (given, made)]
    return list(found.values())


class _Draft:
    """A step model while relays are added to it."""

    def __init__(self, model: StepModel) -> None:
        self.base, self.instance, self.fixed = model, model.instance.tolist(), model.fixed.tolist()
        self.transfer = model.transfer.tolist()

    def line(self, run: Measured, relay: _Relay, needs: I64, works: F64, row: int) -> RankTimeline:
        """Return the timeline of `relay` in `row`, which needs an input and then posts each result.

        It ends with the last operation that the rank which gets results waits for. A message of the same kernel as a
        result takes no longer than a result.
        """
        kernel, quick = run.ops.kernel, relay.quick
        beside = np.isin(kernel[relay.inputs], kernel[relay.results])
        lasted = (run.ops.end - run.ops.start)[relay.inputs]
        for given, ns in zip(relay.inputs.tolist(), np.where(beside, quick, lasted).tolist(), strict=True):
            self._join(given, ns)
        for made in relay.results.tolist():
            self._join(made, quick)
        events = np.stack([relay.inputs[needs], relay.results], axis=1).ravel().tolist()
        ends = relay.near.events[relay.near.kinds == NEED].tolist()
        events += [row for row in ends if self.instance[row] >= 0 and self.fixed[row] < 0][-1:]
        begin = len(self.instance)
        self.instance += [self.instance[event] for event in events]
        self.fixed += [-1.0] * len(events)
        many = len(relay.results)
        kinds = np.array([NEED, POST] * many + [NEED] * (len(events) - 2 * many), np.int8)
        readings = np.cumsum(np.append(works, np.zeros(len(kinds) - 2 * many)))
        knots = np.array([0.0, readings[-1]])
        numbers = np.arange(begin, begin + len(events), dtype=np.int32)
        return RankTimeline(row, kinds, readings, numbers, knots, knots, (), relay.near.start)

    def _join(self, row: int, lasts: float) -> None:
        """Let relays take part in the operation `row`, which `lasts` as long, ns; unchanged where others do."""
        if self.instance[row] < 0:
            self.instance[row], self.fixed[row] = len(self.transfer), -1.0
            self.transfer.append(lasts)

    def model(self, runs: tuple[StepRun, ...]) -> StepModel:
        """Return the model with the added timelines `runs`."""
        base = self.base
        alone = np.full(len(self.transfer) - len(base.before), -1)
        later = np.append(base.later, np.zeros(len(self.instance) - len(base.later)))
        return replace(
            base, runs=runs, instance=np.array(self.instance, np.int64), fixed=np.array(self.fixed, np.float64),
            transfer=np.array(self.transfer, np.float64), before=np.append(base.before, alone), later=later,
        )  # fmt: skip
