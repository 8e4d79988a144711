"""The part of windows without a common whole step that all ranks recorded, as one step."""

from dataclasses import replace

import numpy as np

from tracekit.matching.match import Operations
from tracekit.rank_events.step_marks import I32, NO_STEP


def common_part(ops: Operations) -> Operations:
    """Return `ops` with the operations that all recorded members have as step 0, and the others outside steps."""
    sizes = np.array([len(set(c.members).intersection(ops.ranks)) for c in ops.channels] or [0], np.int64)
    known = ops.instance >= 0
    counts = np.bincount(ops.instance[known], minlength=1)
    whole = known & (counts[np.maximum(ops.instance, 0)] == sizes[np.maximum(ops.channel, 0)])
    step: I32 = np.where(whole, 0, NO_STEP).astype(np.int32)
    mine = {r: replace(o, step=step[ops.of(r)], steps={}) for r, o in ops.per_rank.items()}
    return replace(ops, step=step, per_rank=mine)
