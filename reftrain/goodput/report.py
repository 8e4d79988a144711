"""The answer of `reftrain goodput`: best interval, where the time goes, what detection is worth, sensitivity."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from reftrain.documents import GoodputDocument
from reftrain.goodput.failures import History
from reftrain.goodput.model import Habits, Spent, best, daly, simulate, varied, young

DETECTIONS: Final = (600.0, 300.0, 60.0, 10.0)
"""Seconds in which a hang is noticed: torch's watchdog by default, half of it, a minute, ten seconds."""
VARIED: Final = ("between", "restart", "write", "stall", "hangs", "stops", "repair", "spares")
FACTORS: Final = (0.5, 2.0)
BAR: Final = 4
"""Characters of a bar for one point."""
LONGEST_BAR: Final = 20
PARTS: Final = {
    "training": "training that is kept",
    "checkpoints": "stops for checkpoints",
    "lost": "training that is lost",
    "detection": "until an interruption is noticed",
    "spares": "waiting for a spare host",
    "restart": "restarting",
}


@dataclass(frozen=True)
class Varied:
    """The share that trains when one habit is halved and doubled, with Daly's interval for it."""

    name: str
    halved: float
    doubled: float


@dataclass(frozen=True)
class Goodput:
    """Everything that the command says; intervals in seconds of training, shares of the job's time.

    `at_daly` is the share that trains with Daly's interval, which `varied` is compared with.
    """

    habits: Habits
    gpus: int
    interval: float
    best: float
    spent: Spent
    detections: tuple[tuple[float, float], ...]
    at_daly: float
    varied: tuple[Varied, ...]

    @property
    def young(self) -> float:
        """Young's interval."""
        return young(self.habits)

    @property
    def daly(self) -> float:
        """Daly's interval."""
        return daly(self.habits)


def goodput(habits: Habits, gpus: int, histories: Sequence[History], interval: float | None) -> Goodput:
    """Return the answer; without an `interval` the best one is used."""
    found, spent = best(habits, histories)
    used = found if interval is None else interval
    if interval is not None:
        spent = simulate(habits, interval, histories)

    def share(changed: Habits, every: float) -> float:
        return simulate(changed, every, histories).share

    detections = tuple(
        (seconds, share(replace(habits, hangs=seconds, stops=min(habits.stops, seconds)), used))
        for seconds in DETECTIONS
    )
    shares = [
        Varied(
            name, *(share(changed, daly(changed)) for changed in (varied(habits, name, f) for f in FACTORS))
        )
        for name in VARIED
    ]
    at_daly = share(habits, daly(habits))
    return Goodput(habits, gpus, used, found, spent, detections, at_daly, tuple(shares))


def text(answer: Goodput) -> str:
    """Return the answer as text."""
    habits, spent = answer.habits, answer.spent
    every = f"a checkpoint every {answer.interval:.0f} s"
    out = [
        f"{spent.share:.1%} of {habits.days:g} days train: {answer.gpus} GPUs, {every}",
        f"{spent.interruptions:.0f} interruptions, {habits.between / 3600:.2f} h between them in the mean",
        f"best interval: {answer.best:.0f} s simulated, {answer.young:.0f} s by Young, {answer.daly:.0f} s by Daly",
        "",
    ]
    length = habits.length
    out += [f"  {100 * getattr(spent, name) / length:6.2f} %  {what}" for name, what in PARTS.items()]
    out += ["", "hangs noticed in        trains   GPU hours gained a day"]
    slowest = answer.detections[0][1]
    for seconds, share in answer.detections:
        gained = (share - slowest) * 24 * answer.gpus
        out.append(f"  {seconds:6.0f} s           {share:7.2%}   {gained:12.0f}")
    out += ["", "one habit halved and doubled, with Daly's interval, in points:"]
    base = answer.at_daly
    for row in sorted(answer.varied, key=lambda v: -max(abs(v.halved - base), abs(v.doubled - base))):
        out.append(f"  {row.name:8} {_bar(row.halved - base)} | {_bar(row.doubled - base)}".rstrip())
    return "\n".join(out) + "\n"


def _bar(change: float) -> str:
    """Return a change in points with a bar of its length."""
    points = 100 * change
    return f"{points:+6.2f} {'#' * min(LONGEST_BAR, round(abs(points) * BAR)):{LONGEST_BAR}}"


def document(answer: Goodput) -> GoodputDocument:
    """Return the contents of `reftrain.goodput/1`."""
    habits, spent = answer.habits, answer.spent
    return {
        "schema": "reftrain.goodput/1",
        "gpus": answer.gpus,
        "days": habits.days,
        "hours_between": habits.between / 3600,
        "interval_s": answer.interval,
        "best_s": answer.best,
        "young_s": answer.young,
        "daly_s": answer.daly,
        "interruptions": spent.interruptions,
        "training": spent.share,
        "parts": {name: getattr(spent, name) / habits.length for name in PARTS},
        "detections": [{"hang_s": seconds, "training": share} for seconds, share in answer.detections],
        "at_daly": answer.at_daly,
        "varied": [{"name": v.name, "halved": v.halved, "doubled": v.doubled} for v in answer.varied],
    }
