"""Hosts that stopped: ranks that others wait for while nothing of their own is outstanding, or with a stopped process.

A stopped process (SIGSTOP, a frozen container, swap) has made its last call like its peers, so that no call is lacking.
Recorders of a process note when they last ran; NCCL's does not, and a dump without that time says nothing here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median_high
from typing import NamedTuple

from tracekit.analysis.hang.agreement import synchronising
from tracekit.analysis.hang.call_origins import Origin, Origins
from tracekit.analysis.hang.channels import End, same_group, usual_calls
from tracekit.analysis.hang.program_order import CallId, first_in_program, first_missed
from tracekit.analysis.hang.remedies import WHICH_GROUP
from tracekit.analysis.hang.rules.not_in_dumps import idle_beside_missing
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.axes import LEVELS
from tracekit.dumps.calls import Signature
from tracekit.text import ranges
from tracekit.thresholds.hang import FROZEN_LEAST_S, FROZEN_SHARE
from tracekit.units import NS_PER_S


def stalled_hosts(scene: Scene, known: Found) -> Found:
    """Return the ranks that wait for no other rank while others wait for a call or message of theirs.

    Looks for: idle ranks that are behind in a pending call, or that a send or receive awaits, at the first call that
    each lacks; without such ranks and with missing dumps, idle ranks of groups with members that left no dump; and idle
    ranks with rings that have lost how far they are in a call that others wait in and no rank has done.
    Excuses: ranks already named, ends of different messages, and, if p2p is not recorded (Gloo), ranks that only wider
    groups than the others' miss: they may wait in a receive.
    Returns: `host_stalled`; a doubt where they are no fewer than the ranks that wait, in a call unknown to them.
    """
    graph = scene.graph
    culprits: dict[int, Accusation] = {}
    for rank in sorted(graph.behind_in.keys() | graph.awaited.keys()):
        if rank in scene.dumps and graph.idle(rank) and rank not in known.culprits:
            accusation = _at_first_lack(scene, rank, known)
            if accusation is not None:
                culprits[rank] = accusation
    if not culprits and not known.culprits:
        fewer = len(scene.idle) < len(scene.graph.stuck)
        culprits = (idle_beside_missing(scene) if fewer else {}) or _idle_beyond_ring(scene)
    notes = []
    if len(culprits) > 1 and _without_messages(scene):
        nearest = _of_innermost_groups(scene, culprits)
        if len(nearest) < len(culprits):
            notes.append("p2p is not recorded: idle ranks that only wider groups miss may wait in a receive")
        culprits = nearest
    kept = {rank: accusation for rank, accusation in culprits.items() if rank not in known.excused}
    return _few_ahead(scene, kept) or Found(kept, notes=tuple(notes))


def _few_ahead(scene: Scene, culprits: Mapping[int, Accusation]) -> Found | None:
    """Give a doubt in the place of culprits that are no fewer than the ranks that wait, in a call they never made.

    The culprits may have come to their programs' end, and the ranks that wait made a call too many, or made it in the
    wrong group; None where their stacks show that the call is one which the culprits make as well.
    """
    places = {(accused.group, accused.seq) for accused in culprits.values()}
    if len(culprits) < 2 or len(places) != 1:
        return None
    ((number, seq),) = places
    waiting = {r for c in scene.graph.pending if (c.group, c.seq) == (number, seq) for r in c.waiting}
    if not scene.graph.stuck <= waiting or len(culprits) < len(waiting):
        return None
    logs = Origins(scene.groups[number]).logs
    asked = {logs[rank][seq] for rank in waiting if rank in logs and seq in logs[rank]}
    theirs = {origin for rank in culprits if rank in logs for origin in logs[rank].values()}
    if any(stack and (version, stack) in theirs for version, stack in asked):
        return None
    who = "rank" if len(waiting) == 1 else "ranks"
    call = f"{who} {ranges(sorted(waiting))} alone made call {seq} of group {scene.groups[number].name}"
    found = Found(candidates=frozenset(waiting | culprits.keys()))
    other = _elsewhere(scene, number, asked, culprits)
    if other is None or _elsewhere(scene, number, asked, waiting) is not None:
        return replace(found, doubts=(f"{call}, and most or all the others stopped before it",))
    story = (
        f"{call}, and ranks {ranges(sorted(culprits))} make it in group {other}, at the same place of the program: one "
        "side gives it the wrong group"
    )
    return replace(found, doubts=(story,), decide=WHICH_GROUP)


def _elsewhere(scene: Scene, number: int, asked: set[Origin], ranks: Iterable[int]) -> str | None:
    """Return the name of a group other than `number` in which these ranks made a call of these origins; or None."""
    for other in sorted({n for rank in ranks for n in scene.memberships[rank]} - {number}):
        logs = Origins(scene.groups[other]).logs
        made = {origin for rank in ranks for origin in logs.get(rank, {}).values()}
        if any(stack and (version, stack) in made for version, stack in asked):
            return scene.groups[other].name
    return None


def _at_first_lack(scene: Scene, rank: int, known: Found) -> Accusation | None:
    """Return the accusation of a rank at the first call or message it lacks and others wait for; None if unknown."""
    graph = scene.graph
    lost = None
    if rank in graph.awaited and rank not in graph.stale and rank in scene.shown:
        lost = _lost_message(scene, rank, graph.awaited[rank] - known.culprits.keys())
    if rank in graph.behind_in:
        first = first_missed(scene, rank, None if lost is None else lost.at)
        if not first.is_message:
            return Accusation("host_stalled", first.group, first.seq)
    return None if lost is None else Accusation("host_stalled", lost.at.group, lost.at.seq, call=lost.call)


class _LostMessage(NamedTuple):
    """A send or receive that a rank did not make, as the rank would call it."""

    at: CallId
    call: Signature


def _lost_message(scene: Scene, rank: int, askers: set[int]) -> _LostMessage | None:
    """Give the first send or receive that `askers` posted towards `rank` and it did not make.

    Its number is the next of `rank`; of several, the first that ranks in the same place of other groups also make.
    """
    best: tuple[tuple[bool, int, int], _LostMessage] | None = None
    for asker in sorted(askers):
        dump = scene.dumps[asker]
        for op in dump.p2p:
            tail = dump.groups[op.group]
            if tail.ranks[op.peer : op.peer + 1] != (rank,) or rank not in scene.graph.pairs[asker]:
                continue
            number = next(
                i
                for i, g in enumerate(scene.groups)
                if asker in g.frontiers and g.frontiers[asker].tail is tail
            )
            arrow = f"recv {op.peer}<-{op.me}" if op.send else f"send {op.peer}->{op.me}"
            log = scene.dumps[rank].messages
            local = same_group(dump, op.group, scene.dumps[rank])
            mine = log.seq[log.group == local] if local is not None else log.seq[:0]
            seq = int(mine.max()) + 1 if len(mine) else op.seq
            name = op.text.removesuffix(op.call.op) + arrow
            usual = bool(usual_calls(scene.dumps, tail.desc, tail.ranks, End(rank, seq, name, op.call)))
            key = (not usual, op.seq, asker)
            if best is None or key < best[0]:
                best = key, _LostMessage(CallId(number, seq, rank), op.call._replace(op=arrow))
    return None if best is None else best[1]


def _idle_beyond_ring(scene: Scene) -> dict[int, Accusation]:
    """Return ranks with nothing outstanding and rings that have lost the calls of a group that waits for a member.

    If they had come to the call, it would be outstanding, because no rank has done it. An empty dump shows this as well
    if no dump holds a finished call. If most ranks have nothing outstanding, the job has ended for them, and if a ring
    is full of outstanding calls, others may have fallen out of it.
    """
    graph = scene.graph
    uncut = {rank for rank in scene.shown if not scene.dumps[rank].cut}
    idle = {rank for rank in uncut - graph.stale if graph.idle(rank)}
    if len(idle) > len(graph.stuck):
        return {}
    found: dict[int, CallId] = {}
    for call in graph.pending:
        if call.done or call.behind or not synchronising(scene.groups[call.group].call(call.seq)):
            continue
        for rank in idle.intersection(call.unknown):
            known = found.get(rank)
            if known is None or len(scene.groups[known.group].ranks) > len(scene.groups[call.group].ranks):
                found[rank] = CallId(call.group, call.seq)
    return {rank: Accusation("host_stalled", call.group, call.seq) for rank, call in sorted(found.items())}


def _without_messages(scene: Scene) -> bool:
    """Whether no send or receive is recorded anywhere, as on Gloo: a rank in a receive then looks idle."""
    unrecorded = all(d.backend == "gloo" and not d.p2p for d in scene.dumps.values())
    return unrecorded and not any(g.mixed for g in scene.groups)


def _of_innermost_groups(scene: Scene, culprits: Mapping[int, Accusation]) -> dict[int, Accusation]:
    """Return the ranks with the innermost group in the mesh; a group of unknown axes counts as outermost."""
    place = {axis: at for at, axis in enumerate(reversed(LEVELS))}

    def depth(accusation: Accusation) -> int:
        group = scene.groups[accusation.group]
        dims = scene.mesh.dims_of(group.ranks) if scene.mesh is not None else None
        return max((place.get(axis, len(place)) for axis in dims or ()), default=len(place))

    innermost = min(depth(accusation) for accusation in culprits.values())
    return {rank: accused for rank, accused in culprits.items() if depth(accused) == innermost}


def frozen_process(scene: Scene, _known: Found) -> Found:
    """Return the ranks with a recorder that stopped soon after their last call, while the others' ran on for long.

    Looks for: ranks that lived on after their last call for a small share of the time that most others did; a launcher
    ends some later.
    Excuses: all ranks if a dump does not hold the time at which its recorder last ran, or clocks contradict, or if half
    of the ranks fit.
    Returns: `host_stalled`, at the call in which the rank and its peers wait.
    """
    beats = {rank: dump.heartbeat for rank, dump in scene.dumps.items()}
    known = all(beats[rank] and dump.last_created for rank, dump in scene.dumps.items())
    if len(beats) < len(scene.world) or not known:
        return Found()
    lived = {rank: beats[rank] - scene.dumps[rank].last_created for rank in beats}
    usual = median_high(lived.values())
    frozen = {rank for rank, ns in lived.items() if ns < FROZEN_SHARE * usual}
    others = lived.keys() - frozen
    if not frozen or len(frozen) >= len(others):
        return Found()
    ended = min(beats[rank] for rank in others) - max(beats[rank] for rank in frozen)
    apart = min(lived[rank] for rank in others) - max(lived[rank] for rank in frozen)
    if min(ended, apart) < FROZEN_LEAST_S * NS_PER_S:
        return Found()
    culprits: dict[int, Accusation] = {}
    for rank in sorted(frozen):
        silent = (min(beats[other] for other in others) - beats[rank]) / NS_PER_S
        how = (
            f"its process last ran {silent:.0f} s before that of any other rank: it was stopped, or it ended"
        )
        if (accusation := _at_first_wait(scene, rank, how)) is None:
            return Found()
        culprits[rank] = accusation
    return Found(culprits)


def _at_first_wait(scene: Scene, rank: int, how: str) -> Accusation | None:
    """Return the accusation at the first call that a rank waits in, or that others wait for; None without one."""
    pending = scene.graph.pending
    calls = [CallId(pending[at].group, pending[at].seq) for at in scene.graph.waits.get(rank, ())]
    calls = calls or [CallId(c.group, c.seq) for c in pending if rank in {*c.behind, *c.unknown}]
    if calls:
        call = first_in_program(scene, calls)
        return Accusation("host_stalled", call.group, call.seq, how=how)
    dump = scene.dumps[rank]
    op = min(dump.p2p, key=lambda op: (op.send, op.created), default=None)  # Gloo's sends wait for none
    if op is None:
        return None
    tail = dump.groups[op.group]
    own = [n for n in scene.memberships[rank] if scene.groups[n].frontiers[rank].tail is tail]
    return Accusation("host_stalled", own[0], op.seq, call=op.call, how=how) if own else None
