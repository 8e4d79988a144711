"""Candidates of an open answer, as few ranks as the dumps allow, and the evidence that would decide between them.

A rank is a candidate if all waiting can start from it alone: from a host that did not come to a call, or from a device
that delays every call its rank waits in. The dumps show no other difference between these ranks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tracekit.analysis.hang.message_cycle import message_cycle
from tracekit.analysis.hang.program_order import CallId, first_in_program
from tracekit.analysis.hang.remedies import ADDED, AGAIN, STACKS, TIMED, UNTIMED
from tracekit.analysis.hang.rules.rule import Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import WaitChains, first_waits, unseen_waits
from tracekit.thresholds.hang import MAX_ASKED


class Candidates(NamedTuple):
    """The ranks, sorted (empty if the dumps point to no rank), and what would decide."""

    ranks: tuple[int, ...] = ()
    to_decide: str | None = None


def candidates_of(scene: Scene, found: Found) -> Candidates:
    """Give the candidates of a job that waits, in which no rule has named a culprit."""
    if found.doubts:
        ranks = tuple(sorted(found.candidates))
        if not ranks or found.decide:
            return Candidates(ranks, found.decide)
        if scene.dumps.keys() >= found.candidates:
            return Candidates(ranks, STACKS)
        return Candidates(ranks, ADDED if _timed(scene) else ADDED + UNTIMED)
    call = stuck_call(scene)
    if call is None and (cycle := message_cycle(scene)) is not None:
        return Candidates(tuple(sorted(cycle.ranks)), STACKS)
    ranks = tuple(sorted(scene.graph.stuck))
    if call is not None and len(ranks) > MAX_ASKED:
        ranks = scene.groups[call.group].ranks
    return Candidates(_lone_causes(scene, ranks), STACKS if call is None else advice_on_device(scene))


def stuck_call(scene: Scene) -> CallId | None:
    """Return the first call in the program that all members issued and none has finished; None without one.

    A call that no rank waits in first is blocked by something else, such as messages that wait for each other. So may a
    call be, if a member waits in something that the evidence does not name, or first in a message that its peer lacks.
    """
    graph = scene.graph
    waits = {rank: first_waits(scene, rank).waits for rank in graph.stuck}
    first = {wait.at for own in waits.values() for wait in own if not wait.message}
    alone = {r for r, own in waits.items() for w in own if w.message and r in graph.awaited.get(w.at, ())}
    in_flight = [
        CallId(call.group, call.seq)
        for at, call in enumerate(graph.pending)
        if call.in_flight and at in first and (graph.busy | alone).isdisjoint(call.waiting)
    ]
    return first_in_program(scene, in_flight) if in_flight else None


def none_lacks_an_end(scene: Scene) -> bool:
    """Return whether ranks wait in messages alone, and both ends of each were issued."""
    graph = scene.graph
    issued = bool(graph.pairs) and not (graph.awaited or graph.pending or graph.busy or graph.stale)
    return issued and scene.dumps.keys() >= graph.pairs.keys() | set().union(*graph.pairs.values())


def advice_on_device(scene: Scene) -> str:
    """Return the advice on a call that no member has finished."""
    return AGAIN if _timed(scene) else TIMED


def _timed(scene: Scene) -> bool:
    return any(dump.timed for dump in scene.dumps.values())


def _lone_causes(scene: Scene, ranks: Sequence[int]) -> tuple[int, ...]:
    """Keep the ranks from which alone all waiting can start; all of them where they are too many to ask."""
    if len(ranks) > MAX_ASKED:
        return tuple(ranks)
    chains, unseen = WaitChains(scene), unseen_waits(scene)
    held = scene.graph.busy  # what is outstanding there and not named may be older than all else
    return tuple(rank for rank in ranks if chains.start_from({rank, *unseen}, held | {rank}))
