"""The order in which the host issued the collectives of one group, where they ran on several streams.

Every member of a group issues its collectives in one order, but from torch 2.8 some of them run on the stream of their
caller: an all-gather and a reduce-scatter on two streams start in whatever order their inputs allow, on each rank in
another one. Recorded launches show the order of issue.
"""

import numpy as np

from tracekit.units import I64


def by_issue(rows: I64, issued: I64, stream: I64) -> I64:
    """Return `rows` in the order in which the host issued them; `issued` (ns) and `stream` are by row.

    A stream runs in order of issue, so an operation without a launch was issued no later than the next on its stream.
    """
    return rows[np.argsort(issued_upto(issued[rows], stream[rows]), kind="stable")]


def issued_upto(issued: I64, stream: I64) -> I64:
    """Return an upper bound for the issue of each operation, ns: the next one's on its stream; arguments by start."""
    latest = issued.copy()
    for lane in np.unique(stream).tolist():
        here = np.flatnonzero(stream == lane)
        latest[here] = np.minimum.accumulate(latest[here][::-1])[::-1]
    return latest
