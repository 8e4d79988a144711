"""The counts of RAS answers as frontiers, whether they grew, and which answers are older than the hang that logs show.

Used by `as_dumps` and by the judge of all evidence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tracekit.dumps.rank_dump import GroupTail
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.log_lines import when_of
from tracekit.evidence.ras import RasReport
from tracekit.findings import Quality
from tracekit.units import NS_PER_S

_EARLY: Final = (
    "ncclras was asked at {}, before the first call that timed out was made: what it shows is not of the hang, and "
    "the answer is left out"
)


def without_early_ras(bundle: Bundle) -> Bundle:
    """Return the evidence without the RAS answers from before the first call that timed out, with a row for each.

    An answer in text bears no time and is kept, as is every one where no line shows when a call was made.
    """
    begun = [
        mark.work.created_ns
        for log in bundle.logs
        for marks in log.marks.values()
        for mark in marks.values()
        if mark.work is not None and mark.work.created_ns
    ]
    early = []
    for report in bundle.ras if begun else ():
        asked = when_of((report.time or "").encode())
        if asked is not None and asked.seconds * NS_PER_S < min(begun):
            early.append(report)
    rows = tuple(Quality("early_ras", r.path, 1, _EARLY.format(r.time)) for r in early)
    kept = tuple(report for report in bundle.ras if report not in early)
    return replace(bundle, ras=kept, quality=(*bundle.quality, *rows)) if early else bundle


def tails_of_ras(reports: Iterable[RasReport]) -> dict[int, list[GroupTail]]:
    """Return the frontier of each rank in each communicator, by global rank, as in the last report.

    No report says which calls have ended: of a communicator in which ranks differ all calls up to the least count are
    taken as ended, so that those ahead wait. Where all are at one count none is known to wait.
    """
    listed = list(reports)
    found: dict[int, list[GroupTail]] = {}
    for communicator in listed[-1].communicators if listed else ():
        launched = communicator.launched()
        ranks = listed[-1].global_ranks(communicator)
        if len(ranks) < communicator.size or not launched:
            continue
        members = tuple(sorted(ranks.values()))
        ended = min(launched.values())
        world = communicator.size == listed[-1].world
        for place, count in launched.items():
            tail = GroupTail(communicator.name, "default_pg" if world else communicator.name, members)
            tail.status_enqueued, tail.status_completed = count, ended
            found.setdefault(ranks[place], []).append(tail)
    return found


def moves(reports: Sequence[RasReport]) -> bool | None:
    """Return whether counts grew between two reports; None where there are no two of one communicator."""
    for one, other in pairwise(reports):
        before = {c.name: c.launched() for c in one.communicators}
        pairs = [(before[c.name], c.launched()) for c in other.communicators if c.name in before]
        if pairs:
            return any(first != second for first, second in pairs)
    return None
