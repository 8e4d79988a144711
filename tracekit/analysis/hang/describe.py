"""Puts the result of the rules into the terms of the contract: groups with axes, calls with sizes, stacks, sentences.

Only here do numbers of groups and sequence numbers become words for a reader.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracekit.analysis.hang.program_order import CallId, first_in_program
from tracekit.analysis.hang.rules.rule import Accusation, Mismatch
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import first_waits
from tracekit.dumps.calls import Signature, sizes
from tracekit.dumps.rank_dump import Stack
from tracekit.findings.hang import CallRef, Culprit, GroupFrontier, GroupRef, LastDone, OpenCall, Side
from tracekit.text import ranges
from tracekit.thresholds.hang import NAMED_IN_SENTENCE

_KINDS = {
    "host_stalled": "host stalled (never enqueued it)",
    "device_stalled": "device stalled (enqueued it, never completed it)",
    "mismatched_call": "mismatched call",
    "missing_dump": "left no whole dump and was not seen to enqueue it",
    "died": "its process ended",
    "never_joined": "never joined",
}


def culprits_of(scene: Scene, accusations: Mapping[int, Accusation]) -> tuple[Culprit, ...]:
    """Give the culprits by rank, each with everything known of it."""
    return tuple(_culprit(scene, rank, accusations[rank]) for rank in sorted(accusations))


def _culprit(scene: Scene, rank: int, accused: Accusation) -> Culprit:
    """Give one culprit; of a send or receive no frontier is given, since messages are not numbered like calls."""
    group = scene.groups[accused.group]
    seq, mismatch = accused.seq, accused.mismatch
    frontier, dump = group.frontiers.get(rank), scene.dumps.get(rank)
    own, skipped = None, mismatch is not None and mismatch.skipped
    if frontier is not None and not skipped and accused.kind in {"device_stalled", "mismatched_call"}:
        own = frontier.call(seq)
    expected = None if mismatch is None else mismatch.expected
    collective = accused.call is None
    shown = frontier if frontier is not None and frontier.enqueued >= 0 and collective else None
    return Culprit(
        rank=rank,
        host=dump.host if dump is not None else None,
        kind=accused.kind,
        group=group_of(scene, accused.group),
        collective=_call(accused.call or own or expected or group.call(seq), seq),
        last_enqueued=None if shown is None else shown.enqueued,
        group_enqueued=max([seq, *(f.enqueued for f in group.frontiers.values() if collective)]),
        last_completed=None if shown is None else shown.completed,
        stack=dump.stack if dump is not None else (),
        sides=_sides(scene, mismatch) if mismatch is not None else (),
        how=accused.how,
    )


def group_of(scene: Scene, number: int) -> GroupRef:
    """Give the reference of a group, with its axis."""
    group = scene.groups[number]
    dims = scene.mesh.dims_of(group.ranks) if scene.mesh is not None else None
    return GroupRef(group.name, group.desc, "_".join(dims) if dims else None, group.ranks)


def _sides(scene: Scene, mismatch: Mismatch) -> tuple[Side, ...]:
    """Return every version of a mismatched call, the most frequent first, and the usual one if no rank made it."""
    sides = []
    stacks = {ranks[0]: _stack(scene, ranks[0], mismatch) for ranks in mismatch.sides.values()}
    for ranks in mismatch.sides.values():
        call = mismatch.calls.get(ranks[0]) or _made(scene, ranks[0], mismatch)
        own = stacks[ranks[0]]
        others = {frame for rank, stack in stacks.items() if rank != ranks[0] for frame in stack}
        place = _caller(tuple([frame for frame in own if frame not in others])) or _caller(own)
        sides.append(Side(tuple(sorted(ranks)), _text(call), own, place))
    if (len(sides) == 1 or mismatch.calls) and mismatch.expected is not None:
        sides.append(Side((), _text(mismatch.expected)))
    return tuple(sorted(sides, key=lambda s: (-len(s.ranks), s.ranks)))


def _made(scene: Scene, rank: int, mismatch: Mismatch) -> Signature | None:
    """Give the call that a rank made under the number of a mismatch, in its own group of this role."""
    number = scene.own(rank, mismatch.group)
    return None if number is None else scene.groups[number].frontiers[rank].call(mismatch.seq)


def _stack(scene: Scene, rank: int, mismatch: Mismatch) -> Stack:
    """Give the stack of that call, or of the send or receive that is an end of it."""
    if call := mismatch.calls.get(rank):
        return next((op.stack for op in scene.dumps[rank].p2p if op.call == call), ())
    number = scene.own(rank, mismatch.group)
    return () if number is None else scene.groups[number].frontiers[rank].stack(mismatch.seq)


def open_calls(scene: Scene, mismatches: Iterable[Mismatch]) -> tuple[OpenCall, ...]:
    """Return the calls in several versions without evidence for the right one."""
    return tuple(OpenCall(group_of(scene, m.group), m.seq, _sides(scene, m)) for m in mismatches)


def waits_of(scene: Scene, ranks: Iterable[int]) -> tuple[Side, ...]:
    """Give the calls in which these ranks wait first, with the ranks that wait in each."""
    found: dict[tuple[str, Stack], list[int]] = {}
    for rank in ranks:
        if rank not in scene.dumps:
            continue
        for text, stack in _first_calls(scene, rank):
            found.setdefault((text, stack), []).append(rank)
    return tuple(Side(tuple(who), text, stack, _caller(stack)) for (text, stack), who in found.items())


def _first_calls(scene: Scene, rank: int) -> Iterator[tuple[str, Stack]]:
    """Yield the calls in which a rank waits first, as text, with their stacks."""
    dump, waits = scene.dumps[rank], first_waits(scene, rank).waits
    for wait in sorted(waits):
        if not wait.message:
            call = scene.graph.pending[wait.at]
            frontier = scene.groups[call.group].frontiers[rank]
            name = scene.groups[call.group].name
            where = f"call {call.seq} of group {name}" if name else f"call {call.seq}"
            yield f"{_text(frontier.call(call.seq))} ({where})", frontier.stack(call.seq)
            continue
        towards = [op for op in dump.p2p if dump.groups[op.group].ranks[op.peer : op.peer + 1] == (wait.at,)]
        if towards:
            op = min(towards, key=lambda op: op.created)
            arrow = f"{'send to' if op.send else 'receive from'} rank {wait.at}"
            yield (
                f"{arrow}: {_text(op.call)} (message {op.seq} of group {dump.groups[op.group].name})",
                op.stack,
            )


def _caller(stack: Stack) -> str | None:
    """Give the innermost frame of a stack that is the user's: outside torch, where there is one."""
    return next((frame for frame in stack if "/torch/" not in frame), stack[0] if stack else None)


