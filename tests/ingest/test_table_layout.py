"""Operation tables of some of a job's ranks tell the mesh of the whole job, and the members nobody recorded."""

import itertools

import pytest

from tests.ingest.sample import DATA, needs_data
from tests.ingest.test_ops import rows, write
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import UsageError
from tracekit.ingest import load
from tracekit.ingest.operation_table.layout import layout_of

TP, DP, PP = 4, 2, 3


def places(dp=DP, pp=PP, tp=TP, index=0):
    """Rank by (dp_rank, stage), numbered tp, dp, pp from inner to outer; one rank of each tp group."""
    return {(d, s): index + tp * (d + dp * s) for d, s in itertools.product(range(dp), range(pp))}


def listed(keep):
    """The rows of `test_ops` as one rank in four of a job, of the places that `keep` wants."""
    return [r | {"rank": r["rank"] * TP} for r in rows() if keep(r["dp_rank"], r["stage"])]


@pytest.mark.parametrize("index", range(TP))
def test_strides_of_ranks_tell_the_tensor_size(index):
    layout = layout_of(places(index=index), DP, PP)
    assert layout.hint == {"order": ["tp", "cp", "dp", "pp"], "sizes": {"tp": 4, "cp": 1, "dp": 2, "pp": 3}}
    assert layout.rank((1, 2)) == index + 20


CORNERS = [
    k
    for k in itertools.combinations(places(), 3)
    if len({d for d, _ in k}) == DP and len({s for _, s in k}) > 1
]


@pytest.mark.parametrize("kept", CORNERS)
def test_three_corners_tell_the_whole(kept):
    layout = layout_of({p: places()[p] for p in kept}, DP, max(s for _, s in kept) + 1)
    assert (layout.sizes["tp"], layout.sizes["dp"]) == (TP, DP)
    assert all(layout.rank((d, s)) == r for (d, s), r in places().items())


def test_numbers_on_no_line_give_no_layout():
    assert layout_of({(0, 0): 0, (1, 0): 1, (2, 0): 3}, 3, 1) is None
    assert layout_of({(0, 0): 0, (1, 0): 1 << 40}, 2, 1) is None


def test_group_lists_name_ranks_without_rows(tmp_path):
    run = load([write(tmp_path / "a.parquet", listed(lambda d, s: (d, s) != (0, 1)))])
    assert run.world_size == TP * DP * PP
    assert {g.ranks for g in run.groups if g.descs == ("dp",)} == {(0, 4), (8, 12), (16, 20)}
    assert {g.ranks for g in run.groups if g.descs == ("pp",)} == {(0, 8, 16), (4, 12, 20)}


def test_a_stage_that_sends_on_is_not_last(tmp_path):
    run = load([write(tmp_path / "a.parquet", listed(lambda _, s: s < PP - 1))])
    assert run.mesh_hint["sizes"]["pp"] == PP
    assert run.world_size == TP * DP * PP


def test_the_flag_is_checked_against_the_whole_job(tmp_path):
    path = write(tmp_path / "a.parquet", listed(lambda *_: True))
    with pytest.raises(UsageError, match=r"6 ranks, but the job has 24 ranks \(6 were read\)"):
        analyse(load([path]), mesh={"tp": 1, "cp": 1, "dp": 2, "pp": 3})
    assert analyse(load([path]), mesh={"tp": 4, "cp": 1, "dp": 2, "pp": 3}).mesh.source == "flag"


@needs_data
@pytest.mark.realdata
@pytest.mark.slow
def test_the_published_job_with_one_rank_in_four():
    run = load([str(DATA / "ops" / "trace-AR.parquet")])
    assert run.world_size == 64
    finding = analyse(run)
    assert finding.mesh.sizes == {"tp": 4, "cp": 1, "dp": 4, "pp": 4}
    assert finding.verdict == "slow_rank"
    assert finding.suspects[0].rank == 0
    assert finding.ranks.expected == 64
