"""A rank's own time: what it spent working, as against waiting in communication that compute stood still for.

Own time is the clock of every comparison between ranks. It needs no common clock, and a rank that is late only
because it waited elsewhere has lost none of it, so nobody is blamed for a delay that he passed on.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.tables.intervals import I64, covered_until, gap_start, union
from tracekit.tables.operations import RankOps


@dataclass(frozen=True)
class Progress:
    """Per operation, ns: own time elapsed at its post and at its completion, and its exposed time."""

    rank: int
    at_start: I64
    at_end: I64
    exposed_from: I64  # wall time from which compute stood still for this operation; its end where never
    origin: int  # wall time at which own time is zero
    exposed: tuple[I64, I64]  # disjoint intervals of exposed communication

    def at(self, times: I64) -> I64:
        """Own time elapsed at wall `times`."""
        return np.asarray(times - self.origin - covered_until(self.exposed, times), np.int64)


def own_progress(ops: RankOps) -> Progress:
    """Splits a rank's wall time into exposed communication and its own time.

    Communication is exposed from the begin of the compute gap in which it ends (or from its own begin, if later):
    compute resumed after it. Communication that ends under compute, or outlasts a gap, held nobody up.
    """
    since = np.minimum(np.maximum(gap_start(ops.busy, ops.end), ops.start), ops.end)
    exposed = union(since, ops.end)
    origin = ops.window[0]

    def at(times: I64) -> I64:
        return np.asarray(times - origin - covered_until(exposed, times), np.int64)

    return Progress(ops.rank, at(ops.start), at(ops.end), since, origin, exposed)
