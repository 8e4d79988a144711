"""Gaps that may be the usual pace of hosts: unless the host of their rank is known to be slow, they have no price.

Where hosts set the pace, the device of the one that is last stands still at every launch, while those of the others
spin in collectives for it. Only gaps that no usual host makes between two launches tell a fault by themselves.
"""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.hypotheses.candidates import bound_by_hosts
from tracekit.analysis.slowrank.hypotheses.host_bound import alike, hosts_known, most_saved_ns
from tracekit.analysis.slowrank.hypotheses.suspect_work import features_of, peers_of
from tracekit.causes import CAUSES
from tracekit.findings import Suspect
from tracekit.steps.features import Features
from tracekit.thresholds.launches import HOST_SILENT_NS
from tracekit.thresholds.slowrank import MAJORITY


def may_be_pace(case: Case, suspect: Suspect, suspects: Sequence[Suspect]) -> bool:
    """Whether the gaps of a suspect may be a usual host's pace, which leaves hardly any longer ones.

    Either no host was recorded, and the step is no longer than hosts that launch every `HOST_SILENT_NS` would make it;
    or hosts bound what a cure of all `suspects` saves, and the host of this one is as quick as others: then nothing
    that was loaded is longer either.
    """
    row = case.steps.row(suspect.rank)
    asked = CAUSES[suspect.cause].on_host and case.ops.per_rank[suspect.rank].on_gpu
    if case.table is not None or not asked:
        return False
    recorded, loads = hosts_known(case, np.array([row])), suspect.cause == "dataloader"
    if loads or recorded:
        rows = np.array([case.steps.row(s.rank) for s in suspects])
        paced = recorded and alike(case, row, rows) and bound_by_hosts(case, rows)
        return paced and (loads or _short(case, row))
    mine = features_of(case, row)
    return mine is not None and mine.launches * HOST_SILENT_NS >= case.step_ns and _short(case, row)


def _short(case: Case, row: int) -> bool:
    """Whether what the gaps of a rank last beyond a usual pace is less than half of what they cost at the most."""
    mine, peers = features_of(case, row), peers_of(case, row, (row,))
    if mine is None or not peers:
        return False
    excess = mine.gap - float(np.median([p.gap for p in peers]))
    beyond = _beyond_pace(mine) - float(np.median([_beyond_pace(p) for p in peers]))
    return beyond < MAJORITY * min(excess, most_saved_ns(case, np.array([row])))


def _beyond_pace(rank: Features) -> float:
    """For how long a device stands still beyond what a usual host needs between launches, ns a step."""
    steps = rank.gaps.sum() / rank.gap if rank.gap else 1.0
    return float(np.maximum(rank.gaps - HOST_SILENT_NS, 0).sum() / steps)
