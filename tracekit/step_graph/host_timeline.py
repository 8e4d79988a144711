"""The host of a rank in a replay: a device begins no kernel before its host has launched it.

While a rank is late, the hosts of the others run ahead, and their devices find the next kernels launched. Without the
delay they would wait for their hosts, so that a step is the sum over its parts of what the slower one of the two needs.

A host works at its own pace, pauses as long as it did, as for a collection of garbage, and stops where it waited. Its
clock is that of the wall without its stops: each stop moves the moment at which it seems to have begun.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Self

import numpy as np

from tracekit.intervals import Intervals, covered_until, union
from tracekit.rank_events.compute import DEVICE_WORK
from tracekit.rank_events.event_columns import categories, ints
from tracekit.rank_events.own_time import Progress
from tracekit.rank_events.step_marks import launch_rows
from tracekit.step_graph.rank_timeline import NEED, RankTimeline
from tracekit.steps.host_need import on_host
from tracekit.steps.host_work import HOST_COLUMNS, host_work, silences
from tracekit.thresholds.slowrank import LAUNCHED_NS, NEARLY_ALL, NO_WORK_NS, QUEUE_ROOM
from tracekit.timing.measured import Measured
from tracekit.units import F64, I32, I64, Mask


@dataclass(frozen=True)
class Host:
    """What the host of one rank did, on the rank's clock; ns."""

    working: Intervals
    silent: Intervals  # when it records nothing for long
    queued: I64  # kernels that wait for its device when each silence begins
    longest: int  # the most kernels that ever waited
    launched: I64  # when it launched kernels, in order
    begun: I64  # kernels of the stream that computes most: when each began
    issued: I64  # when the host launched each
    latency: float  # the shortest time from a launch to its kernel
    called: bool  # whether its operators were recorded; without them it may do anything while it is silent

    @cached_property
    def busy(self) -> Intervals:
        """When it works, or pauses by itself: silent, with fewer kernels before its device than fill the queue."""
        free = self.queued < max(NEARLY_ALL * self.longest, QUEUE_ROOM)
        sides = zip(self.working, self.silent, strict=True)
        return union(*(np.append(works, silent[free]) for works, silent in sides))

    def worked(self, first: int, times: I64) -> F64:
        """Return how long the host worked or paused from the moment `first` until each of `times`, ns."""
        worked = covered_until(self.busy, np.append(first, times))
        return np.asarray(worked[1:] - worked[0], np.float64)


@dataclass(frozen=True)
class HostTimeline:
    """The host of one rank in one run of steps; ns, on the clock of the host."""

    row: int  # of the rank in Steps
    begin: float  # when it begins the run, after its rank
    need: float  # how long it works or pauses in the whole steps of the run
    events: I64  # events of its rank that it may delay, in order
    floor: F64  # by event: the rank comes to it no sooner, by what was launched before the host last stopped
    stop: F64  # by event: the host stands until this long after the rank comes to it; mostly negative
    after: F64  # by event: the rank comes to it no sooner, by what was launched after the host last stopped


Hosts = tuple[tuple[HostTimeline, ...], ...]
"""Timelines of hosts in each run of steps."""


def hosts_of(run: Measured, rows: Iterable[int]) -> dict[int, Host]:
    """Return by row of Steps what hosts did, for those of `rows` with launches in their traces.

    The queues of their devices hold equally many kernels: as many as any rank shows.
    """
    found = {row: host for row in rows if (host := _host_of(run, run.steps.ranks[row])) is not None}
    longest = max((host.longest for host in found.values()), default=0)
    return {row: replace(host, longest=longest) for row, host in found.items()}


