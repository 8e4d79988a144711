"""Transfers and ranks without peers prove no health, and the answer says what would."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.decision.gaps import lone_transfers_may_be_slow
from tracekit.analysis.slowrank.evidence import Evidence

MESH = grid(tp=4, dp=2)
LONELY = {1, 2, 3, 5, 6, 7}  # without these the group of ranks 0 and 4 is the only one along dp
SPENT = {(0, 4): 8.0}  # 0.4 ms a transfer: an eighth of the step


def test_a_lone_group_hides_a_slow_link(tmp_path):
    found = analyse(job(tmp_path, MESH, link=SPENT, lost=LONELY), explain=True)
    widest = found.explanation.gaps[0]
    assert widest.what in found.reason
    assert (widest.remedy, widest.could_hide_ms >= found.explanation.threshold_ms) == (found.to_decide, True)
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert "along dp take 1.2 ms" in found.reason
    assert "no other group along these axes was recorded whole" in found.reason
    assert [(c.rank, c.cause, c.lost_ms_low) for c in found.candidates] == [
        (r, "network", 0.0) for r in (0, 4)
    ]
    assert found.to_decide == "add the traces of ranks 1, 5"


@pytest.mark.parametrize("lost", [LONELY - {1, 5}, LONELY - {1, 2, 5, 6}, ()])
def test_recorded_peers_tell_a_slow_link(tmp_path, lost):
    assert analyse(job(tmp_path, MESH, link=SPENT, lost=lost)).verdict == "slow_link"


@pytest.mark.parametrize(
    ("mesh", "lost", "factor"), [(grid(dp=2), (), 8.0), (MESH, LONELY, 0.5), (MESH, LONELY, 8.0)]
)
def test_short_transfers_of_lone_groups_hide_nothing(tmp_path, mesh, lost, factor):
    """Nothing more can be recorded of a job that has one group, and little is lost in short transfers."""
    link = {(0, mesh.world_size // 2): factor}
    found = lone_transfers_may_be_slow(Evidence(prepared(job(tmp_path, mesh, link=link, lost=lost), mesh)))
    by_traces = [gap for gap in found if gap.decides and gap.to_decide.startswith("add the traces")]
    assert any(gap.candidates for gap in by_traces) == (mesh is MESH and factor > 1)


@pytest.mark.parametrize(("factor", "noted"), [(2.0, True), (0.2, False)])
def test_the_only_group_of_a_job_is_noted(tmp_path, factor, noted):
    mesh = grid(dp=4)
    found = analyse(job(tmp_path, mesh, link={(0, 1, 2, 3): factor}))
    assert found.verdict == "healthy"
    told = [q.detail for q in found.quality if q.kind == "unproven_transfers"]
    assert len(told) == noted
    assert all("the only group along dp take 0.3 ms" in t and "up to 0.3 ms" in t for t in told)


@pytest.mark.parametrize(("numel", "verdict"), [(1 << 12, "inconclusive"), (1 << 26, "healthy")])
def test_the_only_group_is_sound_where_it_is_fast(tmp_path, numel, verdict):
    """0.4 ms a call: 128 MB in it are 500 GB/s, which no slow link does; 8 KB tell nothing."""
    mesh = grid(dp=4)
    sized = {"dtype": "BFloat16", "in_nelems": numel, "out_nelems": numel}
    found = analyse(job(tmp_path, mesh, link={(0, 1, 2, 3): 8.0}, sized=sized))
    assert found.verdict == verdict
    if verdict == "inconclusive":
        assert "of the only group along dp take 1.2 ms" in found.reason
        assert "0.0307 GB/s" in found.reason
        assert (found.suspects, [c.rank for c in found.candidates]) == ((), [0, 1, 2, 3])  # any may be at it


def test_links_that_all_pass_one_node_have_no_peer(tmp_path):
    """Six ranks on two nodes: each pair along dp crosses both, so that all are slow alike and none stands out."""
    mesh = grid(tp=3, dp=2)
    run = job(tmp_path, mesh, link={mesh.line(r, ["dp"]): 3.0 for r in range(3)})
    hosts = {"n0", "n1"}
    run = replace(run, ranks=tuple(replace(r, host=f"n{r.rank // 3}") for r in run.ranks))
    found = analyse(run, explain=True)
    assert found.verdict == "healthy"
    stated = [q.detail for q in found.quality if q.kind == "unproven_transfers"]
    assert len(stated) == 1
    assert all(host in stated[0] for host in hosts)
    assert [g for g in found.explanation.gaps if g.could_hide_ms >= found.explanation.threshold_ms]


def test_longer_calls_of_another_number_prove_no_health(tmp_path_factory):
    """A group runs three calls where its peers run four, and no size is recorded: larger calls, or a slow link."""
    mesh = grid(tp=2, dp=3)
    sound, slow = (
        analyse(job(tmp_path_factory.mktemp("job"), mesh, layers=4, link={(4, 5): f}, skips=[(2, (4, 5))]))
        for f in (1.0, 6.0)
    )
    cost = pytest.approx(slow.what_if.step_ms - sound.what_if.step_ms)
    assert (sound.verdict, slow.verdict, slow.suspects) == ("healthy", "inconclusive", ())
    assert [(c.rank, c.lost_ms_low, c.lost_ms_high) for c in slow.candidates] == [
        (4, 0.0, cost),
        (5, 0.0, cost),
    ]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "healthy"), (2.0, "healthy"), (12.0, "inconclusive")])
def test_calls_of_another_size_are_compared_by_rate(tmp_path, factor, verdict):
    """Each group along dp has calls of its own size, as stages do: none has a peer, and twice the bytes take twice."""
    mesh = grid(tp=3, dp=2)
    elements = {(0, 3): 1 << 20, (1, 4): 5 << 18, (2, 5): 2 << 20}
    sized = {"dtype": "BFloat16", "in_nelems": 1 << 20, "out_nelems": 1 << 20}
    run = job(tmp_path, mesh, layers=4, link={(2, 5): factor}, sized=sized, elements=elements)
    found = analyse(run)
    assert found.verdict == verdict
    assert {c.rank for c in found.candidates} == ({2, 5} if factor > 2 else set())
    if factor > 2:
        assert (
            "no other group there makes calls of this size or number, and theirs are quicker" in found.reason
        )


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "healthy"), (20.0, "inconclusive")])
def test_calls_without_a_like_are_bounded_by_hardware(tmp_path, factor, verdict):
    """One group tells sizes, and no other does: nothing shows what as many bytes take elsewhere."""
    sized, elements = {"dtype": "BFloat16"}, {(2, 5): 1 << 12}
    run = job(tmp_path, grid(tp=3, dp=2), link={(2, 5): factor}, sized=sized, elements=elements)
    found = analyse(run)
    assert (found.verdict, {c.rank for c in found.candidates}) == (verdict, {2, 5} if factor > 1 else set())


def test_fast_transfers_of_a_lone_group_hide_nothing(tmp_path):
    sized = {"dtype": "BFloat16", "in_nelems": 1 << 26, "out_nelems": 1 << 26}
    assert analyse(job(tmp_path, MESH, link=SPENT, lost=LONELY, sized=sized)).verdict == "healthy"


@pytest.mark.parametrize(
    ("slow", "pace", "verdict"),
    [({1, 3}, 1.12, "slow_rank"), ({1, 3}, 0.92, "inconclusive"), ((), 1.0, "healthy")],
)
def test_ranks_without_peers_are_compared_with_their_own_steps(tmp_path, slow, pace, verdict):
    """Rank 2 has less work than the other stages; in two steps its device is slow, or idle without a recorded host."""

    def idle(rank, step):
        return 700.0 if pace < 1.0 and rank == 2 and step in slow else 0.0

    def slower(rank, step):
        return 1.0 if rank != 2 else pace if step in slow else 0.92

    run = job(tmp_path, grid(pp=3), slower=slower, idle=idle)
    found = analyse(run)
    assert found.verdict == verdict
    assert [s.rank for s in (*found.suspects, *found.candidates)][:1] == ([2] if slow else [])
    if verdict == "inconclusive":
        assert "no other rank does the work of" in found.reason
