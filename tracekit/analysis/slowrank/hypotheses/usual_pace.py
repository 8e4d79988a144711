"""Gaps that may be the usual pace of hosts: they have a price only if the host of their rank is known to be slow.

Where hosts set the pace, the device of the last host is idle at every launch, while the other devices spin in
collectives for it. Only gaps longer than a usual host needs between two launches prove a fault by themselves.
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
from tracekit.thresholds.slowrank import HOST_SILENT_NS, MAJORITY


def may_be_pace(case: Case, suspect: Suspect, suspects: Sequence[Suspect]) -> bool:
    """Whether the gaps of a suspect may be the pace of a usual host, with hardly any longer gaps.

    Either no host was recorded, and the step is no longer than hosts that launch every `HOST_SILENT_NS` make it; or
    hosts bound the saving of a cure of all `suspects`, and the host of this one is as fast as the others. A late data
    loader is then excluded as well.
    """
    row = case.steps.row(suspect.rank)
    asked = CAUSES[suspect.cause].on_host and case.ops.per_rank[suspect.rank].on_gpu
    if case.table is not None or not asked:
        return False
    recorded, loads = hosts_known(case, np.array([row])), CAUSES[suspect.cause].shown_by("loader")
    if loads or recorded:
        rows = np.array([case.steps.row(s.rank) for s in suspects])
        paced = recorded and alike(case, row, rows) and bound_by_hosts(case, rows)
        return paced and (loads or _short(case, row))
    mine = features_of(case, row)
    return mine is not None and mine.launches * HOST_SILENT_NS >= case.step_ns and _short(case, row)


def _short(case: Case, row: int) -> bool:
    """Whether the part of a rank's gaps beyond a usual pace is less than half of the most that they may cost."""
    mine, peers = features_of(case, row), peers_of(case, row, (row,))
    if mine is None or not peers:
        return False
    excess = mine.gap - float(np.median([p.gap for p in peers]))
    beyond = _beyond_pace(mine) - float(np.median([_beyond_pace(p) for p in peers]))
    return beyond < MAJORITY * min(excess, most_saved_ns(case, np.array([row])))


def _beyond_pace(rank: Features) -> float:
    """The idle time of a device beyond what a usual host needs between launches, ns a step."""
    steps = rank.gaps.sum() / rank.gap if rank.gap else 1.0
    return float(np.maximum(rank.gaps - HOST_SILENT_NS, 0).sum() / steps)
