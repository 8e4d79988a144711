"""A host that launches late makes its device no longer at work, and is no health."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.slowrank.known import known
from tracekit.analysis.slowrank.answers.late_hosts import host_launches_late
from tracekit.analysis.slowrank.decision import decide as deciding
from tracekit.analysis.slowrank.decision.decide import first_of
from tracekit.analysis.slowrank.decision.no_culprit import price_may_reach_the_threshold
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.unrecorded.unrecorded import Unseen

LAST, SOON_US, LONG_US = 3, 10, 2000


def launched(folder, mine, others, factor=1.1, **more):
    """The case of a job whose rank `LAST` comes last; kernels start so many us after their launch, or it is unknown."""
    mesh = grid(tp=2, dp=4)
    case = prepared(job(folder, mesh, slow={LAST: factor}, **more), mesh)
    per_rank = {}
    for rank, ops in case.ops.per_rank.items():
        lag = mine if rank == LAST else others
        per_rank[rank] = replace(ops, issued=ops.start - 1000 * lag) if lag is not None else ops
    ready = case.ops.at_start.astype(float) if mine is not None else np.full(len(case.ops.start), np.nan)
    return replace(case, ops=replace(case.ops, per_rank=per_rank, at_ready=ready))


@pytest.mark.parametrize(
    ("mine", "others", "factor", "late"),
    [
        (SOON_US, LONG_US, 1.1, True),
        (LONG_US, LONG_US, 1.1, False),  # it was launched long before: its device is late
        (SOON_US, SOON_US, 1.1, False),  # all hosts are as late
        (None, None, 1.1, False),  # no launches were recorded
        (SOON_US, LONG_US, 1.01, False),  # the others hardly wait
    ],
)
def test_launches_tell_whose_host_is_late(tmp_path, mine, others, factor, late):
    case = launched(tmp_path, mine, others, factor)
    found = list(host_launches_late(Evidence(case)))
    assert [[c.rank for c in gap.candidates] for gap in found] == [[LAST]] * late
    assert all(0.05 * case.step_ns < gap.could_hide < 0.2 * case.step_ns for gap in found)


def test_a_late_host_leaves_the_job_open(tmp_path, monkeypatch):
    case = launched(tmp_path, SOON_US, LONG_US)
    alike = known(  # its work is no longer than the others'
        case, dearest=None, unseen=Unseen(0.0, 0.0, ()), stage=None, link=None, undecided=None, only_step=None
    )
    others = tuple(rule for rule in deciding.RULES if rule is not price_may_reach_the_threshold)
    monkeypatch.setattr(deciding, "RULES", others)
    answer, (gap,) = first_of(alike), host_launches_late(alike)
    assert answer.verdict == "inconclusive"
    assert gap.what in answer.reason
    for named in (answer, gap):
        assert [(c.rank, c.cause) for c in named.candidates] == [(LAST, "cpu_launch")]
        assert named.to_decide.startswith(f"profile the host of rank {LAST}")
