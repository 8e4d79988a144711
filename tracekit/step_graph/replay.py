"""Replays the step with other own times of ranks or other durations of transfers.

Every rank is a sequence of posts and needs on the axis of its own time; an operation completes when its last member
has posted it, plus its transfer. Running that model with rescaled own times gives the step without a rank's slowness,
so that a delay hidden by slack, or by another rank that is just as late, costs nothing. After the what-if analysis of
Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), on matched traces.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np

from tracekit.arrays import digest_of
from tracekit.step_graph.host_timeline import Hosts, HostsAtLevels, HostTimeline, clocks, delays_of
from tracekit.step_graph.own_parts import WaitingParts
from tracekit.step_graph.rank_timeline import RankTimeline, completed, ratio_of
from tracekit.step_graph.replay_in_turn import InTurn, causes_of
from tracekit.step_graph.replay_levels import Levels, levels_of
from tracekit.thresholds.slowrank import DRIFT_SHARE, MAJORITY, MOST_REPEATS
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64

PeersWork = dict[tuple[int, int], tuple[int, F64]]
"""(run of steps, row) → index of the compared parts, and the own time of its peers in each of them, ns."""

Usual = Mapping[tuple[int, int], tuple[int, F64] | WaitingParts]
"""`PeersWork`, or the parts of a row that become shorter."""


StepRun = tuple[tuple[int, ...], tuple[RankTimeline, ...]]
"""(columns of Steps, timelines)"""


@dataclass(frozen=True)
class StepModel:
    """The recorded steps as a model that can be run with any own times and transfers; all times ns."""

    own: F64  # recorded own times, ranks × steps
    runs: tuple[StepRun, ...]
    instance: I64  # of each operation, -1 where it is unmatched
    fixed: F64  # duration of an operation that completes by itself, -1 where it is matched
    transfer: F64  # per instance; those of unknown groups come after the matched ones
    before: I64  # per instance: the one before it on its channel, -1 where it starts when posted
    later: F64  # how long each operation ends after the one of the member that came last
    caused: I64  # pairs of instances (two rows): the first starts no sooner than the second, of another channel, ends
    shares: F64  # the part of a whole step that each column holds
    hosts: Hosts = ()  # hosts may delay their ranks; () without any
    of_table: ClassVar[None] = None

    @property
    def of_traces(self) -> Self:
        """The model itself: `of_table` is None."""
        return self

    def pinned(self, run: Measured) -> "StepModel":
        """Return the model in which every operation of `run` not matched with all members keeps its recorded length."""
        fixed = np.where(run.ops.instance < 0, (run.ops.end - run.ops.start).astype(np.float64), self.fixed)
        transfer = self.transfer.copy()  # operations of unknown groups come last, and keep their lengths
        cut = np.flatnonzero(~run.waits.complete)
        transfer[cut] = run.waits.transfer[cut]
        if np.array_equal(fixed, self.fixed) and np.array_equal(transfer, self.transfer):
            return self
        return self.retimed(fixed=fixed, transfer=transfer)

    def missed_ns(self, run: Measured) -> float:
        """Return how far the unchanged model is from `run`, ns a step.

        The larger of two errors: that of the mean step, and the mean absolute error of each rank's idle time in each
        step, because errors of ranks and steps may cancel in the mean step. Where a profiler started later on some
        ranks, their first step is shorter, so that a model's step may be as long as the longest rank's.
        """
        steps = run.steps
        whole = abs(self.replayed_ns - run.step_ns)
        if self.replayed_ns > run.step_ns:
            whole = max(0.0, self.replayed_ns - float(np.nanmean(np.nanmax(steps.whole, axis=0))))
        event, spent = self.replay()
        recorded = event < len(run.ops.rank)  # operations of ranks without a trace follow
        stood = run.by_step(event[recorded], spent[recorded])
        return max(whole, steps.mean(np.abs(steps.wall - steps.own - stood)))

    @cached_property
    def recorded_ns(self) -> float:
        """Return the mean step time with recorded own times and transfers, once ranks no longer drift apart, ns."""
        return self.step_ns(self.own)

    @cached_property
    def replayed_ns(self) -> float:
        """Return the mean step time from the recorded begins of ranks, ns: the recorded time, if the model holds."""
        return self._mean_ns(lambda n: [line.gaps for line in self.runs[n][1]], once=True)

    def step_ns(self, target: F64, transfer: F64 | None = None, usual: Usual | None = None) -> float:
        """Return the mean step time with own times `target` (ranks × steps) and `transfer` (by instance), all ns.

        Instances behind those of `transfer` keep their own. A rank in `usual` becomes shorter where it is longer than
        usual, or in the parts given there, any other rank equally in all parts.
        """
        lasts = self.transfer
        if transfer is not None:
            lasts = np.concatenate([transfer, lasts[len(transfer) :]])

        def gaps_of(n: int) -> list[F64]:
            ratios = zip(self.runs[n][1], self._ratios(n, target), strict=True)
            return [line.shortened((usual or {}).get((n, line.row)), ratio) for line, ratio in ratios]

        places = sorted(usual or {})
        shorter = (np.atleast_1d(part) for place in places for part in (place, *(usual or {})[place]))
        asked = digest_of(target, lasts, *shorter)
        if asked not in self._replays:
            self._replays[asked] = self._mean_ns(gaps_of, lasts)
        return self._replays[asked]

    @cached_property
    def _replays(self) -> dict[bytes, float]:
        """The mean step times that `step_ns` found, by what it was asked: a cure is priced a dozen times."""
        return {}

    def replay(self, target: F64 | None = None) -> tuple[I64, F64]:
        """Return (needed operations, how long each holds its rank up; ns), with own times `target` if given."""
        operations, held = [np.empty(0, np.int64)], [np.empty(0)]
        own = self.own if target is None else target
        for n, (_, timelines) in enumerate(self.runs):
            gaps = [line.stretched(each) for line, each in zip(timelines, self._ratios(n, own), strict=True)]
            needed, stood = self._run(n, gaps, self.transfer, *self._begins(n)[:2])[2]()
            operations, held = [*operations, needed], [*held, stood]
        return np.concatenate(operations), np.concatenate(held)

    def beside(self, hosts: Hosts, but: Collection[int]) -> "StepModel":
        """Return the model in which `hosts` (by run) may delay their ranks, but for those of the rows `but`."""
        kept = (tuple(host for host in some if host.row not in but) for some in hosts)
        return replace(self, hosts=tuple(kept)).in_order_of(self)

    def retimed(self, *, fixed: F64 | None = None, transfer: F64 | None = None) -> "StepModel":
        """Return the model with other durations or transfers; its waits, and so its order of replay, are the same."""
        made = replace(
            self,
            fixed=self.fixed if fixed is None else fixed,
            transfer=self.transfer if transfer is None else transfer,
        )
        return made.in_order_of(self)

    def in_order_of(self, other: "StepModel") -> "StepModel":
        """Return the model itself, with the order of replay of `other` where both have the same waits."""
        same = (
            len(self.runs) == len(other.runs)
            and all(map(_same_events, self.runs, other.runs))
            and np.array_equal(self.instance, other.instance)
            and np.array_equal(self.before, other.before)
            and np.array_equal(self.later, other.later)
            and np.array_equal(self.caused, other.caused)
            and np.array_equal(self.fixed >= 0, other.fixed >= 0)
        )
        if same:
            self.__dict__["levels"] = other.levels
        return self

    def usual(self, peers: Mapping[int, I64], share: float = 0.5) -> PeersWork:
        """Return the median work before each operation over the `peers` of each row with the same operations.

        Of a `share` of these peers instead, where given. The finest parts that most peers share are compared, else the
        coarsest. A row without such a peer is left out.
        """
        found: PeersWork = {}
        for n, (_, timelines) in enumerate(self.runs):
            by_row = {line.row: line for line in timelines}
            for row, others in peers.items():
                if row not in by_row:
                    continue
                mates = [by_row[o] for o in others if o in by_row and o != row]
                for which, mine in enumerate(by_row[row].parts):
                    same = [p for m in mates if (p := m.alike(mine)) is not None]
                    last = mine is by_row[row].parts[-1]
                    if len(same) > (0 if last else MAJORITY * len(mates)):
                        found[n, row] = which, np.quantile([np.diff(p.cuts) for p in same], share, axis=0)
                        break
        return found

    def levelled_ns(self, groups: Sequence[I64]) -> float:
        """Return the mean step time if all rows of each group took their median own time in each part, ns."""

        def gaps_of(n: int) -> list[F64]:
            widths = {line.row: np.diff(line.blocks) for line in self.runs[n][1]}
            usual = dict(widths)
            for group in reversed(groups):
                rows = [row for row in group.tolist() if row in widths]
                if rows:
                    usual |= dict.fromkeys(rows, np.median([widths[row] for row in rows], axis=0))
            return [
                line.rescaled(line.blocks, ratio_of(widths[line.row], usual[line.row]))
                for line in self.runs[n][1]
            ]

        return self._mean_ns(gaps_of)

    def rescaled_ns(self, cuts: Mapping[tuple[int, int], tuple[F64, F64]]) -> float:
        """Return the mean step time with parts of ranks rescaled, ns.

        `cuts` is by (run of steps, row of Steps): readings of own time between which the rank's parts lie, from the
        begin of the run to its end, and the factor of each part. Other ranks keep their own time.
        """
        return self._mean_ns(
            lambda n: [
                line.rescaled(*cut) if (cut := cuts.get((n, line.row))) else line.gaps
                for line in self.runs[n][1]
            ]
        )

    def _mean_ns(
        self, gaps_of: Callable[[int], Sequence[F64]], transfer: F64 | None = None, *, once: bool = False
    ) -> float:
        """Return the mean time of a whole step with the gaps of each run of steps, ns; `once` with the recorded begins.

        Stages begin the recorded steps as far apart as their slowness put them, and the first step of a recording is
        shorter for waiting ranks. Any run in which ranks drift is repeated from where each rank ended, until all take
        equally long. Ranks that no wait joins never do, and steps then have no common end. A run is repeated as well
        while its hosts lose the lead that they had when the recording began.
        """
        total, count, lasts = 0.0, 0.0, self.transfer if transfer is None else transfer
        for n, (columns, lines) in enumerate(self.runs):
            gaps, (begins, clock, need) = gaps_of(n), self._begins(n)
            spans: list[float] = []
            while len(spans) < MOST_REPEATS:
                ahead = (begins - clock)[need > 0]
                ends, marks, _ = self._run(n, gaps, lasts, begins, clock)
                whole = completed(lines, gaps, marks, ends) if marks.size else ends
                spans.append(float(np.median(whole)) - float(np.median(begins)))
                follow = marks[:, -1] if marks.size else ends  # no step follows on a cut one
                steady = once or np.ptp(follow - begins) <= DRIFT_SHARE * spans[-1]
                spans[0] = spans[-1] if steady else spans[0]
                begins, clock = follow, clock + need
                lost = ahead - (begins - clock)[need > 0]
                if steady and (once or lost.max(initial=0.0) <= DRIFT_SHARE * spans[-1]):
                    break
            total += spans[0]
            count += len(columns) if marks.size else float(self.shares[list(columns)].sum())
        return total / max(count, 1)

    def _ratios(self, n: int, target: F64) -> F64:
        """Return the factors by which steps become `target` (ranks × steps, ns): timelines × steps of run `n`."""
        columns, timelines = self.runs[n]
        rows = np.array([line.row for line in timelines])
        ratios, known = np.ones((len(rows), len(columns))), rows < len(self.own)  # relays keep their work
        chosen = np.ix_(rows[known], np.array(columns))
        ratios[known] = ratio_of(self.own[chosen], target[chosen])
        return ratios

    def _begins(self, n: int) -> tuple[F64, F64, F64]:
        """Return (when each rank of run `n` begins; when its host does, how long that works, as `clocks`); ns."""
        return np.array([line.start for line in self.runs[n][1]]), *clocks(self._hosts(n), self.runs[n][1])

    def _hosts(self, n: int) -> tuple[HostTimeline, ...]:
        """Return the hosts of run `n` that may delay their ranks."""
        return self.hosts[n] if self.hosts else ()

    @cached_property
    def host_levels(self) -> tuple[HostsAtLevels | None, ...]:
        """The events of each run that its hosts may delay; None where there are none, or no levels."""
        found = ((self._hosts(n), self.runs[n][1], at) for n, at in enumerate(self.levels))
        of = HostsAtLevels.of
        return tuple(of(h, lines, at.bounds, at.gap) if at and h else None for h, lines, at in found)

    @cached_property
    def levels(self) -> tuple[Levels | None, ...]:
        """The levels of each run; None if it can only be replayed in turn."""
        orders = self.instance, self.fixed, self.before, self.later, self.caused
        return tuple(levels_of(lines, *orders) for _, lines in self.runs)

    def _run(
        self, n: int, gaps: Sequence[F64], transfer: F64, begins: F64, clock: F64
    ) -> tuple[F64, F64, Callable[[], tuple[I64, F64]]]:
        """Return (when each rank of run `n` ends, reaches its marks; what gives needed operations and waits); ns.

        `gaps` is by timeline own time before each of its events, the tail last; `transfer` is by instance; `begins` is
        when each rank begins, and `clock` when its host does, which changes by its stops.
        """
        levels = self.levels[n]
        if levels is None:
            done = InTurn(
                self.runs[n][1], begins.tolist(), [g.tolist() for g in gaps], transfer.tolist(),
                self.instance.tolist(), self.fixed.tolist(), self.before.tolist(), self.later.tolist(),
                causes_of(self.caused), delays_of(self._hosts(n), self.runs[n][1]), clock.tolist(),
            )  # fmt: skip
            ends, clock[:] = np.array(done.ends()), done.host_clock
            stood = np.array(list(done.stood), np.int64), np.array(list(done.stood.values()))
            return ends, np.array(done.marks), lambda: stood
        every = np.concatenate([*(g[:-1] for g in gaps), [0.0]])
        lasts = np.concatenate([transfer, self.fixed, [0.0]])
        hosts = self.host_levels[n]
        wall = levels.walls(begins, every, lasts, partial(hosts.delay, clock) if hosts else None)
        ends = wall[levels.final] + np.array([g[-1] for g in gaps])
        marks = wall[levels.marks].reshape(len(ends), -1)
        return ends, marks, lambda: (levels.operations.astype(np.int64), levels.stood_ns(wall, every, lasts))


def _same_events(one: StepRun, other: StepRun) -> bool:
    """Whether two runs of steps have the same begins, and the same events in the same order."""
    same = one[0] == other[0] and len(one[1]) == len(other[1])
    return same and all(a is b or a.same_events(b) for a, b in zip(one[1], other[1], strict=True))
