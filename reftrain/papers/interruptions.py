"""The effective training time of 54 days on 16 384 GPUs ("The Llama 3 Herd of Models", section 3.3.4)."""

from reftrain.cost.hardware import Hardware
from reftrain.goodput.failures import COUNT, GPUS, hours_between
from reftrain.goodput.model import Habits, best, drawn, rows_for
from reftrain.papers.figure import Line

RUNS = 4
"""Simulated jobs: their shares differ by a few tenths of a point."""


def effective_time(hardware: Hardware) -> list[Line]:
    """Return the share of the time that trains with the published interruptions and the best interval."""
    del hardware
    habits = Habits(between=hours_between(GPUS) * 3600.0)
    _, spent = best(habits, drawn(rows_for(habits), RUNS, 0))
    assumed = "times of checkpoints, detection and restarts are assumed: the paper does not print them"
    return [
        Line("effective training time", "%", 90.0, 100 * spent.share, bound="≥", why=assumed),
        Line("interruptions in 54 days", "", float(COUNT), spent.interruptions, "fitted"),
    ]
