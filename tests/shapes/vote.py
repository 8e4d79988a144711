"""The plain vote: the rank whose communication is shortest in total is the one that the others wait for."""

from tests.shapes.calls import CollectiveCall, MessagesCall
from tests.shapes.case import Made

STANDS_OUT = 0.02
"""The part of the window by which the shortest total has to be below the median."""


def vote(made: Made) -> int | None:
    """The suspect, None where nobody stands out."""
    totals = {rank: communicating_us(made, rank) for rank in made.case.recorded}
    middle = sorted(totals.values())[len(totals) // 2]
    shortest = min(totals, key=lambda rank: totals[rank])
    window = made.step_us * len(made.case.steps)
    return shortest if middle - totals[shortest] > STANDS_OUT * window else None


def communicating_us(made: Made, rank: int) -> float:
    """How long a rank's kernels of communication are in the window."""
    begin, told = made.job.graph.begin, made.job.ranks[rank]
    first = begin[told.step_begins[made.case.steps[0]]]
    return sum(
        begin[call.leave] - begin[call.enter]
        for call in told.calls
        if isinstance(call, CollectiveCall | MessagesCall) and begin[call.enter] >= first
    )
