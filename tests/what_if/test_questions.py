"""What a step would take without something: on paper, beside `slowrank`, and beside published figures."""

import json

import pytest

import tracekit
from tests.generator import generate
from tests.generator.mesh import Mesh
from tests.ingest.sample import DATA, needs_data
from tests.marks import quick_first
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job
from tests.what_if.tables import ingested, pipeline, replicas, unnamed
from tracekit.errors import UsageError
from tracekit.ingest import load
from tracekit.report.whatif_text import whatif_text

LAYERS = 3
STEP_MS = LAYERS * (LAYER_US + TRANSFER_US) / 1000
SLOW_MS = LAYERS * (1.3 * LAYER_US + TRANSFER_US) / 1000


def asked(finding):
    return {a.question: a for a in finding.answers}


def test_a_slow_rank_on_paper(tmp_path):
    found = tracekit.whatif(job(tmp_path, grid(dp=4), slow={3: 1.3}, jitter=0), ["rank=3", "rank=0"])
    three, zero = found.answers
    assert found.step_ms == pytest.approx(SLOW_MS, rel=0.01)
    assert (three.question, three.ranks) == ("rank=3", (3,))
    assert three.without_ms == three.without_ms_low == three.without_ms_high
    assert three.slowdown == pytest.approx(SLOW_MS / STEP_MS, rel=0.01)
    assert three.lost_ms == pytest.approx(SLOW_MS - STEP_MS, rel=0.02)
    assert three.share == pytest.approx(1, rel=0.01)
    assert (zero.lost_ms, zero.proven, three.proven) == (pytest.approx(0, abs=0.001), False, True)
    assert found.together.lost_ms == pytest.approx(three.lost_ms, rel=0.01)


def test_two_equally_slow_ranks_count_only_together(tmp_path):
    run = job(tmp_path, grid(dp=4), slow={0: 1.3, 3: 1.3}, jitter=0)
    found = tracekit.whatif(run, ["rank=0,rank=3"])
    assert [a.slowdown for a in found.answers] == pytest.approx([1, 1], abs=0.001)
    assert found.together.slowdown == pytest.approx(SLOW_MS / STEP_MS, rel=0.01)
    assert found.together.ranks == (0, 3)


def test_a_slow_link_belongs_to_its_axis_and_operation(tmp_path):
    run = job(tmp_path, grid(tp=2, dp=4), link={(0, 1): 9}, jitter=0)
    found = asked(tracekit.whatif(run, ["axis=tp", "axis=dp", "op=all_reduce", "rank=0"]))
    slow = LAYERS * 8 * TRANSFER_US / 1000
    assert found["axis=tp"].lost_ms == pytest.approx(found["op=all_reduce"].lost_ms, rel=0.01)
    assert found["axis=tp"].lost_ms == pytest.approx(slow, rel=0.05)
    assert found["axis=dp"].lost_ms == found["rank=0"].lost_ms == pytest.approx(0, abs=0.01)
    assert found["axis=tp"].ranks == ()


def test_a_long_stage_of_four(tmp_path):
    run = job(tmp_path, grid(pp=4, dp=2), slow={2: 1.3, 6: 1.3}, jitter=0)
    found = asked(tracekit.whatif(run))
    stages = {n: a for n, a in found.items() if n.startswith("stage=")}
    assert set(stages) == {f"stage={i}" for i in range(4)}
    long = stages.pop("stage=2")
    assert (long.ranks, long.slowdown) == ((2, 6), pytest.approx(SLOW_MS / STEP_MS, rel=0.01))
    assert [a.lost_ms for a in stages.values()] == pytest.approx([0] * 3, abs=0.01)
    assert found["everybody"].lost_ms == pytest.approx(
        0.75 * long.lost_ms, rel=0.02
    )  # work that is spread, not gone


def test_what_was_not_matched_makes_an_interval(tmp_path):
    run = unnamed(job(tmp_path, grid(tp=2, dp=2), slow={1: 1.3}, jitter=0), "dp")
    found = tracekit.whatif(run, ["rank=1"], {"tp": 2, "cp": 1, "pp": 1, "dp": 2})
    (one,) = found.answers
    assert found.coverage.matched < 1
    assert one.lost_ms_low < one.lost_ms <= one.lost_ms_high
    assert one.without_ms_high > one.without_ms >= one.without_ms_low
    assert one.lost_ms_high == pytest.approx(2 * (SLOW_MS - STEP_MS), rel=0.1)  # its axes: two layers each


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        ("rank=9", "this run has rank 0, 1, 2, 3"),
        ("axis=cp", "this run has axis dp, tp"),
        ("op=all_to_all", "this run has op all_reduce"),
        ("stage=1", "this run has stage 0"),
        ("stage=0", "no other stage"),
        ("host=3", "the keys are rank, stage, axis, op"),
        ("rank=x", "must be a number up to 262144, as in rank=3"),
        ("rank=" + "9" * 5000, "must be a number up to 262144"),
        ("rank", "write for example rank=5,axis=tp"),
        ("", "write for example rank=5,axis=tp"),
    ],
)
def test_a_fix_that_names_nothing_is_refused(tmp_path, fix, told):
    with pytest.raises(UsageError, match="--fix") as refused:
        tracekit.whatif(job(tmp_path, grid(tp=2, dp=2)), [fix])
    assert told in str(refused.value)