def _host_of(run: Measured, rank: int) -> Host | None:
    """What the host of `rank` did; None where the trace holds no launch."""
    source = run.ops.per_rank[rank]
    if not source.on_gpu:
        return None
    events = run.run.events(rank, [*HOST_COLUMNS, "stream"])
    working, launched = host_work(events)
    cat, start = categories(events), ints(events, "ts", 0)
    rows = np.flatnonzero(cat.among(DEVICE_WORK) & ~np.isin(start, source.start))
    if not len(launched):
        return None
    rows = rows[np.argsort(start[rows], kind="stable")]
    _, stream = np.unique(ints(events, "stream", -1)[rows], return_inverse=True)
    spent = np.bincount(stream, ints(events, "dur", 0)[rows])
    rows = rows[stream == np.argmax(spent)] if len(rows) else rows
    launch = launch_rows(events, cat, rows, source.begins)
    begun, issued = start[rows[launch >= 0]], start[launch[launch >= 0]]
    latency = float((begun - issued).min(initial=LAUNCHED_NS))
    called = bool((cat == "cpu_op").any())
    return Host(working, *silences(events), launched, begun, issued, max(latency, 0.0), called)


def host_timeline(
    run: Measured, host: Host, line: RankTimeline, columns: Sequence[int]
) -> HostTimeline | None:
    """Return the timeline of a host beside that of its rank; None where it did not record whole steps."""
    ops, steps = run.ops, run.steps
    rank = steps.ranks[line.row]
    whole = [c for c in columns if steps.shares[c] == 1.0]
    begins, ends = (side[whole] for side in on_host(ops, steps, rank))
    if not whole or (ends <= begins).any() or not len(line.kinds):
        return None
    first, until = int(begins[0]), ends[-1:]
    begin, wall = _walls(run, line)
    own = partial(_own_at, ops.progress[rank], begin)
    begins, ends = host.busy
    stops = begins[1:][begins[1:] - ends[:-1] > NO_WORK_NS]
    stops = stops[(stops >= first) & (stops <= min(until[0], wall[-1]))]  # steps follow on whole ones
    mine = (host.issued >= first) & (host.begun <= wall[-1])
    begun, issued = host.begun[mine], host.issued[mine]
    at, where = np.searchsorted(wall, begun), np.searchsorted(wall, stops)
    floor, stop, after = np.full((3, len(wall)), -np.inf)
    np.maximum.at(stop, where, own(stops) - line.readings[where] - host.worked(first, stops))
    latest = np.full(len(wall), -1)
    np.maximum.at(latest, where, stops)
    later = (latest[at] >= 0) & (issued >= latest[at])
    floors = host.worked(first, issued) + host.latency + line.readings[at] - own(begun)
    for side, which in ((floor, ~later), (after, later)):
        np.maximum.at(side, at[which], floors[which])
    kept = _that_delay(np.maximum(floor, after) - line.readings, stop > -np.inf)
    need = float(host.worked(first, until)[0])
    return HostTimeline(line.row, first - begin, need, kept, floor[kept], stop[kept], after[kept])


def _own_at(progress: Progress, begin: float, times: I64) -> F64:
    """Return the own time of a rank at each of `times`, ns: before the `begin` of its run, the time until then."""
    inside = np.maximum(times, round(begin))
    return np.asarray(progress.at(inside) - (inside - times), np.float64)


def _that_delay(behind: F64, stops: Mask) -> I64:
    """Return the events at which the host may delay its rank, or stops.

    `behind` is by event how much longer the host works until then than its rank, ns. Until the host stops again, it
    delays the rank only where that grows.
    """
    known = behind[behind > -np.inf]
    apart = float(np.ptp(known)) + 2 * NO_WORK_NS if len(known) else 0.0  # the same as if nothing were known
    since = behind + apart * np.cumsum(stops)
    before = np.maximum.accumulate(np.append(-np.inf, since[:-1]))
    return np.flatnonzero(stops | (since > before + NO_WORK_NS))


def host_timelines(
    run: Measured, hosts: Mapping[int, Host], runs: Sequence[tuple[tuple[int, ...], tuple[RankTimeline, ...]]]
) -> Hosts:
    """Return the timelines of `hosts` (by row of Steps) beside those of their ranks in each of `runs` of steps."""
    made = [
        [
            host_timeline(run, hosts[row], lines[n], columns)
            for row, n in _places(lines).items()
            if row in hosts
        ]
        for columns, lines in runs
    ]
    return tuple(tuple(host for host in some if host is not None) for some in made)


