"""The share of a job's time that trains: by simulation of its interruptions, and the best interval of checkpoints.

A checkpoint is asynchronous: training stops while state is copied to the host, and the copy counts once it is written.
At an interruption the work since the last written checkpoint is lost. Then follow detection, a wait until
a spare host is free, and the restart, which another interruption may end. Before a planned interruption the job saves.

Sources of the closed forms: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A
higher order estimate of the optimum checkpoint interval for restart dumps", equation 37.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from reftrain.goodput.failures import History, draw
from reftrain.thresholds import GOODPUT_INTERVALS, GOODPUT_SPREAD


@dataclass(frozen=True)
class Habits:
    """How a job runs; all times in seconds.

    `between` is the mean time between interruptions, `stall` the stop of a checkpoint, `write` the time until it
    counts, `stops` and `hangs` the detection of processes that end and of ranks that hang, `restart` the time from
    there to the first step, `repair` the time until a host is a spare again, `spares` the number of spare hosts.
    """

    between: float
    days: float = 54.0
    stall: float = 5.0
    write: float = 60.0
    stops: float = 30.0
    hangs: float = 600.0
    restart: float = 300.0
    repair: float = 86400.0
    spares: int = 16

    @property
    def length(self) -> float:
        """Seconds of the job."""
        return self.days * 86400.0


@dataclass(frozen=True)
class Spent:
    """Seconds of a job by what they went into; the fields add up to its length, but `interruptions`, a number."""

    training: float = 0.0
    checkpoints: float = 0.0
    lost: float = 0.0
    detection: float = 0.0
    spares: float = 0.0
    restart: float = 0.0
    interruptions: float = 0.0

    @property
    def share(self) -> float:
        """Effective training time as a share of all."""
        waits = self.checkpoints + self.lost + self.detection + self.spares + self.restart
        return self.training / (self.training + waits)


def young(habits: Habits) -> float:
    """Return the interval between checkpoints by Young's first order, s of training."""
    return math.sqrt(2.0 * habits.stall * habits.between)


def daly(habits: Habits) -> float:
    """Return the interval by Daly's higher order, s of training."""
    stall, between = habits.stall, habits.between
    ratio = stall / (2.0 * between)
    if ratio >= 1:
        return between
    return math.sqrt(2.0 * stall * between) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - stall


def simulate(habits: Habits, interval: float, histories: Sequence[History]) -> Spent:
    """Return where the time goes with a checkpoint each `interval` s of training, mean of the histories."""
    found = [_one(habits, interval, history) for history in histories]
    return Spent(**{f.name: sum(getattr(s, f.name) for s in found) / len(found) for f in fields(Spent)})


def _one(habits: Habits, interval: float, history: History) -> Spent:
    """Return where the time of one drawn job goes."""
    clock, row, away = 0.0, 0, list[float]()
    parts = dict.fromkeys((f.name for f in fields(Spent)), 0.0)

    def spend(part: str, seconds: float) -> float:
        nonlocal clock
        given = min(seconds, habits.length - clock)
        clock += given
        parts[part] += given
        return given

    while clock < habits.length:
        ends = min(float(history.gaps[row]) * habits.between, habits.length - clock)
        over = clock + ends >= habits.length
        planned = over or bool(history.planned[row])
        written = ends if planned else ends - habits.write
        cycles = max(0, math.floor(written / (interval + habits.stall)))
        kept = min(ends - cycles * habits.stall, ends) if planned else cycles * interval
        spend("training", kept)
        spend("checkpoints", cycles * habits.stall)
        spend("lost", max(0.0, ends - kept - cycles * habits.stall))
        if over:
            break
        parts["interruptions"] += 1
        if not planned:
            spend("detection", habits.hangs if history.hangs[row] else habits.stops)
        if history.replaces[row]:
            spend("spares", _wait_for_host(away, clock, habits))
        row = _restart(habits, history, row + 1, spend, parts)
    return Spent(**parts)


def _restart(
    habits: Habits,
    history: History,
    row: int,
    spend: Callable[[str, float], float],
    parts: dict[str, float],
) -> int:
    """Restart until no interruption strikes meanwhile; return the row of the next one, whose gap begins after it."""
    while history.gaps[row] * habits.between < habits.restart:
        if not spend("restart", float(history.gaps[row]) * habits.between):
            return row
        parts["interruptions"] += 1
        spend("detection", habits.hangs if history.hangs[row] else habits.stops)
        row += 1
    spend("restart", habits.restart)
    return row


def _wait_for_host(away: list[float], clock: float, habits: Habits) -> float:
    """Take a host out for its repair; return the seconds until a spare is there. `away` holds when hosts come back."""
    while away and away[0] <= clock:
        heapq.heappop(away)
    heapq.heappush(away, clock + habits.repair)
    return away[0] - clock if len(away) > habits.spares else 0.0


@lru_cache(maxsize=4)
def drawn(rows: int, runs: int, seed: int) -> tuple[History, ...]:
    """Return the histories of `runs` jobs; the same for all habits, so that only habits differ."""
    return tuple(draw(rows, seed + run) for run in range(runs))


def rows_for(habits: Habits) -> int:
    """Return a number of interruptions that no job of these habits reaches: six deviations above the mean."""
    mean = habits.length / habits.between
    return int(mean + 6.0 * math.sqrt(mean)) + 64


def best(habits: Habits, histories: Sequence[History]) -> tuple[float, Spent]:
    """Return the interval that trains most of the time by simulation, from a grid around Daly's, and its outcome.

    Where no interruption strikes the simulated jobs they decide nothing, and Daly's is returned.
    """
    middle = max(daly(habits), habits.stall)
    plain = simulate(habits, middle, histories)
    if not plain.interruptions:
        return middle, plain
    steps = [GOODPUT_SPREAD ** (2.0 * n / (GOODPUT_INTERVALS - 1) - 1.0) for n in range(GOODPUT_INTERVALS)]
    tried = [(interval, simulate(habits, interval, histories)) for interval in (middle * s for s in steps)]
    return max(tried, key=lambda pair: pair[1].share)


def varied(habits: Habits, name: str, factor: float) -> Habits:
    """Return the habits with one of them scaled; a number of spares stays whole."""
    value = getattr(habits, name) * factor
    return replace(habits, **{name: round(value) if name == "spares" else value})
