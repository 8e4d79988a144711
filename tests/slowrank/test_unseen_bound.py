"""What ranks without a trace may cost is what a step saves if no recorded rank waits for them."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.analysis.slowrank.unrecorded.unrecorded import waited_for_unseen
from tracekit.case.cures import typical_without

FAULTS = [{0: 1.3}, {0: 1.3, 1: 1.2}, {0: 1.2, 5: 1.2}, {0: 1.3, 7: 1.3}, {0: 1.15, 3: 1.15, 6: 1.15}]


@pytest.mark.parametrize("slow", FAULTS)
def test_bound_holds_for_several_unseen_faults(tmp_path, slow):
    """Ranks 0 and 5 to 7 are not recorded; the others are cured in the bound as well.

    Waits that all replicas share throughout look like transfers: the bound may lack a seventh.
    """
    mesh = grid(tp=2, pp=2, dp=2)
    (tmp_path / "sound").mkdir()
    (tmp_path / "slow").mkdir()
    case = prepared(job(tmp_path / "slow", mesh, slow=slow, lost={0, 5, 6, 7}, steps=3), mesh)
    cured = prepared(job(tmp_path / "sound", mesh, steps=3), mesh)
    own = typical_without(case, case.significant(case.suspect_ns))
    assert waited_for_unseen(case, own).most >= 0.85 * (case.step_ns - cured.step_ns)


def test_wait_for_a_recorded_rank_is_not_counted(tmp_path):
    """Rank 0 stalls; ranks 2 and 3 wait for the unrecorded rank 1, which waits for rank 0."""
    mesh = grid(tp=2, dp=2)
    case = prepared(job(tmp_path, mesh, slow={0: 1.0}, lost={1}, accident=(0, 0, 9000.0), steps=3), mesh)
    assert Evidence(case).unseen.most < 0.02 * case.step_ns


def test_kernels_of_unknown_kind_may_wait_for_unrecorded_stages(tmp_path):
    """The ranks of the first of two stages stay 0.3 ms of each step in a kernel that names no operation."""
    lines = [Timeline(0), Timeline(1)]
    for step in range(4):
        begins = [line.at for line in lines]
        for line in lines:
            line.compute(1000)
            line.silent("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", line.at + 300)
        handles = [line.post(0) for line in lines]
        for line, handle, begin in zip(lines, handles, begins, strict=True):
            line.finish(handle, max(line.at for line in lines) + 50)
            line.step(step, begin)
    found = analyse(write_run(tmp_path, lines, {0: (0, 1)}, {0: "mesh_dp"}, 4), {"dp": 2, "pp": 2})
    assert (found.verdict, {s.rank for s in found.candidates}) == ("inconclusive", {2, 3})
