"""The counts of RAS answers as frontiers, and whether they grew from one answer to the next. Used by `as_dumps`."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tracekit.dumps.rank_dump import GroupTail
from tracekit.evidence.ras import RasReport


def tails_of_ras(reports: Iterable[RasReport]) -> dict[int, list[GroupTail]]:
    """Return the frontier of each rank in each communicator, by global rank, as the last report tells it.

    Nothing tells which calls have ended: of a communicator in which ranks differ all calls up to the least count are
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
