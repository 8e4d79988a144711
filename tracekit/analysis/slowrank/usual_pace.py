"""Gaps that may be the usual pace of hosts: where no host was recorded, they have no price.

Where hosts set the pace, the device of the one that is last stands still at every launch, while those of the others
spin in collectives for it. Only gaps that no usual host makes between two launches tell a fault by themselves.
"""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.host_bound import hosts_known
from tracekit.analysis.slowrank.suspect_work import features_of, peers_of
from tracekit.analysis.slowrank.table_model import TableModel
from tracekit.findings import Suspect
from tracekit.tables.features import Features
from tracekit.thresholds.launches import HOST_SILENT_NS
from tracekit.thresholds.slowrank import MAJORITY


def may_be_pace(case: Case, suspect: Suspect) -> bool:
    """Whether the gaps of a suspect may be a usual host's pace: no host was recorded, and hardly any gap is longer.

    A host needs up to `HOST_SILENT_NS` between launches: gaps alone tell only what they last beyond that, unless hosts
    of that pace are done with all launches before the step ends.
    """
    row = case.steps.row(suspect.rank)
    rank = case.ops.per_rank[suspect.rank]
    if isinstance(case.model, TableModel) or suspect.cause not in _BY_GAPS or not rank.on_gpu:
        return False
    if hosts_known(case, np.array([row])):
        return False
    mine, peers = features_of(case, row), peers_of(case, row, (row,))
    if mine is None or not peers or mine.launches * HOST_SILENT_NS < case.step_ns:
        return False
    excess = mine.gap - float(np.median([p.gap for p in peers]))
    return _beyond_pace(mine) - float(np.median([_beyond_pace(p) for p in peers])) < MAJORITY * excess


_BY_GAPS = ("cpu_launch", "host_stall")


def _beyond_pace(rank: Features) -> float:
    """For how long a device stands still beyond what a usual host needs between launches, ns a step."""
    steps = rank.gaps.sum() / rank.gap if rank.gap else 1.0
    return float(np.maximum(rank.gaps - HOST_SILENT_NS, 0).sum() / steps)
