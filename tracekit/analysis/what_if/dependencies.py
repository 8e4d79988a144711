"""Which operation waits for which: the dependency model of the OSDI'25 what-if analysis.

After Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25, section 3.2, and
the published analysis beside it). On each rank compute runs in one stream, and sends and receives of either direction
run in four more. A receive lets its compute start, a send follows its compute. What precedes the first compute holds it
back, and what follows the last one runs in order.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from tracekit.analysis.what_if.operations import NORM, Operation, Recording

PHASES = ("forward", "backward")
Edges = list[list[int]]
"""By operation the operations that must have ended before it starts."""


def dependencies(recording: Recording) -> Edges | None:
    """Return what each operation waits for on its own rank; None where receives and computes do not pair one to one.

    That is so where a stage holds several model chunks, of which the first receives nothing.
    """
    before: Edges = [[] for _ in recording.operations]
    by_rank: dict[int, list[int]] = defaultdict(list)
    for i, operation in enumerate(recording.operations):
        by_rank[operation.rank].append(i)
    for mine in by_rank.values():
        if not _link_rank(recording, mine, before):
            return None
    return before


def meetings(operations: Sequence[Operation]) -> list[list[int]]:
    """Return sets of operations that end only when all of a set have started; what meets nobody is a set of its own.

    The gradient norm is a sum over all ranks, which tables record as if it were compute.
    """
    found: dict[object, list[int]] = defaultdict(list)
    for i, operation in enumerate(operations):
        key: object = operation.meeting if operation.meeting is not None else (i, "alone")
        found[(NORM, operation.ordinal) if operation.name == NORM else key].append(i)
    return list(found.values())


def _link_rank(recording: Recording, mine: list[int], before: Edges) -> bool:
    """Add the dependencies among the operations of one rank; false where they do not fit."""
    named: dict[str, list[int]] = defaultdict(list)
    for i in mine:  # in order of start
        named[recording.operations[i].name].append(i)
    compute = [i for i in mine if recording.operations[i].name in _COMPUTE]
    if not compute:
        return False
    _chain(compute, before)
    for phase in PHASES:
        work = named[f"{phase}-compute"]
        for end in ("recv", "send"):
            messages = named[f"{phase}-{end}"]
            if messages and len(messages) != len(work):
                return False
            _chain(messages, before)
            _link_messages(work, messages, before, receives=end == "recv")
    _hold_first_backward(recording, compute, named, before)
    _link_rest(recording, mine, compute, before)
    return True


_COMPUTE = tuple(f"{phase}-compute" for phase in PHASES)
_MESSAGES = tuple(f"{phase}-{end}" for phase in PHASES for end in ("recv", "send"))


def _chain(row: Sequence[int], before: Edges) -> None:
    for earlier, later in pairwise(row):
        before[later].append(earlier)


def _link_messages(work: Sequence[int], messages: Sequence[int], before: Edges, *, receives: bool) -> None:
    """Let the k-th message precede or follow the k-th compute; a receive is posted after the compute before it."""
    for k, (computed, message) in enumerate(zip(work, messages, strict=False)):
        if not receives:
            before[message].append(computed)
            continue
        before[computed].append(message)
        if k:
            before[message].append(work[k - 1])


def _hold_first_backward(
    recording: Recording, compute: Sequence[int], named: dict[str, list[int]], before: Edges
) -> None:
    """Post the first backward message no earlier than the end of the warm-up: one compute before the last forward."""
    first = next((k for k, i in enumerate(compute) if recording.operations[i].name == _COMPUTE[1]), 0)
    held = compute[first - 2] if first >= len(PHASES) else None
    for end in ("recv", "send"):
        messages = named[f"backward-{end}"]
        if held is not None and messages:
            before[messages[0]].append(held)


def _link_rest(recording: Recording, mine: Sequence[int], compute: Sequence[int], before: Edges) -> None:
    """Order what is neither compute nor message: ahead of the first compute, beside computes, and after the last."""
    rest = [i for i in mine if recording.operations[i].name not in (*_COMPUTE, *_MESSAGES)]
    start, end = recording.start[:, 0], recording.end[:, 0]
    ahead = [i for i in rest if start[i] < start[compute[0]]]
    behind = [i for i in rest if i not in ahead and start[i] >= start[compute[-1]]]
    beside = [i for i in rest if i not in ahead and i not in behind]
    _chain(ahead, before)
    _chain([*beside, *behind], before)
    before[compute[0]].extend(ahead[-1:])
    for i in beside:
        before[i].extend([c for c in compute if end[c] <= start[i]][-1:])
    if behind:
        before[behind[0]].append(compute[-1])
