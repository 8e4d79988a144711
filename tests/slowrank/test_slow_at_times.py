"""A device that is slow throughout some steps leaves a job open, also where its other steps make up for these."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.answers.compared_steps import slow_at_times
from tracekit.analysis.slowrank.decision.decide import concluded
from tracekit.analysis.slowrank.evidence import Evidence

SLOW, STEPS = 2, 4


def trained(folder, *, throughout):
    """Rank 2 works longer than its peers in the first half of the steps, and as much shorter in the others."""
    longer = 1.2 if throughout else 1.0

    def factor(rank, step):
        return 1.0 if rank != SLOW else longer if step < STEPS // 2 else 2.0 - longer

    return prepared(job(folder, grid(dp=6), slower=factor, steps=STEPS, layers=8), grid(dp=6))


@pytest.mark.parametrize("throughout", [True, False])
def test_a_device_slow_at_times_is_a_candidate(tmp_path, throughout):
    case = trained(tmp_path, throughout=throughout)
    found = list(slow_at_times(Evidence(case)))
    assert [[s.rank for s in gap.candidates] for gap in found] == [[SLOW]] * throughout
    answer = concluded(case)[1]
    assert (answer.verdict, [s.rank for s in answer.candidates]) == (
        ("inconclusive", [SLOW]) if throughout else ("healthy", [])
    )


def test_a_small_mean_excess_hides_no_slow_device(tmp_path):
    """Gaps of its peers may be as long as what its kernels take longer."""
    case = trained(tmp_path, throughout=True)
    less = replace(case, found=replace(case.found, value=0.15 * case.found.value))
    assert np.maximum(less.found.value[SLOW], 0.0).mean() < case.threshold_ns
    assert [s.rank for gap in slow_at_times(Evidence(less)) for s in gap.candidates] == [SLOW]
