"""A send or receive that ranks left out: their later messages have one number less than those of their stage."""

from collections import defaultdict
from collections.abc import Mapping

from tracekit.analysis.hang.frontier import Role
from tracekit.analysis.hang.message_cycle import message_cycle
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.dumps.calls import Signature
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
