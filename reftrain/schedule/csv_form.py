"""Tables as CSV in the notation of torch's pipeline runtime, one row a rank: `0F0,0SEND_F0,1RECV_F0`.

An action that torch has is written as torch writes it, and a table of such actions can be loaded there
(`torch_cannot` names the reason otherwise). Replicas, weight versions, optimiser steps, frees and recomputation
have words of their own in the same notation. The reader skips torch's UNSHARD and RESHARD: here the ZeRO stage
decides about them.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import ENDS_BACKWARD, Action, Kind, Schedule
from reftrain.schedule.text_form import refuse
from reftrain.thresholds import MOST_TABLE_BYTES, MOST_TABLE_RANKS

WORDS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.SEND_ACTIVATION: "SEND_F",
    Kind.RECV_ACTIVATION: "RECV_F",
    Kind.SEND_GRADIENT: "SEND_B",
    Kind.RECV_GRADIENT: "RECV_B",
    Kind.REDUCE_GRADIENT: "REDUCE_GRAD",
    Kind.RECOMPUTE: "RECOMPUTE",
    Kind.SYNC_REPLICAS: "SYNC_REPLICAS",
    Kind.OPTIMIZER_STEP: "OPTIMIZER_STEP",
    Kind.STASH_WEIGHTS: "STASH_WEIGHTS",
    Kind.USE_WEIGHTS: "USE_WEIGHTS",
    Kind.DROP_WEIGHTS: "DROP_WEIGHTS",
    Kind.FREE: "FREE",
}
TORCH = frozenset(list(WORDS)[:9])
KINDS = {word: kind for kind, word in WORDS.items()}
IGNORED = frozenset({"UNSHARD", "RESHARD"})
CELL = re.compile(r"(\d{1,7})([A-Z][A-Z_]*)(\d{0,7})(?:@(\d{1,5}))?", re.ASCII)
OVERLAP = re.compile(r"\(([^();]*);([^();]*)\)OVERLAP_F_B", re.ASCII)


def torch_cannot(schedule: Schedule) -> str | None:
    """Return the reason why torch's runtime cannot run a table, or None when it can."""
    if schedule.replicas > 1:
        return "torch has one rank a stage: no bidirectional pipelines"
    odd = sorted({a.kind for _, _, a in schedule.everything()} - TORCH)
    return f"torch has no action for {WORDS[odd[0]]}" if odd else None


def to_csv(schedule: Schedule) -> str:
    """Return a table as CSV, one row a rank."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for actions in schedule.actions:
        writer.writerow(_cell(action) for action in actions)
    return out.getvalue()


def _cell(action: Action) -> str:
    micro_batch = "" if action.kind is Kind.REDUCE_GRADIENT else str(action.micro_batch)
    replica = f"@{action.replica}" if action.replica else ""
    return f"{action.stage}{WORDS[action.kind]}{micro_batch}{replica}"


def from_csv(text: str, source: str, name: str = "csv") -> Schedule:
    """Return the table that a CSV holds; a stage lies on the rank that runs its forwards.

    A CSV does not hold k: it is the longest run of forwards of one stage in the table, after which ZeRO-2 reduces.
    Raises `ScheduleError` with line and reason.
    """
    if len(text) > MOST_TABLE_BYTES:
        raise ScheduleError(source, f"longer than {MOST_TABLE_BYTES} characters", "give a smaller table")
    ranks: list[tuple[Action, ...]] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text), strict=True), 1):
            if number > MOST_TABLE_RANKS:
                raise refuse(source, number, f"more than {MOST_TABLE_RANKS} ranks")
            ranks.append(tuple(_row(row, source, number)))
    except csv.Error as error:
        raise refuse(source, len(ranks) + 1, f"is not CSV ({error})") from None
    placements = _placements(ranks, source)
    micro_batches = 1 + max(a.micro_batch for actions in ranks for a in actions)
    steps = defaultdict[tuple[int, int], list[int]](list)
    for actions in ranks:
        for action in actions:
            if action.kind is Kind.OPTIMIZER_STEP:
                steps[action.replica, action.stage].append(action.micro_batch)
    several = next((s for s in steps.values() if len(s) > 1), None)
    every = several[1] - several[0] if several else 0
    return Schedule(
        name, micro_batches, _runs(ranks), placements[0], tuple(ranks), placements[1:], max(0, every)
    )


def _row(row: list[str], source: str, number: int) -> Iterator[Action]:
    last: dict[tuple[int, int], int] = {}
    for cell in (c.strip() for c in row):
        overlap = OVERLAP.fullmatch(cell)
        for part in overlap.groups() if overlap else (cell,):
            match = CELL.fullmatch(part.strip())
            if not part.strip() or (match and match[2] in IGNORED):
                continue
            if match is None or match[2] not in KINDS:
                raise refuse(source, number, f"{part[:40]!r} is not an action")
            kind, stage, replica = KINDS[match[2]], int(match[1]), int(match[4] or 0)
            if not match[3] and (kind is not Kind.REDUCE_GRADIENT or (replica, stage) not in last):
                raise refuse(source, number, f"{part[:40]!r} has no micro-batch")
            micro_batch = int(match[3]) if match[3] else last[replica, stage]
            if kind in ENDS_BACKWARD:
                last[replica, stage] = micro_batch
            yield Action(kind, stage, micro_batch, replica)


def _placements(ranks: list[tuple[Action, ...]], source: str) -> tuple[tuple[int, ...], ...]:
    owners: dict[tuple[int, int], int] = {}
    for rank, actions in enumerate(ranks):
        for action in actions:
            key = action.replica, action.stage
            if action.kind is Kind.FORWARD and owners.setdefault(key, rank) != rank:
                raise refuse(
                    source, rank + 1, f"stage {action.stage} has forwards on ranks {owners[key]} and {rank}"
                )
    replicas, stages = (max((k[i] for k in owners), default=-1) + 1 for i in (0, 1))
    for replica in range(replicas):
        for stage in range(stages):
            if (replica, stage) not in owners:
                raise refuse(source, 1, f"stage {stage} of replica {replica} has no forward on any rank")
    if not owners:
        raise refuse(source, 1, "has no forward")
    return tuple(tuple(owners[q, s] for s in range(stages)) for q in range(replicas))


def _runs(ranks: list[tuple[Action, ...]]) -> int:
    """Return k: the longest run of forwards of one virtual stage before another stage of the rank has its turn."""
    most = 1
    for actions in ranks:
        forwards = [a for a in actions if a.kind is Kind.FORWARD]
        run = 0
        for i, action in enumerate(forwards):
            run = run + 1 if i and forwards[i - 1].stage == action.stage else 1
            most = max(most, run)
    return most
