"""A send or receive that ranks left out: their later messages have one number less than those of their stage.

Or the ranks went on to a collective with fewer messages made than their stage, a micro-batch less: a neighbour waits
for the message left out, and the rank in a collective with members that wait for that neighbour in the end. Ranks of
one stage number their messages equally, so no earlier repetition is needed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tracekit.analysis.hang.channels import same_group
from tracekit.analysis.hang.frontier import Role
from tracekit.analysis.hang.message_cycle import message_cycle
from tracekit.analysis.hang.program_order import CallId
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.dumps.calls import Signature
from tracekit.dumps.rank_dump import P2P
from tracekit.thresholds.hang import MIN_WITNESSES

_AND = "; "
_Log = dict[int, str]
"""Names of a rank's messages on a group, by number; those of one batch are joined."""


def skipped_message(scene: Scene, _known: Found) -> Found:
    """Give the rank that left out a send or receive which all ranks of its stage make.

    Looks for: a log of messages that from some number on is one ahead of the other logs of its stage; also several
    such logs of one stage, as where one replica of a pipeline runs a micro-batch less. Among ranks that wait in a
    circle of messages one log is enough where a stage has no more, if the others there have the logs of their stages.
    Excuses: every rank where two or more show this at different messages, or explain only a part of the waiting; ranks
    that fewer than two logs contradict, or less than twice as many as agree with them; and all where those differ.
    Returns: `host_stalled` at the message left out, with a note.
    """
    shifted: dict[int, tuple[tuple[Role, int], int, str]] = {}
    logs = _logs(scene)
    odd = _odd_in_circle(scene, logs)
    for place, stage in logs.items():
        for rank, log in stage.items():
            others = list(stage.values())
            against = [o for o in others if _unlike(log, o)] if rank == odd else _contradicting(log, others)
            missed = _first_shift(log, against)
            if missed is not None:
                shifted[rank] = (place, *missed)
    if len(set(shifted.values())) != 1:
        return Found()
    if len(shifted) > 1 and not all_explained(scene, shifted.keys() | unseen_waits(scene), shifted.keys()):
        return Found()
    culprits = {}
    for rank, ((role, _), seq, op) in sorted(shifted.items()):
        number = next(i for i, g in enumerate(scene.groups) if rank in g.frontiers and g.role == role)
        culprits[rank] = Accusation("host_stalled", number, seq, call=Signature(op, "", "", "", ""))
    notes = [
        f"rank {r} left out message {seq} ({op}), which its stage makes"
        for r, (_, seq, op) in shifted.items()
    ]
    return Found(culprits, notes=tuple(notes))


def _odd_in_circle(scene: Scene, logs: Mapping[tuple[Role, int], Mapping[int, _Log]]) -> int | None:
    """Return the only rank of a circle of messages with another log than its stage; None where several may be it.

    The messages of these ranks do not meet, those of the same ranks of another pipeline do.
    """
    circle = message_cycle(scene)
    odd, vouched = set(), set()
    for stage in logs.values():
        for rank in stage.keys() & set(circle.ranks if circle else ()):
            others = [log for other, log in stage.items() if other != rank]
            unlike = [log for log in others if _unlike(stage[rank], log)]
            if others and not unlike:
                vouched.add(rank)
            elif len(others) < MIN_WITNESSES:
                odd.add(rank)
    return min(odd) if circle and len(odd) == 1 and {*circle.ranks} == odd | vouched else None


def _unlike(log: _Log, other: _Log) -> bool:
    return any(log.get(seq, name) != name for seq, name in other.items())


def _logs(scene: Scene) -> dict[tuple[Role, int], dict[int, _Log]]:
    """Give the logs of messages of every rank, by the role of the group and the place in it."""
    logs: dict[tuple[Role, int], dict[int, _Log]] = defaultdict(lambda: defaultdict(dict))
    for rank, dump in scene.dumps.items():
        kept = dump.messages
        for number, seq, name in zip(kept.group.tolist(), kept.seq.tolist(), kept.names, strict=True):
            tail = dump.groups[number]
            if rank in tail.ranks and len(tail.ranks) > 1 and not dump.truncated:
                log = logs[(tail.desc, len(tail.ranks)), tail.ranks.index(rank)][rank]
                log[seq] = log[seq] + _AND + name if seq in log else name
    return logs


def _contradicting(log: _Log, stage: list[_Log]) -> list[_Log]:
    """Return the logs of the stage that differ from this one; empty if too few do, compared with the agreeing ones."""
    differ = [other for other in stage if _unlike(log, other)]
    alike = len(stage) - len(differ)
    return differ if len(differ) >= max(MIN_WITNESSES, 2 * alike) else []


def _first_shift(log: _Log, others: list[_Log]) -> tuple[int, str] | None:
    """Give number and operation of the message from which on `log` is one ahead of all `others`; None if it is not.

    The others must agree on every message, and some messages before that one must be the same.
    """
    usual: dict[int, set[str]] = defaultdict(set)
    for other in others:
        for seq, name in other.items():
            usual[seq].add(name)
    differ = [s for s, name in sorted(log.items()) if usual[s] and usual[s] != {name}]
    if not differ or any(len(usual[s]) > 1 for s in log):
        return None
    first = differ[0]
    shifted = [usual[s + 1] == {name} for s, name in log.items() if s >= first and usual[s + 1]]
    before = [s for s in log if s < first and usual[s]]
    if not (shifted and all(shifted) and before):
        return None
    return first, _spoken(next(iter(usual[first])))


