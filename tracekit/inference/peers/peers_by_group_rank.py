"""Peers of messages that name the peer's place in an unnamed group: the pipeline's, or the world.

The inputs of `c10d::send` and the title `nccl:send 0->1` count within the process group. Up to torch 2.3 nothing names
that group; along the lines of a known pipeline only neighbours are possible, and both ends must agree.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tracekit.inference.peers.directed_messages import ways, with_peers, without_peer
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.operation_names import SENDS
from tracekit.rank_events.operations import RankOps

_Peers = dict[int, dict[int, int]]
"""Rank → row of a message → its peer."""
_GROUPS: Final = ((True, False), (False, True), (True, True))
"""Whether group ranks may refer to the pipeline's group, and whether to the world."""


def with_told_places(
    ops: Operations, _: Clocks, lines: Iterable[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers from their places, their number) along the pipelines `lines`.

    `lines` hold ranks in the order of their stages. The places of a line count in its own group, in the world, or
    some in either. Its messages stay open if one of them has no or several neighbours at its place, if both ends record
    different numbers in a step, or if two ways to count give different peers.
    """
    filled = dict(ops.per_rank)
    count = 0
    for line in sorted(lines):
        recorded = [rank for rank in line if rank in filled]
        ways_to_read = ({rank: _peers(filled[rank], line, *of) for rank in recorded} for of in _GROUPS)
        agreed = [peers for peers in ways_to_read if any(peers.values()) and _agree(filled, peers)]
        if not agreed or any(peers != agreed[0] for peers in agreed):
            continue
        for rank, mine in agreed[0].items():
            filled[rank] = with_peers(filled[rank], list(mine), list(mine.values()))
            count += len(mine)
    return [filled[r] for r in ops.ranks], count


def _peers(source: RankOps, line: tuple[int, ...], of_line: bool, of_world: bool) -> dict[int, int]:
    """Return the peer of each open message of a rank; -1 if its place in the line or world gives none or several."""
    at = line.index(source.rank)
    beside = {line[at - 1], line[(at + 1) % len(line)]} - {source.rank}
    found: dict[int, int] = {}
    for row in without_peer(source).tolist():
        place = -1 if source.place is None else int(source.place[row])
        inside = of_line and 0 <= place < len(line)
        fits = {*([place] if of_world else ()), *([line[place]] if inside else ())} & beside
        found[row] = fits.pop() if len(fits) == 1 else -1
    return found


def _agree(told: dict[int, RankOps], peers: _Peers) -> bool:
    """Return whether every message has one peer, and both ends record equally many in each common step."""
    if any(peer < 0 for mine in peers.values() for peer in mine.values()):
        return False
    sent: Counter[tuple[int, int, int]] = Counter()
    taken: Counter[tuple[int, int, int]] = Counter()
    for rank, mine in peers.items():
        way, step = ways(told[rank]), told[rank].step
        for row, peer in mine.items():
            if peer in peers and step[row] in told[peer].step:
                ends = (rank, peer) if way[row] == SENDS else (peer, rank)
                (sent if way[row] == SENDS else taken)[*ends, int(step[row])] += 1
    return sent == taken
