"""Whether all waiting of a job starts from certain ranks, followed along the call that each rank waits in first.

The first wait of a rank is its oldest outstanding call; later ones wait behind it.
"""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_graph import PendingCall


class _Wait(NamedTuple):
    """A pending call (its place in the graph), or a message (the rank at its other end)."""

    message: bool
    at: int


class FirstWaits(NamedTuple):
    """The waits of a rank that come first, and how many of them must be explained."""

    waits: frozenset[_Wait]
    needed: int


class WaitChains:
    """The first waits of all ranks and the ranks that delay them, ready to be followed from any rank."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._first = {rank: first_waits(scene, rank) for rank in scene.graph.stuck}
        self._lacked = _lacked(scene)
        self._users: dict[_Wait, list[int]] = defaultdict(list)
        for rank, first in self._first.items():
            for wait in first.waits:
                self._users[wait].append(rank)

    def start_from(self, culprits: Iterable[int], devices: AbstractSet[int] = frozenset()) -> bool:
        """Return whether every waiting rank waits first of all for a culprit, or for a rank that does.

        devices: culprits that hold up every call of theirs, also the first they wait in. Linear in ranks and calls:
        each is reached once.
        """
        open_ = {rank: first.needed for rank, first in self._first.items()}
        reached: set[int] = set()
        explained: set[_Wait] = set()
        news = list(culprits)
        while news:
            rank = news.pop()
            if rank in reached:
                continue
            reached.add(rank)
            own = self._first[rank].waits if rank in self._first else frozenset[_Wait]()
            behind = {_Wait(False, at) for at in self._scene.graph.waits.get(rank, ())} if own else set()
            behind -= set() if rank in devices else own
            for wait in ({_Wait(True, rank)} | self._lacked[rank] | behind) - explained:
                explained.add(wait)
                for user in self._users.get(wait, ()):
                    open_[user] -= 1
                    if open_[user] == 0:
                        news.append(user)
        return self._first.keys() <= reached


def all_explained(scene: Scene, culprits: Iterable[int], devices: AbstractSet[int] = frozenset()) -> bool:
    """Return whether all waiting starts from these ranks, as `WaitChains.start_from` does for one question."""
    return WaitChains(scene).start_from(culprits, devices)


def unseen_waits(scene: Scene) -> set[int]:
    """Return the ranks with an unknown first wait: it may well be for a culprit.

    They left no dump or an old one, or their rings have lost outstanding calls or messages.
    """
    lost = {r for r in scene.world if r not in scene.dumps or scene.dumps[r].cut}
    return lost | scene.graph.busy | scene.graph.stale


def _lacked(scene: Scene) -> dict[int, set[_Wait]]:
    """Return, by rank, the pending calls that it has not come to, as far as its dump shows.

    A rank that waits in one call of a group has not come to the next one in which others wait.
    """
    lacked: dict[int, set[_Wait]] = defaultdict(set)
    before: dict[int, PendingCall] = {}
    for at, call in enumerate(scene.graph.pending):
        waiting = before[call.group].waiting if call.group in before else ()
        before[call.group] = call
        for rank in (*call.behind, *call.missing, *call.unknown, *waiting):
            lacked[rank].add(_Wait(False, at))
    return lacked


def first_waits(scene: Scene, rank: int) -> FirstWaits:
    """Give a rank's oldest outstanding call; several where the ring has lost them, since any may be the oldest.

    Messages of one batch start and end together: any of them may keep the batch from ending.
    """
    waits: list[tuple[int, _Wait]] = []
    batches: dict[tuple[int, int], set[_Wait]] = defaultdict(set)
    for at in scene.graph.waits.get(rank, ()):
        call = scene.graph.pending[at]
        created = scene.groups[call.group].frontiers[rank].created(call.seq) or 0
        waits.append((created, _Wait(False, at)))
    dump = scene.dumps[rank]
    oldest, batch = min((created for created, _ in waits), default=None), None
    for op in dump.p2p:
        members = dump.groups[op.group].ranks
        if op.peer < len(members) and members[op.peer] in scene.graph.pairs.get(rank, ()):
            wait = _Wait(True, members[op.peer])
            waits.append((op.created, wait))
            batches[op.group, op.seq].add(wait)
            if oldest is None or op.created < oldest:
                oldest, batch = op.created, (op.group, op.seq)
    if batch is not None and oldest:
        return FirstWaits(frozenset(batches[batch]), 1)
    first = frozenset(wait for created, wait in waits if created == oldest)
    return FirstWaits(first, len(first))
