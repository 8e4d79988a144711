"""Whether a whole job is one pipeline, where no process group divides its ranks.

Ranks that share a model or its data reduce or gather gradients, parameters or activations among each other; stages of
one pipeline send each other messages, and reduce little more than a norm. Reductions of only some of them show nothing:
an embedding that the first stage shares with the last one is reduced between these two.
"""

from collections import Counter, defaultdict
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.axes import AXES, PIPELINE
from tracekit.disjoint_sets import DisjointSets
from tracekit.inference.peers.open_messages import any_open
from tracekit.matching.match import Operations
from tracekit.mesh import Mesh, from_sizes
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.slowrank import CALLS_OF_PIPELINE, REDUCED_BY_PIPELINE, SIZES_TOLD


def pipeline_of(world: int) -> Mesh:
    """Return the mesh of one pipeline of `world` ranks."""
    return from_sizes(dict.fromkeys(AXES, 1) | {PIPELINE: world}, AXES)


def is_one_pipeline(ops: Operations) -> bool:
    """Return whether messages with known ends connect all recorded ranks, while collectives move almost nothing.

    If sizes are not recorded, few collectives beside many messages count, if not all ranks run the same operations:
    the ends of a pipeline talk to one neighbour only.
    """
    linked = DisjointSets(ops.ranks)
    moved, called = {True: 0, False: 0}, {True: 0, False: 0}
    sized = total = 0
    programs = set()
    of_everybody = _of_everybody(ops)
    for rank, source in ops.per_rank.items():
        message = among(source.op, UNDIRECTED)
        for src, dst in set(zip(source.src[message].tolist(), source.dst[message].tolist(), strict=True)):
            if {src, dst} <= set(ops.ranks):
                linked.join(src, dst)
        for kind in (True, False):
            sizes = source.nelems[message if kind else ~message & of_everybody[ops.of(rank)]]
            moved[kind] += int(sizes[sizes > 0].sum())
            called[kind] += len(sizes)
            sized += int((sizes >= 0).sum())
            total += len(sizes)
        programs.add(tuple(sorted(Counter(source.op).items())))
    if not called[True] or len({linked.find(r) for r in ops.ranks}) > 1:
        return False
    if sized >= SIZES_TOLD * total:
        return moved[False] <= REDUCED_BY_PIPELINE * moved[True]
    return len(programs) > 1 and CALLS_OF_PIPELINE * called[False] <= called[True]


def _of_everybody(ops: Operations) -> npt.NDArray[np.bool_]:
    """Whether each operation's group holds all recorded ranks, or is unknown."""
    few = [not set(ops.ranks).issubset(c.members) for c in ops.channels]
    return ~np.array([*few, False])[ops.channel]


# The program of each rank: equal for ranks of one pipeline stage, which shows the pipeline if no message
# does.

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
