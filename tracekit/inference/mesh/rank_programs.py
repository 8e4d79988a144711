"""The program of each rank: equal for ranks of one pipeline stage, which shows the pipeline if no message does."""

from collections import Counter, defaultdict
from typing import Final

from tracekit.inference.peers.open_messages import any_open
from tracekit.matching.match import Operations
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.rank_events.step_marks import NO_STEP

_MESSAGE: Final = "message"
"""Kind of a kernel that carries any number of messages: some have a direction, and others lost it."""


def programs(ops: Operations) -> dict[int, tuple[tuple[str, int], ...]] | None:
    """Return what each rank runs in most steps, if messages lack a peer; None if all messages have one.

    Where steps are marked, ranks without one are left out: operations outside steps may be cut off anywhere.
    """
    if not any_open(ops):
        return None
    found, marked = {}, (ops.step != NO_STEP).any()
    for rank, source in ops.per_rank.items():
        steps: dict[int, Counter[str]] = defaultdict(Counter)
        before = -1
        for step, op, kernel in zip(source.step.tolist(), source.op, source.kernel.tolist(), strict=True):
            kind = _MESSAGE if op in UNDIRECTED else op
            if (step != NO_STEP or not marked) and (kernel != before or kind != _MESSAGE):
                steps[step][kind] += 1
            before = kernel
        if not steps:
            continue
        usual = Counter(tuple(sorted(kinds.items())) for kinds in steps.values())
        found[rank] = max(usual, key=lambda kinds: (usual[kinds], kinds), default=())
    return found
