"""The messages that pipeline stages exchange in a step, kernel by kernel, under the schedules in common use.

1F1B (Narayanan et al., SOSP 2019), interleaved 1F1B (Narayanan et al., SC 2021) and GPipe (Huang et al., NeurIPS 2019).
A stage receives what a task needs before it, and sends its result behind it. Frameworks put each message into a kernel
of its own, batch the two of a change between forward and backward, or batch all between two tasks.
"""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

Grouping = Literal["alone", "alone, receives first", "of a change", "between tasks"]
GROUPINGS: Final[tuple[Grouping, ...]] = ("alone", "alone, receives first", "of a change", "between tasks")
CHUNKS: Final = (2, 3, 4)
"""Model chunks a stage, where stages are interleaved."""


class Message(NamedTuple):
    """A message as one of its two stages sees it."""

    peer: int  # the other stage
    sent: bool


Kernel = tuple[Message, ...]
"""What one kernel carries."""


class _Task(NamedTuple):
    """Forward or backward of one micro-batch through one chunk."""

    forward: bool
    chunk: int


def schedules(counts: tuple[int, ...]) -> Iterator[list[list[Kernel]]]:
    """Yield the kernels of each stage under each schedule in which the stages run `counts` kernels."""
    for chunks in (1, *CHUNKS):
        for micro_batches in range(1, counts[0] // chunks + 2):
            for gpipe in (False, True) if chunks == 1 else (False,):
                for grouping in GROUPINGS if chunks == 1 or micro_batches % len(counts) == 0 else ():
                    found = _scheduled(counts, micro_batches, chunks, grouping, gpipe=gpipe)
                    if found is not None:
                        yield found


def _scheduled(
    counts: tuple[int, ...], micro_batches: int, chunks: int, grouping: Grouping, *, gpipe: bool
) -> list[list[Kernel]] | None:
    """Return the kernels of each stage; None if one stage runs another number of them than `counts`."""
    found: list[list[Kernel]] = []
    for stage, count in enumerate(counts):
        tasks = _tasks(stage, len(counts), micro_batches, chunks, gpipe=gpipe)
        kernels = _kernels(tasks, stage, len(counts), chunks, grouping)
        if len(kernels) != count:
            return None
        found.append(kernels)
    return found


def _tasks(stage: int, stages: int, micro_batches: int, chunks: int, *, gpipe: bool) -> list[_Task]:
    """The tasks of a stage in order."""
    total, behind = micro_batches * chunks, stages - 1 - stage
    warm = behind if chunks == 1 else 2 * behind + (chunks - 1) * stages
    ahead = total if gpipe else min(total, warm)
    order = [(n % (stages * chunks)) // stages if chunks > 1 else 0 for n in range(total)]
    forth = [_Task(True, c) for c in order]
    back = [_Task(False, chunks - 1 - c) for c in order]
    steady = [t for pair in zip(forth[ahead:], back[: total - ahead], strict=True) for t in pair]
    return [*forth[:ahead], *steady, *back[total - ahead :]]


def _kernels(tasks: list[_Task], stage: int, stages: int, chunks: int, grouping: Grouping) -> list[Kernel]:
    """Return the kernels of a stage: the messages between two of its `tasks`, by `grouping`."""
    ends = [_messages(t, stage, stages, chunks) for t in tasks]
    found: list[Kernel] = []
    for at in range(len(tasks) + 1):
        sent = ends[at - 1][1] if at else None
        received = ends[at][0] if at < len(tasks) else None
        here = [m for m in (sent, received) if m is not None]
        changes = 0 < at < len(tasks) and tasks[at - 1].forward != tasks[at].forward
        if grouping == "between tasks" or (grouping == "of a change" and changes):
            found += [tuple(here)] if here else []
        else:
            found += [(m,) for m in (here[::-1] if grouping == "alone, receives first" else here)]
    return found


def _messages(task: _Task, stage: int, stages: int, chunks: int) -> tuple[Message | None, Message | None]:
    """Return the message that a stage receives before a task, and the one that it sends after it."""
    first = stage == 0 and task.chunk == 0
    last = stage == stages - 1 and task.chunk == chunks - 1
    before, behind = (stage - 1) % stages, (stage + 1) % stages
    if task.forward:
        return (None if first else Message(before, False)), (None if last else Message(behind, True))
    return (None if last else Message(behind, False)), (None if first else Message(before, True))
