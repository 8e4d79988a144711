"""Puts the result of the rules into the terms of the contract: groups with axes, calls with sizes, stacks, sentences.

Only here do numbers of groups and sequence numbers become words for a reader.
"""

from collections.abc import Mapping

from tracekit.analysis.hang.agreement import sizes
from tracekit.analysis.hang.program_order import CallId, first_in_program
from tracekit.analysis.hang.rules.rule import Accusation, Mismatch
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.calls import Signature
from tracekit.findings.hang import CallRef, Culprit, GroupFrontier, GroupRef, LastDone, Side
from tracekit.thresholds.hang import NAMED_IN_SENTENCE

_KINDS = {
    "host_stalled": "host stalled (never enqueued it)",
    "device_stalled": "device stalled (enqueued it, never completed it)",
    "mismatched_call": "mismatched call",
    "missing_dump": "left no whole dump and was not seen to enqueue it",
}


def culprits_of(scene: Scene, accusations: Mapping[int, Accusation]) -> tuple[Culprit, ...]:
    """Give the culprits by rank, each with everything known of it."""
    return tuple(_culprit(scene, rank, accusations[rank]) for rank in sorted(accusations))


def _culprit(scene: Scene, rank: int, accused: Accusation) -> Culprit:
    """Give one culprit; of a send or receive no frontier is given, since messages are not numbered like calls."""
    group = scene.groups[accused.group]
    seq, mismatch = accused.seq, accused.mismatch
    frontier, dump = group.frontiers.get(rank), scene.dumps.get(rank)
    own = None
    if frontier is not None and accused.kind in {"device_stalled", "mismatched_call"}:
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
        sides=() if mismatch is None or accused.kind != "mismatched_call" else _sides(scene, mismatch),
    )


def group_of(scene: Scene, number: int) -> GroupRef:
    """Give the reference of a group, with its axis."""
    group = scene.groups[number]
    dims = scene.mesh.dims_of(group.ranks) if scene.mesh is not None else None
    return GroupRef(group.name, group.desc, "_".join(dims) if dims else None, group.ranks)


def _sides(scene: Scene, mismatch: Mismatch) -> tuple[Side, ...]:
    """Give every version of a mismatched call, those that most ranks made first; the usual one where none made it."""
    group = scene.groups[mismatch.group]
    sides = []
    for ranks in mismatch.sides.values():
        call = mismatch.calls.get(ranks[0]) or group.frontiers[ranks[0]].call(mismatch.seq)
        sides.append(Side(tuple(sorted(ranks)), _text(call)))
    if (len(sides) == 1 or mismatch.calls) and mismatch.expected is not None:
        sides.append(Side((), _text(mismatch.expected)))
    return tuple(sorted(sides, key=lambda s: (-len(s.ranks), s.ranks)))


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
    """Give one sentence: who, how, in which call; further culprits are counted, not named."""
    parts = []
    for kind in dict.fromkeys(c.kind for c in culprits):
        same = [c for c in culprits if c.kind == kind]
        first = same[0]
        ranks = ", ".join(_at(c) for c in same[:NAMED_IN_SENTENCE])
        if len(same) > NAMED_IN_SENTENCE:
            ranks += f" and {len(same) - NAMED_IN_SENTENCE} more"
        where = f"{first.group.dim or first.group.desc or 'group'} group {first.group.name}"
        op = first.collective.op or "call"
        parts.append(
            f"rank{'s' * (len(same) > 1)} {ranks}: {_KINDS[kind]}, {op} {first.collective.seq} of {where}"
        )
    stuck = len(scene.graph.stuck - {c.rank for c in culprits})
    return f"{'; '.join(parts)}; {stuck} ranks wait for {'it' if len(culprits) == 1 else 'them'}"


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
