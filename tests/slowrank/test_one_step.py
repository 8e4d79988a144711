"""One recorded step proves neither a slow rank nor its absence."""

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse


def test_an_excess_of_one_step_is_left_open(tmp_path):
    found = analyse(job(tmp_path, grid(dp=8), accident=(3, 0, 400.0), steps=1, layers=4))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert [c.rank for c in found.candidates] == [3]
    assert "record three whole steps" in found.to_decide


def test_one_even_step_is_healthy(tmp_path):
    assert analyse(job(tmp_path, grid(dp=8), steps=1, layers=4)).verdict == "healthy"


def test_a_dearer_rank_hides_behind_no_stage(tmp_path):
    slow = dict.fromkeys(
        (0, 4), 1.15
    )  # stage 0 is long on both replicas, rank 5 of another stage much longer
    run = job(tmp_path, grid(pp=4, dp=8), slow={**slow, 5: 1.8}, steps=1, layers=6)
    found = analyse(run)
    assert found.verdict in {"inconclusive", "slow_rank"}
    assert {s.rank for s in (*found.suspects, *found.candidates)} >= {5}
