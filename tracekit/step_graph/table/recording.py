"""The operations of a run as one template for all steps, and their recorded times as arrays of operations × steps.

Every step of an operation table runs the same operations, so dependencies are found once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tracekit.rank_events.event_columns import categories, ints
from tracekit.rank_events.step_marks import NO_STEP, label, step_spans
from tracekit.store import Run
from tracekit.thresholds.slowrank import QUEUED_NS
from tracekit.units import F64, I64

FORMAT = "operation_table"
"""The format with rows that name every operation of a step."""
NORM = "optimizer-clip-main-grad"
"""The operation that sums the gradient norm over all ranks of the job."""


def communicates(name: str) -> bool:
    """Return whether operations of that name communicate, including ones without a counterpart at a pipeline's end."""
    return name == NORM or name.rpartition("-")[2] in ("send", "recv")


@dataclass(frozen=True)
class Operation:
    """One operation of every step: the `ordinal`-th of its `name` on `rank`.

    meeting: equal for the operations of one collective or message; None without a counterpart. micro_batch: -1 if
    unknown. serves: equal for a computation and the communication that it needs or that follows it, -1 if unknown.
    """

    rank: int
    name: str
    ordinal: int
    meeting: tuple[int, int] | None
    micro_batch: int = -1
    serves: int = -1


@dataclass(frozen=True)
class Recording:
    """The operations that the steps have in common, and their times in each step.

    steps: numbers of the steps that run every operation. left_out: the other steps. start, end: ns, operations ×
    steps, `start` counted from the first start of the step on any rank. seq: of the same shape, the number of the
    meeting in its group; -1 where there is none.
    """

    operations: tuple[Operation, ...]
    steps: tuple[int, ...]
    left_out: tuple[int, ...]
    start: F64
    end: F64
    seq: I64


Times = dict[tuple[int, str, int], tuple[int, int, tuple[int, int] | None, int, int]]
"""(rank, name, ordinal) → start, end, meeting, micro-batch, served computation (-1: none); of one step."""


def recording_of(run: Run, wanted: Iterable[int] | None = None) -> Recording | None:
    """Return the operations of a run that holds an operation table; None for any other run, or one without steps.

    wanted: the steps to read, all where it is None. A step counts where it runs exactly the operations that most do.
    Raises InputError where the events of a rank cannot be read.
    """
    if any(record.format != FORMAT for record in run.ranks):
        return None
    by_step: dict[int, Times] = defaultdict(dict)
    for record in run.ranks:
        _read_rank(run, record.rank, by_step)
    chosen = {n: by_step[n] for n in sorted(by_step if wanted is None else by_step.keys() & set(wanted))}
    if not chosen:
        return None
    usual = Counter(frozenset(times) for times in chosen.values()).most_common(1)[0][0]
    steps = tuple(n for n, times in chosen.items() if times.keys() == usual)
    template = by_step[steps[0]]
    keys = sorted(template, key=lambda k: (k[0], template[k][0], template[k][1], k[1], k[2]))
    operations = tuple(Operation(*key, *template[key][2:]) for key in keys)
    times = np.array([[by_step[n][key][:2] for n in steps] for key in keys], np.float64)
    met = [[by_step[n][key][2] for n in steps] for key in keys]
    seq = np.array([[m[1] if m else -1 for m in row] for row in met], np.int64)
    times -= times[:, :, 0].min(axis=0)[None, :, None]
    left_out = tuple(n for n in chosen if n not in steps)
    return Recording(operations, steps, left_out, times[:, :, 0], times[:, :, 1], seq)


def _read_rank(run: Run, rank: int, by_step: dict[int, Times]) -> None:
    """Add the operations of `rank` to the steps that they belong to."""
    columns = ["ts", "dur", "cat", "name", "collective", "group", "seq", "micro_batch", "correlation"]
    events = run.events(rank, columns)
    start = ints(events, "ts", 0)
    spans = step_spans(events, categories(events), start, start + ints(events, "dur", 0))
    count: Counter[tuple[int, str]] = Counter()
    for row, number in zip(events.to_pylist(), label(start, spans).tolist(), strict=True):
        if row["cat"] != "kernel" or number == NO_STEP:
            continue
        ordinal = count[number, row["name"]]
        count[number, row["name"]] += 1
        known = row["collective"] is not None and row["group"] is not None and row["seq"] is not None
        meeting = (int(row["group"]), int(row["seq"])) if known else None
        numbers = (-1 if row[c] is None else int(row[c]) for c in ("micro_batch", "correlation"))
        by_step[number][rank, row["name"], ordinal] = (row["ts"], row["ts"] + row["dur"], meeting, *numbers)


def message_queues(recording: Recording) -> list[list[int]]:
    """Return the messages of each rank with another rank, in order, where the times of both show one stream for them.

    On one stream no two overlap in any step, and one begins on either rank when one of the other direction ends.
    """
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, operation in enumerate(recording.operations):
        if operation.meeting is not None and _sends(operation) is not None:
            ends[operation.meeting].append(i)
    between: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for both in ends.values():
        ranks = tuple(sorted(recording.operations[i].rank for i in both))
        for i in both:
            between[ranks][recording.operations[i].rank].append(i)
    queues = []
    for by_rank in between.values():
        rows = [np.array(mine)[np.argsort(recording.start[mine, 0])] for mine in by_rank.values()]
        idle = [recording.start[mine[1:]] - recording.end[mine[:-1]] for mine in rows]
        turns = [np.diff([_sends(recording.operations[i]) is True for i in mine]) != 0 for mine in rows]
        apart = len(rows) > 1 and all((gap >= -QUEUED_NS).all() for gap in idle)
        if apart and any((gap[turn] <= QUEUED_NS).any() for gap, turn in zip(idle, turns, strict=True)):
            queues += [mine.tolist() for mine in rows]
    return queues


def _sends(operation: Operation) -> bool | None:
    """Return whether an operation sends a message, or receives one; None for any other."""
    return {"send": True, "recv": False}.get(operation.name.rpartition("-")[2])