def test_a_rank_without_peers_is_refused(tmp_path):
    with pytest.raises(
        UsageError, match="no other rank of its stage was read: there is no peer to compare it with"
    ):
        tracekit.whatif(job(tmp_path, grid(pp=2)), ["rank=1"])


@pytest.mark.parametrize("name", quick_first(1, ["demo_slow_tp", "slow_compute"]))
@pytest.mark.slow
def test_a_suspect_costs_what_slowrank_says(ingested, name):
    run = load([str(ingested(name))])
    blamed = tracekit.slowrank(run)
    found = tracekit.whatif(run, [f"rank={s.rank}" for s in blamed.suspects])
    assert found.together.without_ms == pytest.approx(blamed.what_if.without_suspects_ms)
    assert found.together.slowdown == pytest.approx(blamed.what_if.slowdown)
    assert (found.step_ms, found.mesh, found.steps) == (blamed.what_if.step_ms, blamed.mesh, blamed.steps)


def test_the_worst_rank_is_the_planted_one(tmp_path):
    mesh = Mesh(("tp", "cp", "dp", "pp"), {"tp": 2, "cp": 1, "pp": 2, "dp": 2})
    case = generate(kind="slow_compute", seed=201, mesh=mesh, steps=4, missing=set(), truncated={})
    case.write(tmp_path)
    found = asked(tracekit.whatif(load([str(tmp_path)])))
    assert set(found["worst_ranks"].ranks) == case.truth.suspects
    assert found["everybody"].share == 1
    assert found["worst_ranks"].share > 0.5


def test_one_slow_worker_of_two_in_a_table(tmp_path):
    """As in test_slowdowns: 140 ms recorded, ideal compute is the mean of 60 and 120 ms."""
    found = asked(tracekit.whatif(ingested(tmp_path, replicas([1, 2]))))
    assert found["everybody"].slowdown == pytest.approx(140 / 110)
    assert found["worst_ranks"].ranks == (1,)
    assert found["worst_ranks"].share == pytest.approx(1)


def test_types_of_a_table_have_three_names(tmp_path):
    run = ingested(tmp_path, pipeline())
    found = tracekit.whatif(run, ["op=forward-send,op=forward-pp-comm,op=send", "axis=pp", "stage=1"])
    assert [a.lost_ms for a in found.answers] == pytest.approx([0] * 5, abs=0.01)
    with pytest.raises(UsageError, match="this run has op backward-compute, backward-pp-comm"):
        tracekit.whatif(run, ["op=gather"])


@needs_data
@pytest.mark.realdata
@pytest.mark.parametrize("name", ["ST", "AR"])
@pytest.mark.quick(1)
def test_published_shares_are_answered(name):
    folder = DATA / "ops"
    found = asked(tracekit.whatif(load([str(folder / f"trace-{name}.parquet")])))
    told = json.loads((folder / f"result-{name}.json").read_text())
    assert found["everybody"].slowdown == pytest.approx(told["blocking_slowdown"], rel=0.001)
    last = max(n for n in found if n.startswith("stage="))
    for question, key in ((last, "ms"), ("worst_ranks", "mw")):
        published = json.loads((folder / f"{key}-{name}.json").read_text())
        assert found[question].share == pytest.approx(published["rem"], abs=0.001)


def test_the_text_shows_an_interval_that_is_wide(tmp_path):
    run = unnamed(job(tmp_path, grid(tp=2, dp=2), slow={1: 1.3}, jitter=0), "dp")
    found = tracekit.whatif(run, ["rank=1"], {"tp": 2, "cp": 1, "pp": 1, "dp": 2})
    (one,) = found.answers
    text = whatif_text(found)
    assert (
        f"{one.without_ms:.1f} ms ({one.without_ms_low:.1f} to {one.without_ms_high:.1f}), slowdown" in text
    )
    assert "of the exposed communication (" in text


def test_what_rests_on_unmatched_waits_is_not_proven(tmp_path):
    """Nothing is matched: all of the slow rank's excess may have been waited for, or nothing."""
    run = job(tmp_path, grid(tp=2, dp=4), slow={1: 1.3}, jitter=0)
    found = tracekit.whatif(
        unnamed(unnamed(run, "dp"), "tp"), ["rank=1"], {"tp": 2, "cp": 1, "pp": 1, "dp": 4}
    )
    (one,) = found.answers
    assert (found.coverage.matched, one.proven) == (0, False)
    assert one.lost_ms_low == pytest.approx(0, abs=0.01)
    assert one.lost_ms_high == pytest.approx(2 * (SLOW_MS - STEP_MS), rel=0.05)
    assert "not proven" in whatif_text(found)


def test_no_fix_makes_the_step_longer(tmp_path):
    """Transfers along dp of which half are quicker than the median: these keep their time."""
    generate(5002, kind="healthy_slack").write(tmp_path)
    found = tracekit.whatif(load([str(tmp_path)]))
    assert len(found.answers) > 4
    assert max(a.without_ms for a in found.answers) <= found.step_ms + 1e-9