def first_group(scene: Scene, culprits: tuple[Culprit, ...]) -> str | None:
    """Give the group in which waiting began: of the calls that culprits hold up, the first in the program."""
    numbers: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for number, group in enumerate(scene.groups):
        numbers.setdefault((group.ranks, group.name), []).append(number)
    calls = [
        CallId(number, culprit.collective.seq)
        for culprit in culprits
        for number in numbers.get((culprit.group.ranks, culprit.group.name), ())
    ]
    return scene.groups[first_in_program(scene, calls).group].name if calls else None


def sentence(scene: Scene, culprits: tuple[Culprit, ...]) -> str:
    """Return one sentence: the rank, how it failed, in which call; further culprits are counted, not named."""
    parts = []
    for kind, how in dict.fromkeys((c.kind, c.how) for c in culprits):
        same = [c for c in culprits if (c.kind, c.how) == (kind, how)]
        first = same[0]
        ranks = _named(same) + _in_common(scene, same)
        parts.append(f"rank{'s' * (len(same) > 1)} {ranks}: {how or _KINDS[kind]}{_where(first)}")
    stuck = len(scene.graph.stuck - {c.rank for c in culprits})
    wait = f"{stuck} rank{' waits' if stuck == 1 else 's wait'} for {'it' if len(culprits) == 1 else 'them'}"
    return "; ".join([*parts, wait] if stuck else parts)


