"""Logs and RAS reports in the form of dumps, so that one set of rules judges every kind of evidence.

A rank's lines tell the last enqueued and the last completed call of a group: the same frontier as a dump's status. A
rank of which nothing tells stays without a dump. Where a dump was read, it counts, and lines add only groups that it
lacks. Used by `analysis.hang`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tracekit.dumps.calls import Signature, numel
from tracekit.dumps.load import DumpSet
from tracekit.dumps.rank_dump import SCHEDULED, STARTED, GroupTail, RankDump
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.group_members import Marks, Members, members_of, merged_marks, with_reports
from tracekit.evidence.log_file import GroupKey, Mark
from tracekit.evidence.nccl_calls import Communicator
from tracekit.evidence.nccl_groups import CallGroup, call_groups, tails_of_calls
from tracekit.evidence.nccl_messages import add_messages
from tracekit.evidence.ras_counts import tails_of_ras
from tracekit.findings import Quality
from tracekit.mesh import Mesh

LOG_VERSION: Final = "log"
"""Stands for the version of a dump that was made of lines or of a RAS report."""


@dataclass
class Composed:
    """Dumps made of all evidence, the groups of which not all members are known, and what could not be used."""

    dumps: DumpSet
    partial: frozenset[str] = frozenset()
    """Names of groups whose size nothing tells."""
    still: bool = False
    """Whether a call timed out: the job did not move for minutes."""
    sources: dict[int, set[str]] = field(default_factory=dict)
    """By rank the kinds of evidence that its dump is made of."""


def compose(bundle: Bundle, mesh: Mesh | None = None) -> Composed:
    """Return the evidence of a job as dumps. mesh: that of the user, which shows members of groups that logs name."""
    given = bundle.dumps.dumps if bundle.dumps is not None else {}
    marks = merged_marks(bundle.logs)
    members = members_of(marks, given, bundle.world, mesh)
    with_reports(marks, members, bundle.logs)
    timed = any(mark.started for of_rank in marks.values() for mark in of_rank.values())
    dumps = dict(given)
    sources: dict[int, set[str]] = {rank: {"dump"} for rank in given}
    groups = _call_groups(bundle, marks, members, mesh)
    clocked = {r for r, of_rank in marks.items() if any(mark.work for mark in of_rank.values())}
    _add_calls(dumps, sources, groups, tails_of_calls(groups, clocked, timed=timed))
    partial = {group.members.name for group in groups if not group.members.whole}
    left = 0
    for rank, of_rank in marks.items():
        tails = []
        for key, mark in of_rank.items():
            found = members.get((rank, key))
            if found is None or len(found.ranks) < 2:
                left += 1
                tails.extend(_wait_alone(rank, key, mark))
            elif (tail := _tail(found, mark, timed=timed)) is not None:
                tails.append(tail)
                partial |= set() if found.whole else {found.name}
        _add(dumps, sources, rank, tails, "log")
        if timed and rank not in given and rank in dumps:
            dumps[rank].timed = True
    for rank, tails in tails_of_ras(bundle.ras).items():
        _add(dumps, sources, rank, [t for t in tails if not given.keys() >= set(t.ranks)], "ras")
    _spread_messages(dumps.values())
    _agree_on_calls(dumps)
    still = any(log.timed_out is not None for log in bundle.logs)
    return Composed(_dump_set(bundle, dumps, left), frozenset(partial), still, sources)


def _dump_set(bundle: Bundle, dumps: Mapping[int, RankDump], left: int) -> DumpSet:
    """Return the dumps of all evidence as a set. left: states of groups without known members."""
    world = {
        *dumps,
        *range(bundle.world or 0),
        *(r for d in dumps.values() for g in d.groups for r in g.ranks),
    }
    rejected = (*(bundle.dumps.rejected if bundle.dumps is not None else ()), *bundle.rejected)
    own = bundle.dumps.quality if bundle.dumps is not None else ()
    job = bundle.dumps.job if bundle.dumps is not None else None
    quality = (*own, *bundle.quality, *_left_out(left), *_attempts(bundle))
    whole = bundle.dumps is not None or bool(bundle.ras)
    return DumpSet(dict(sorted(dumps.items())), rejected, quality, tuple(sorted(world)), job, whole)


def _call_groups(
    bundle: Bundle, marks: Marks, members: Mapping[tuple[int, GroupKey], Members], mesh: Mesh | None
) -> list[CallGroup]:
    """Return the communicators of NCCL's lines; none beside dumps, which hold the same calls under other numbers."""
    if bundle.dumps is not None or not any(log.nccl for log in bundle.logs):
        return []
    return call_groups(bundle.logs, marks, members, bundle.world, mesh)


def _add_calls(
    dumps: dict[int, RankDump],
    sources: dict[int, set[str]],
    groups: list[CallGroup],
    tails: dict[int, list[tuple[GroupTail, Communicator]]],
) -> None:
    """Add the collectives and messages of communicators."""
    for rank, of_rank in tails.items():
        _add(dumps, sources, rank, [tail for tail, _ in of_rank], "calls")
    add_messages(dumps, tails, groups)


