"""The two ends of every message: the one place where sends and receives are paired."""

import numpy as np
import numpy.typing as npt

from tracekit.matching.match import Operations
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.units import I64


def found_done(ops: Operations) -> npt.NDArray[np.bool_]:
    """Whether the host found each operation done when it looked, so that its end is not when it was done."""
    parts = [r.found if r.found is not None else np.zeros(len(r.start), bool) for r in ops.per_rank.values()]
    return np.concatenate([np.zeros(0, bool), *parts])


def message_ends(ops: Operations) -> tuple[I64, I64]:
    """Return (sends, receives): rows of `ops` of both ends of each matched message, in order of instance."""
    rows = np.flatnonzero((ops.instance >= 0) & ops.among(MESSAGES))
    rows = rows[np.lexsort((ops.kinds[1][rows], ops.instance[rows]))]  # "recv" sorts before "send"
    first = np.flatnonzero(ops.instance[rows[:-1]] == ops.instance[rows[1:]])
    return rows[first + 1], rows[first]
