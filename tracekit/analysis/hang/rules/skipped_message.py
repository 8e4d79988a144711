"""A send or receive that a rank left out: its later messages stand one number earlier than those of its stage."""

from collections import defaultdict

from tracekit.analysis.hang.frontier import Role
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.calls import Signature

_Log = dict[int, str]
"""Names of a rank's messages on a group, by number; those of one batch are joined."""


def skipped_message(scene: Scene, _known: Found) -> Found:
    """Give the rank that left out a send or receive which all ranks of its stage make.

    Looks for: a log of messages that from some number on is one ahead of all logs of its stage.
    Excuses: every rank where two or more show this, where fewer than two other logs exist, or where those differ.
    Returns: `host_stalled` at the message left out, with a note.
    """
    logs: dict[tuple[Role, int], dict[int, _Log]] = defaultdict(lambda: defaultdict(dict))
    for rank, dump in scene.dumps.items():
        kept = dump.messages
        for number, seq, name in zip(kept.group.tolist(), kept.seq.tolist(), kept.names, strict=True):
            tail = dump.groups[number]
            if rank in tail.ranks and len(tail.ranks) > 1 and not dump.truncated:
                log = logs[(tail.desc, len(tail.ranks)), tail.ranks.index(rank)][rank]
                log[seq] = log.get(seq, "") + name
    shifted: dict[int, tuple[Role, int, str]] = {}
    for (role, _), stage in logs.items():
        for rank, log in stage.items():
            missed = _first_shift(log, [other for r, other in stage.items() if r != rank])
            if missed is not None:
                shifted[rank] = (role, *missed)
    if len(shifted) != 1:
        return Found()
    ((rank, (role, seq, op)),) = shifted.items()
    number = next(i for i, g in enumerate(scene.groups) if rank in g.frontiers and g.role == role)
    note = f"rank {rank} left out message {seq} ({op}), which its stage makes"
    accusation = Accusation("host_stalled", number, seq, call=Signature(op, "", "", "", ""))
    return Found({rank: accusation}, notes=(note,))


def _first_shift(log: _Log, others: list[_Log]) -> tuple[int, str] | None:
    """Give number and operation of the message from which on `log` is one ahead of all `others`; None if it is not.

    The others must agree on every message, and some messages before that one must be the same.
    """
    if len(others) < 2:
        return None
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
    name = next(iter(usual[first]))
    return first, name[name.find(":") + 1 :]