def _places(lines: Sequence[RankTimeline]) -> dict[int, int]:
    """The place of each recorded rank among `lines`, by row; its copies for ranks without a trace follow it."""
    return {line.row: n for n, line in reversed([*enumerate(lines)])}


def clocks(hosts: Sequence[HostTimeline], lines: Sequence[RankTimeline]) -> tuple[F64, F64]:
    """Return (when the host of each of `lines` begins, how long it works in the run), ns; -∞ and 0 without a host."""
    clock, need = np.full(len(lines), -np.inf), np.zeros(len(lines))
    place = _places(lines) if hosts else {}
    for host in hosts:
        clock[place[host.row]] = lines[place[host.row]].start + host.begin
        need[place[host.row]] = host.need
    return clock, need


def delays_of(
    hosts: Sequence[HostTimeline], lines: Sequence[RankTimeline]
) -> list[dict[int, tuple[float, float, float]]]:
    """Return floor, stop and after of the host of each of `lines`, by event."""
    found: list[dict[int, tuple[float, float, float]]] = [{} for _ in lines]
    place = _places(lines)
    for host in hosts:
        sides = (side.tolist() for side in (host.floor, host.stop, host.after))
        found[place[host.row]] = dict(zip(host.events.tolist(), zip(*sides, strict=True), strict=True))
    return found


def _walls(run: Measured, line: RankTimeline) -> tuple[float, F64]:
    """Return (when the rank begins, when it comes to each of its events), as recorded, on its clock; ns."""
    first = int(line.events[0])
    idle = float(run.ops.start[first] - run.ops.at_start[first]) + np.append(
        0.0, np.cumsum(line.held(run.ops)[1])
    )
    wall = np.maximum.accumulate(line.readings + idle[np.cumsum(line.kinds == NEED)])
    return float(idle[0] + line.knots[0]), wall


@dataclass(frozen=True)
class HostsAtLevels:
    """The events that hosts may delay, in order of levels; the rest as in HostTimeline."""

    levels: list[slice]  # by level: its events among the following
    at: I64  # place among the events of its level
    line: I64  # place of its rank among the timelines
    floor: F64
    stop: F64
    after: F64

    @classmethod
    def of(
        cls,
        hosts: Sequence[HostTimeline],
        lines: Sequence[RankTimeline],
        bounds: Sequence[tuple[int, ...]],
        gap: I32,
    ) -> Self:
        """Return where the levels of a run hold the events of `hosts`; `bounds` and `gap` as in `Levels`."""
        edges = np.append(0, np.cumsum([instance - first for first, _, instance, *_ in bounds]))
        turn = np.empty(int(gap.max()) + 1, np.int64)
        turn[gap] = np.arange(len(gap))
        first = np.append(0, np.cumsum([len(line.kinds) for line in lines]))
        place = _places(lines)
        of = np.repeat([place[h.row] for h in hosts], [len(h.events) for h in hosts])
        turns = turn[first[of] + np.concatenate([h.events for h in hosts])]
        order = np.argsort(turns, kind="stable")
        level = np.searchsorted(edges, turns[order], side="right") - 1
        cuts = np.searchsorted(level, np.arange(len(bounds) + 1)).tolist()
        floor, stop, after = (
            np.concatenate([getattr(h, side) for h in hosts])[order] for side in ("floor", "stop", "after")
        )
        slices = [slice(*pair) for pair in pairwise(cuts)]
        return cls(slices, turns[order] - edges[level], of[order], floor, stop, after)

    def delay(self, clock: F64, level: int, now: F64) -> None:
        """Let hosts delay the events of a `level`, which ranks reach at `now`; ns, changed in place.

        `clock` is by timeline when each host began, without its stops since; -∞ without a host. It changes as well.
        """
        mine = self.levels[level]
        if mine.start == mine.stop:
            return
        at, line = self.at[mine], self.line[mine]
        here = np.maximum(now[at], clock[line] + self.floor[mine])
        clock[line] = np.maximum(clock[line], here + self.stop[mine])
        now[at] = np.maximum(here, clock[line] + self.after[mine])