def _add(
    dumps: dict[int, RankDump], sources: dict[int, set[str]], rank: int, tails: Iterable[GroupTail], kind: str
) -> None:
    """Add groups to the dump of a rank that it lacks; a rank without a dump gets one."""
    kept = list(tails)
    if not kept:
        return
    dump = dumps.get(rank)
    if dump is None:
        dump = RankDump(
            "", LOG_VERSION, None, [], [], rank=rank, has_status=True, wrapped=True, finished=True
        )
        dump.entries = len(kept)
    known = {(tail.name, tail.ranks) for tail in dump.groups} | {
        (tail.desc, tail.ranks) for tail in dump.groups
    }
    fresh = [t for t in kept if (t.name, t.ranks) not in known and (t.desc, t.ranks) not in known]
    if fresh:
        dumps[rank] = replace(dump, groups=[*dump.groups, *fresh])
        sources.setdefault(rank, set()).add(kind)


def _tail(members: Members, mark: Mark, *, timed: bool) -> GroupTail | None:
    """Return the frontier of a mark; None where it shows none. timed: whether lines show what devices began."""
    work = mark.work
    enqueued = mark.enqueued if mark.enqueued is not None else work.seq if work is not None else None
    completed = mark.completed
    if work is not None:
        enqueued = max(enqueued or 0, work.seq)
        completed = work.seq - 1 if completed is None else min(completed, work.seq - 1)
    if enqueued is None:
        return None
    tail = GroupTail(members.name, members.desc, members.ranks, has_p2p=mark.messages)
    tail.status_enqueued = enqueued
    tail.status_completed = -1 if completed is None else completed
    tail.partial = not members.whole
    if work is not None and not mark.messages:
        tail.seq = np.array([work.seq], np.int64)
        begun = not timed or mark.started is None or mark.started >= work.seq
        tail.state = np.array([STARTED if begun else SCHEDULED], np.int8)
        tail.created = np.array([work.created_ns], np.int64)
        tail.calls = (work.call,)
        tail.stacks = (mark.stack,) if mark.stack else ()
    return tail


def _wait_alone(rank: int, key: GroupKey, mark: Mark) -> list[GroupTail]:
    """Return the wait of a rank in a group whose other members nothing tells: the rank is not idle."""
    if mark.work is None and (
        mark.enqueued is None or mark.completed is None or mark.completed >= mark.enqueued
    ):
        return []
    tail = GroupTail(f"{key[0]} of rank {rank}", key[1] if key[1] != "default_pg" else "", ())
    tail.entry_enqueued, tail.entry_completed = 1, 0
    return [tail]


def _spread_messages(dumps: Iterable[RankDump]) -> None:
    """Mark a group as one of messages on all ranks where one rank waits in a message there."""
    listed = list(dumps)
    mixed = {(t.name, t.ranks) for d in listed for t in d.groups if t.has_p2p}
    for dump in listed:
        for tail in dump.groups if dump.version == LOG_VERSION else ():
            tail.has_p2p |= (tail.name, tail.ranks) in mixed


def _agree_on_calls(dumps: Mapping[int, RankDump]) -> None:
    """Give a call of a log the sizes and dtypes that a dump tells of the same call, where kind and elements agree."""
    full: dict[tuple[str, tuple[int, ...], int], list[Signature]] = {}
    for dump in dumps.values():
        if dump.version != LOG_VERSION:
            for tail in dump.groups:
                for seq, call in zip(tail.seq.tolist(), tail.calls, strict=True):
                    kept = full.setdefault((tail.name, tail.ranks, seq), [])
                    if call not in kept:
                        kept.append(call)
    for dump in dumps.values() if full else ():
        for tail in dump.groups if dump.version == LOG_VERSION else ():
            calls = zip(tail.seq.tolist(), tail.calls, strict=True)
            tail.calls = tuple(
                [_fuller(call, full.get((tail.name, tail.ranks, seq), [])) for seq, call in calls]
            )


def _fuller(call: Signature, known: Iterable[Signature]) -> Signature:
    """Return the call as a dump tells it, if it is the same one."""
    return next((other for other in known if _same_call(call, other)), call)


def _same_call(short: Signature, full: Signature) -> bool:
    names = [name.lower().replace("_", "") for name in (short.op, full.op)]
    barrier = "barrier" in names[1] and names[0].startswith(("allreduce", "barrier"))
    counts = [(numel(c.input_sizes), numel(c.output_sizes)) for c in (short, full)]
    alike = all(a is None or b is None or a == b for a, b in zip(*counts, strict=True))
    return barrier or (names[1].startswith(names[0]) and alike)


def _left_out(count: int) -> list[Quality]:
    detail = (
        "states of groups with members that the lines do not name; give --mesh, logs of more ranks, or a dump"
    )
    return [Quality("unnamed_groups", None, count, detail)] if count else []


def _attempts(bundle: Bundle) -> list[Quality]:
    detail = "the job was restarted in this log; only its last attempt is judged"
    return [
        Quality("restarts", log.path, log.attempts - 1, detail) for log in bundle.logs if log.attempts > 1
    ]
