"""Cycles of waiting: ranks that went past a collective which their peers make first.

A rank that leaves a collective out runs on and soon waits itself, so no rank in the cycle is idle. But ranks of one
place in the mesh run one program: ranks that made both calls, or only the first, show the order.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations

from tracekit.analysis.hang.frontier import Frontier, Group, Role
from tracekit.analysis.hang.program_order import CallId, oldest_wait
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_graph import PendingCall


def skipped_collectives(scene: Scene, _known: Found) -> Found:
    """Give the ranks that left a collective out and ran on, so that every rank waits.

    Looks for: ranks behind in one group that issued a later call of another group, or a send or receive, before the
    one they lack; and ranks that made two calls the other way round than their peers.
    Excuses: ranks with an order that only a few peers contradict: ranks on the usual side must be as many (messages)
    or twice as many (calls).
    Returns: `host_stalled` at the call left out, with a note.
    """
    found = _past_collectives(scene) or _past_messages(scene) or _crossed(scene)
    return accuse_skipped(scene, found)


def accuse_skipped(scene: Scene, found: Mapping[int, CallId]) -> Found:
    """Accuse ranks of having left a call out, or made it after a later one, with both orders where they show."""
    culprits = {
        rank: Accusation("host_stalled", call.group, call.seq, how=_two_orders(scene, rank, call))
        for rank, call in found.items()
    }
    notes = [f"a circle of waiting: rank {rank} passed a call that its peers make first" for rank in found]
    return Found(culprits, notes=tuple(notes))


def _two_orders(scene: Scene, rank: int, late: CallId) -> str:
    """Say which call a rank waits in that its peers make after `late`, and whether it made that, too."""
    waits = [at for at in scene.graph.waits.get(rank, ()) if scene.graph.pending[at].group != late.group]
    if not waits:
        return "passed a call that its peers make first (another order, or the call left out)"
    ahead = scene.graph.pending[oldest_wait(scene, waits, rank)]
    names = [_name(scene.groups[call.group], call.seq) for call in (ahead, late)]
    frontier = scene.groups[late.group].frontiers.get(rank)
    if frontier is not None and frontier.enqueued >= late.seq:
        return f"made {names[0]} before {names[1]}, its peers {names[1]} before {names[0]}"
    return f"went on to {names[0]} without {names[1]}, which its peers make first"


def _name(group: Group, seq: int) -> str:
    call = group.call(seq)
    return f"{call.op.lstrip('_') if call is not None else 'call'} {seq} of group {group.name}"


def _past_collectives(scene: Scene) -> dict[int, CallId]:
    """Find ranks that lack a call but issued one that comes later in the program.

    All ranks of their stage that show an order issue the call they lack first, and these are at least twice as many.
    """
    odd: dict[int, CallId] = {}
    orders: dict[tuple[object, ...], tuple[set[int], int]] = {}
    for rank, pending in scene.graph.behind_in.items():
        for lacked in scene.pending(pending):
            for ahead in scene.pending(scene.graph.waits.get(rank, set())):
                if ahead.group == lacked.group:
                    continue
                roles = [scene.groups[call.group].role for call in (lacked, ahead)]
                key = (scene.stages[rank], roles[0], lacked.seq, roles[1], ahead.seq)
                if key not in orders:
                    same = [r for r in scene.stages if scene.stages[r] == scene.stages[rank]]
                    orders[key] = _order_shown(scene, same, (roles[0], lacked.seq), (roles[1], ahead.seq))
                past, usual = orders[key]
                if rank in past and 2 * len(past) <= usual:
                    odd[rank] = CallId(lacked.group, lacked.seq)
    return odd


def _order_shown(
    scene: Scene, stage: Iterable[int], lacked: tuple[Role, int], ahead: tuple[Role, int]
) -> tuple[set[int], int]:
    """Return ranks of a stage that issued the call `ahead` without `lacked`, and how many ranks issue that one first.

    The count is 0 if some do not. Ranks with groups of these roles that count differently show nothing.
    """
    (role, seq), (later, other) = lacked, ahead
    first, second = _frontiers(scene, role), _frontiers(scene, later)
    past: set[int] = set()
    usual = 0
    for rank in first.keys() & second.keys() & set(stage):
        if not (first[rank].in_step(seq) and second[rank].in_step(other)):
            continue
        made, passed = first[rank].enqueued >= seq, second[rank].enqueued >= other
        if made and passed:
            at, then = first[rank].created(seq), second[rank].created(other)
            if at is None or then is None:
                continue
            if at > then:
                return past, 0
        usual += made
        if passed and not made:
            past.add(rank)
    return past, usual


def _frontiers(scene: Scene, role: Role) -> dict[int, Frontier]:
    """Give the known frontier of every rank in its (last) group of this role."""
    groups = scene.roles[role]
    return {f.rank: f for group in groups for f in group.frontiers.values() if f.enqueued >= 0}


def _past_messages(scene: Scene) -> dict[int, CallId]:
    """Find ranks that lack a call but issued a later send or receive, outstanding also on ranks of the same stage."""
    same: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, dump in scene.dumps.items():
        for op in dump.p2p:
            same[dump.groups[op.group].desc, op.text, op.seq].append((rank, op.created))
    known: dict[Role, dict[int, Frontier]] = {}
    odd: dict[int, CallId] = {}
    for users in same.values():
        for rank, _ in users:
            for call in scene.pending(scene.graph.behind_in.get(rank, [])):
                role = scene.groups[call.group].role
                if role not in known:
                    known[role] = _frontiers(scene, role)
                if _passed_by_message(known[role], call, users):
                    odd[rank] = CallId(call.group, call.seq)
    return odd


def _passed_by_message(
    frontiers: Mapping[int, Frontier], call: PendingCall, users: list[tuple[int, int]]
) -> bool:
    """Return whether ranks make the call before their message, at least as many as issued the message without it.

    users: (rank, time of issue) of the outstanding messages that are the same on every rank of the stage.
    """
    past = [r for r, _ in users if r in frontiers and frontiers[r].enqueued < call.seq]
    order = [
        (frontiers[r].created(call.seq), issued)
        for r, issued in users
        if r in frontiers and frontiers[r].enqueued >= call.seq
    ]
    usual = [made is not None and made < issued for made, issued in order]
    return bool(usual) and all(usual) and len(past) <= len(usual)


def _crossed(scene: Scene) -> dict[int, CallId]:
    """Return ranks that made two calls, in which every member waits, in the opposite order of their peers.

    A rank that leaves out one of many equal calls makes the next of them under its number, but later. Witnesses are
    the members of both groups, unless these are all ranks: other stages may run other programs.
    """
    odd: dict[int, CallId] = {}
    pending = scene.graph.pending
    asked: dict[tuple[int, int], dict[int, bool]] = {}
    for rank, waits in scene.graph.waits.items():
        for pair in combinations(sorted(at for at in waits if pending[at].in_flight), 2):
            if pair not in asked:
                asked[pair] = _first_before_second(scene, pending[pair[0]], pending[pair[1]])
            ways = asked[pair]
            if rank not in ways:
                continue
            alike = sum(way == ways[rank] for way in ways.values())
            others = len(ways) - alike
            if others > 1 and 2 * alike <= others:
                late = pending[pair[1] if ways[rank] else pair[0]]
                odd[rank] = CallId(late.group, late.seq)
    return odd


def _first_before_second(scene: Scene, first: PendingCall, second: PendingCall) -> dict[int, bool]:
    """Return for members of these two groups whether each made the first call first, in its own place.

    If both groups have the same members, every member makes both calls, also if these are all ranks.
    """
    groups = [scene.groups[call.group] for call in (first, second)]
    found: dict[int, bool] = {}
    same = groups[0].ranks == groups[1].ranks and not any(group.mixed for group in groups)
    for rank in sorted({r for g in groups if same or scene.is_narrow(g) for r in g.ranks}):
        times = []
        for call in (first, second):
            number = scene.own(rank, call.group)
            times.append(None if number is None else scene.groups[number].frontiers[rank].created(call.seq))
        if times[0] is not None and times[1] is not None and times[0] != times[1]:
            found[rank] = times[0] < times[1]
    return found
