"""What of a rank's own time is none of its doing, so that ranks are compared as if all had met the same.

A rank works longer than its peers because it is slow, because the data dealt it more tokens, or because communication
that others do not have shares its device. The last two are told by what was recorded beside the work.
"""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.slowrank.excess import rank_excess
from tracekit.analysis.slowrank.measured import Measured
from tracekit.analysis.slowrank.statistics import Excess
from tracekit.tables.beside_communication import stretched
from tracekit.tables.dealt_tokens import Dealt, dealt_tokens
from tracekit.tables.steps import F64
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, PEERS_SAMPLED


@dataclass(frozen=True)
class Circumstances:
    """Own time beyond the peers' that is nobody's fault; ranks × steps as in `Steps`, ns."""

    tokens: Dealt  # all-to-alls brought more or fewer tokens
    beside: F64  # kernels shared the device with communication that the peers do not have

    @property
    def told(self) -> F64:
        """All that the recording explains."""
        return self.tokens.beyond + self.beside


def circumstances(run: Measured, *, of_table: bool) -> Circumstances:
    """What each rank met; an operation table tells neither tokens nor what ran beside what."""
    none = np.zeros(run.steps.own.shape)
    if of_table:
        return Circumstances(Dealt(none, none, 0.0), none)
    found = Circumstances(dealt_tokens(run.ops, run.steps, run.stages), none)
    longer = alike_excess(run, found)
    rows = np.flatnonzero(
        (np.nan_to_num(longer.z, nan=0.0) > longer.limit)
        & (np.nan_to_num(longer.mean, nan=0.0) > CANDIDATE_SHARE * run.step_ns)
    )
    return replace(found, beside=_beside(run, rows.tolist()))


def alike_excess(run: Measured, met: Circumstances) -> Excess:
    """Excess of every rank over its peers if all had met the same."""
    return rank_excess(run, run.steps.own - met.told)


def _beside(run: Measured, rows: list[int]) -> F64:
    """Own time for which communication makes the kernels of `rows` longer than it does their peers', rows × steps."""
    found = np.zeros(run.steps.own.shape)
    for stage in run.stages:
        mine = [row for row in rows if row in stage]
        others = [
            row for row in stage.tolist() if row not in mine and run.ops.per_rank[run.steps.ranks[row]].on_gpu
        ]
        others = others[:: max(1, len(others) // PEERS_SAMPLED)][:PEERS_SAMPLED]
        if not mine or not others:
            continue
        longer = stretched(run.run, run.ops, run.steps, [*mine, *others])
        usual = np.median(longer[len(mine) :], axis=0)
        found[mine] = np.maximum(longer[: len(mine)] - usual, 0.0)
    return found
