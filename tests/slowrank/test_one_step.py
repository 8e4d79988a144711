"""One recorded step proves neither a slow rank nor its absence."""

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse


def test_an_excess_of_one_step_is_left_open(tmp_path):
    found = analyse(job(tmp_path, grid(dp=8), accident=(3, 0, 400.0), steps=1, layers=4))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert [c.rank for c in found.candidates] == [3]
    assert "record three steps" in found.to_decide


def test_one_even_step_is_healthy(tmp_path):
    assert analyse(job(tmp_path, grid(dp=8), steps=1, layers=4)).verdict == "healthy"