def _where(culprit: Culprit) -> str:
    """Give the call and the group of a culprit as the end of a sentence; nothing where they are unknown."""
    group, call = culprit.group, culprit.collective
    if not group.ranks:
        return ""
    return f", {call.op or 'call'} {call.seq} of {group.dim or group.desc or 'group'} group {group.name}".rstrip()


def _named(culprits: Sequence[Culprit]) -> str:
    """Give ranks with their hosts; more than a few as ranges, those of one host together."""
    if len(culprits) <= NAMED_IN_SENTENCE:
        return ", ".join(_at(c) for c in culprits)
    hosts: dict[str | None, list[int]] = {}
    for culprit in culprits:
        hosts.setdefault(culprit.host, []).append(culprit.rank)
    if len(hosts) > NAMED_IN_SENTENCE:
        return f"{ranges(c.rank for c in culprits)} on {len(hosts)} hosts"
    return ", ".join(ranges(ranks) + (f" of {host}" if host else "") for host, ranks in hosts.items())


def _in_common(scene: Scene, culprits: Sequence[Culprit]) -> str:
    """Give the place on the mesh that more ranks than are named one by one share, as in " (all in pp 1)"."""
    if scene.mesh is None or len(culprits) <= NAMED_IN_SENTENCE:
        return ""
    places = [scene.mesh.coordinates[c.rank] for c in culprits]
    shared = [
        f"{axis} {places[0][at]}"
        for at, axis in enumerate(scene.mesh.order)
        if scene.mesh.sizes[axis] > 1 and len({place[at] for place in places}) == 1
    ]
    return f" (all in {', '.join(shared)})" if shared else ""


def frontiers_of(scene: Scene) -> tuple[GroupFrontier, ...]:
    """List the groups in which any rank waits, with the least and the furthest frontier of their members."""
    found: dict[int, GroupFrontier] = {}
    for call in scene.graph.pending:
        known = [f for f in scene.groups[call.group].frontiers.values() if f.enqueued >= 0]
        behind = {*call.behind, *(found[call.group].behind if call.group in found else ())}
        found[call.group] = GroupFrontier(
            group_of(scene, call.group),
            (min(f.enqueued for f in known), max(f.enqueued for f in known)),
            (min(f.completed for f in known), max(f.completed for f in known)),
            sum(f.waiting for f in known),
            tuple(sorted(behind)),
            tuple(call.missing),
        )
    return tuple(found[k] for k in sorted(found))


def last_done(scene: Scene) -> tuple[LastDone, ...]:
    """Give the last completed collective of every rank, by time of issue, else in its smallest group."""
    best: dict[int, tuple[tuple[int, int], LastDone]] = {}
    for group in scene.groups:
        for frontier in group.frontiers.values():
            if frontier.completed <= 0:
                continue
            call = frontier.call(frontier.completed)
            done = LastDone(frontier.rank, group.name, call.op if call else None, frontier.completed)
            key = (frontier.created(frontier.completed) or 0, -len(group.ranks))
            if frontier.rank not in best or key > best[frontier.rank][0]:
                best[frontier.rank] = key, done
    return tuple(best[r][1] for r in sorted(best))


def _at(culprit: Culprit) -> str:
    return f"{culprit.rank}@{culprit.host}" if culprit.host else str(culprit.rank)


def _call(call: Signature | None, seq: int) -> CallRef:
    if call is None:
        return CallRef(None, seq, None, None)
    dtype = call.input_dtypes.strip("[]() ").split(",")[0].strip("'\" ")
    return CallRef(call.op.lstrip("_"), seq, sizes(call.input_sizes), dtype or None)


def _text(call: Signature | None) -> str:
    if call is None:
        return "unknown"
    return f"{call.op.lstrip('_')} in {call.input_sizes} out {call.output_sizes} {call.dtypes}"
