"""What a suspect's profiler records and its peers' profilers do not, which slows its host."""

import re
from typing import Final

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.causes import CAUSES
from tracekit.findings import Quality
from tracekit.rank_events.event_columns import matches, truth
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import PEERS_SAMPLED

_FRAME: Final = re.compile(r"\.py\(\d+\): |^<built-in ")
"""Frames of Python as `with_stack=True` records them: every call and return costs the host about a microsecond."""


def unlike_recordings(case: Case, answer: Answer) -> tuple[Quality, ...]:
    """Return a row where suspects record the stacks of Python and no peer does, and the host may be what is slow.

    The profiler may be the reason then: nothing in the trace separates it from the cause that is named. None where a
    device is slow, as stacks do not lengthen kernels.
    """
    if case.table is not None or answer.verdict not in {"slow_rank", "inconclusive"}:
        return ()
    named = (*answer.suspects, *answer.candidates)[:PEERS_SAMPLED]
    slow = [s.rank for s in named if _of_host(case, s.rank, CAUSES[s.cause].quantity)]
    blamed = {s.rank for s in (*answer.suspects, *answer.candidates)}
    peers = sampled([rank for rank in case.steps.ranks if rank not in blamed])
    with_stacks = [rank for rank in slow if _records_stacks(case, rank)]
    if not with_stacks or not peers or any(_records_stacks(case, rank) for rank in peers):
        return ()
    many = "ranks" if len(with_stacks) > 1 else "rank"
    ranks = ", ".join(map(str, sorted(with_stacks)))
    detail = (
        f"{many} {ranks}: Python stacks are recorded (with_stack=True), which its peers do not, and that alone slows a "
        "host; record all ranks with the same settings"
    )
    return (Quality("unlike_recordings", None, len(with_stacks), detail),)


def _of_host(case: Case, rank: int, quantity: str) -> bool:
    """Whether a cause of this quantity lengthens what the host does."""
    return quantity != "busy" or not case.ops.per_rank[rank].on_gpu


def _records_stacks(case: Case, rank: int) -> bool:
    """Whether the trace of a rank holds frames of Python."""
    events = case.run.events(rank, ["cat", "name"])
    frames = matches(events, "cat", lambda cat: cat == "python_function").astype(bool)
    return bool((frames & truth(events, "name", _FRAME)).any())
