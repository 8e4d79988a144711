"""Peers of messages in a pipeline of two stages: a rank's only neighbour, if both ranks' orders fit each other.

torch up to 2.4 records that a message was sent or received, but not its peer. Between two stages there is one answer.
"""

from collections.abc import Iterable

import numpy as np

from tracekit.inference.peers.directed_messages import Directed, directed_messages, with_peers
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.operation_names import RECEIVES, SENDS
from tracekit.rank_events.operations import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import COMMON_END_NS
from tracekit.units import I64


def with_only_neighbours(
    ops: Operations, clocks: Clocks, lines: Iterable[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers found, their number) along the `lines` of a pipeline's axis.

    On a line of two ranks a message goes to the other one, if in every step both ranks record the same messages: equal
    in number and size, none received before it was sent, the first one only received by one of them. In a ring of
    context parallel ranks every kernel sends and receives.
    """
    filled = dict(ops.per_rank)
    count = 0
    for line in sorted(lines):
        if len(line) != len((SENDS, RECEIVES)) or not set(line) <= set(filled):
            continue
        one, two = (directed_messages(filled[r], clocks) for r in line)
        same = clocks.island[line[0]] == clocks.island[line[1]]
        if not _fit(one, two, same_clock=same):
            continue
        for (own, peer), found in zip((line, line[::-1]), (one, two), strict=True):
            filled[own] = with_peers(filled[own], found.rows.tolist(), [peer] * len(found.rows))
            count += len(found.rows)
    return [filled[r] for r in ops.ranks], count


def _fit(one: Directed, two: Directed, *, same_clock: bool) -> bool:
    """Whether the messages of two ranks can be counterparts, in all steps that both recorded."""
    steps = np.intersect1d(one.step[one.step != NO_STEP], two.step[two.step != NO_STEP]).tolist()
    there, back = [], []
    for step in steps:
        sides = [(one.at(step, way), two.at(step, -way)) for way in (SENDS, RECEIVES)]
        if any(len(a) != len(b) or not _as_large(one.nelems[a], two.nelems[b]) for a, b in sides):
            return False
        if not _begun_by_one(one, two, step):
            return False
        there.append(one.start[sides[0][0]] - two.end[sides[0][1]])
        back.append(one.end[sides[1][0]] - two.start[sides[1][1]])
    if not steps or not sum(map(len, there)) or not sum(map(len, back)):
        return False
    # the clock of `two` may be set forward between these two bounds for no message to arrive before it was sent
    least, most = int(np.concatenate(there).max()), int(np.concatenate(back).min())
    if same_clock:
        return least <= COMMON_END_NS and most >= -COMMON_END_NS
    return least <= most + 2 * COMMON_END_NS


def _as_large(a: I64, b: I64) -> bool:
    """Whether message sizes agree wherever both are known."""
    return bool(((a == b) | (a < 0) | (b < 0)).all())


def _begun_by_one(one: Directed, two: Directed, step: int) -> bool:
    """Whether one rank sends with the first kernel of a step, and the other one only receives with its first."""
    mine, theirs = _first_ways(one, step), _first_ways(two, step)
    return (SENDS in mine and theirs == {RECEIVES}) or (SENDS in theirs and mine == {RECEIVES})


def _first_ways(messages: Directed, step: int) -> set[int]:
    """The directions of the messages of a step's first kernel."""
    here = np.flatnonzero(messages.step == step)
    return set(messages.way[here[messages.kernel[here] == messages.kernel[here[0]]]].tolist())