def _spoken(names: str) -> str:
    """Give the names of a batch's messages as words, without that of the batch itself."""
    parts = [name.partition(":")[2] or name for name in names.split(_AND)]
    return " and ".join(part for part in parts if part and part != "coalesced")


def short_of_messages(scene: Scene, _known: Found) -> Found:
    """Give the ranks that issued a collective after fewer messages than their stage, and that a message awaits.

    Looks for: ranks in a circle of waiting with a neighbour that waits in a message they have not joined, if all their
    peers had made more messages, of one number, when they issued the collective in which the rank waits.
    Excuses: ranks with a neighbour that may have made a message too many, because no rank of its own stage made it;
    stages with other ranks that do not agree; and all ranks if some waiting does not start from them.
    Returns: `host_stalled` at the first message left out, with a note.
    """
    stages: dict[object, list[int]] = defaultdict(list)
    for rank, stage in scene.stages.items():
        stages[stage].append(rank)
    found: dict[int, Accusation] = {}
    for rank in sorted(scene.graph.awaited.keys() & scene.graph.waits.keys() & scene.dumps.keys()):
        accusation = None if rank in scene.graph.stale else _accuse(scene, rank, stages[scene.stages[rank]])
        if accusation is not None:
            found[rank] = accusation
    if not found or not all_explained(scene, found.keys() | unseen_waits(scene), found.keys()):
        return Found()
    notes = [f"rank {rank} went on with fewer messages made than its stage" for rank in found]
    return Found(found, notes=tuple(notes))


def _accuse(scene: Scene, rank: int, stage: list[int]) -> Accusation | None:
    """Accuse a rank of the first message that it lacks; None where nothing shows that it lacks one."""
    for asker in sorted(scene.graph.awaited[rank]):
        dump = scene.dumps[asker]
        for op in dump.p2p:
            if dump.groups[op.group].ranks[op.peer : op.peer + 1] != (rank,) or not _usual(scene, asker, op):
                continue
            local = same_group(dump, op.group, scene.dumps[rank])
            number = None if local is None else _number(scene, rank, local)
            if number is not None and (lacked := _lacked(scene, rank, number, stage)) is not None:
                seq, name = lacked
                return Accusation("host_stalled", number, seq, call=Signature(name, "", "", "", ""))
    return None


def _number(scene: Scene, rank: int, local: int) -> int | None:
    """Give the number of the group that is `local` in the dump of a rank."""
    tail = scene.dumps[rank].groups[local]
    own = (n for alike in scene.places[rank].values() for n in alike)
    return next((n for n in own if scene.groups[n].frontiers[rank].tail is tail), None)


def _usual(scene: Scene, asker: int, op: P2P) -> bool:
    """Return whether another rank of the asker's stage made the message under its number: it is not one too many."""
    number = _number(scene, asker, op.group)
    same = (rank for rank, stage in scene.stages.items() if stage == scene.stages[asker] and rank != asker)
    for rank in same:
        local = None if number is None else _local(scene, rank, number)
        if local is not None and scene.dumps[rank].messages.place(local, op.seq, op.text) is not None:
            return True
    return False


def _local(scene: Scene, rank: int, number: int) -> int | None:
    """Give the place, in the dump of a rank, of its group in the place of group `number`."""
    own = scene.own(rank, number)
    if own is None:
        return None
    tail = scene.groups[own].frontiers[rank].tail
    return next(i for i, other in enumerate(scene.dumps[rank].groups) if other is tail)


def _lacked(scene: Scene, rank: int, number: int, stage: Sequence[int]) -> tuple[int, str] | None:
    """Give number and operation of the first message that a rank lacks; None where its stage does not show one.

    A host runs ahead of its device: any call that it has issued may come after the message, not only the oldest.
    """
    calls = [
        (created, call.group, call.seq)
        for call in scene.pending(scene.graph.waits[rank])
        if (created := scene.groups[call.group].frontiers[rank].created(call.seq)) is not None
    ]
    for _, group, seq in sorted(calls):
        if (lacked := _lacked_before(scene, rank, number, stage, CallId(group, seq))) is not None:
            return lacked
    return None


def _lacked_before(
    scene: Scene, rank: int, number: int, stage: Sequence[int], call: CallId
) -> tuple[int, str] | None:
    """Give the first message that a rank lacks before a call, where all others of its stage made the same number."""
    mine = _made_before(scene, rank, number, call.group, call.seq)
    others = {
        other: made
        for other in stage
        if other != rank
        and other not in scene.graph.awaited
        and (made := _made_before(scene, other, number, call.group, call.seq)) is not None
    }
    if mine is None or len(set(others.values())) != 1 or mine >= min(others.values()):
        return None
    witness = min(others)
    local = _local(scene, witness, number)
    log = scene.dumps[witness].messages
    names = [log.names[at] for at in np.flatnonzero((log.group == local) & (log.seq == mine + 1)).tolist()]
    return (mine + 1, names[0].rpartition(":")[2]) if names else None


def _made_before(scene: Scene, rank: int, number: int, group: int, seq: int) -> int | None:
    """Give the number of the last message that a rank made before a collective, in its own groups; None if unknown."""
    own, local = scene.own(rank, group), _local(scene, rank, number)
    if own is None or local is None:
        return None
    created = scene.groups[own].frontiers[rank].created(seq)
    log = scene.dumps[rank].messages
    before = log.seq[(log.group == local) & (log.created > 0) & (log.created < (created or 0))]
    return int(before.max()) if len(before) else None
