"""What an operation table leaves unclear is told or refused, with a remedy that fits tables."""

import pytest

import tracekit
from tests.what_if.tables import ingested, replicas, stages
from tracekit.errors import InputError


def test_rows_that_stand_twice_count_once(tmp_path):
    rows = replicas([1, 2, 1])
    found = tracekit.slowrank(ingested(tmp_path, rows + rows[5:12]))
    assert [(q.kind, q.count) for q in found.quality] == [("duplicate_rows", 7)]
    assert (found.what_if.step_ms, [s.rank for s in found.suspects]) == (pytest.approx(140), [1])


def test_an_unknown_operation_is_told(tmp_path):
    rows = [r | {"optype": r["optype"].replace("optimizer", "my-step")} for r in replicas([1, 1])]
    (row,) = ingested(tmp_path, rows).quality
    assert (row.kind, row.count) == ("unknown_operation", 6)
    assert row.detail.startswith("my-step: ")


@pytest.mark.parametrize("place", ["dp_rank", "stage"])
def test_places_that_count_from_one_are_refused(tmp_path, place):
    rows = [r | {place: r[place] + 1} for r in stages()]
    with pytest.raises(InputError, match="count from 0, so subtract"):
        ingested(tmp_path, rows)


def test_gaps_of_one_rank_are_told_of_it(tmp_path):
    found = tracekit.slowrank(ingested(tmp_path, replicas([1, 1, 1], gap=0.03)))
    assert found.verdict == "inconclusive"
    assert "rank 0 is idle longest, 30.0 ms a step" in found.reason
    assert "host of rank 0" in found.to_decide


def test_advice_names_no_profiler(tmp_path):
    for steps, slow in ((1, 1.04), (3, 1.03), (6, 1.015)):
        folder = tmp_path / str(steps)
        folder.mkdir()
        advice = tracekit.slowrank(ingested(folder, replicas([1, slow, 1, 1], steps=steps))).to_decide or ""
        assert "profiler" not in advice.lower()
        assert "torch" not in advice
