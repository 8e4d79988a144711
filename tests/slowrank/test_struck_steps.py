"""Steps in which a rank is slow, beside those in which it is not, price it where nothing could be matched."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.gaps import evidence_gaps
from tracekit.analysis.slowrank.gaps.evidence_gaps import told_by_steps
from tracekit.analysis.slowrank.price import struck_ns
from tracekit.findings import Coverage

NAN = np.nan
STEADY = [50.0, 50.0, 50.0, 50.0]


@pytest.mark.parametrize(
    ("mine", "wall", "other", "least"),
    [
        ([50, 80, 50, 50], [100, 120, 100, 101], STEADY, 19 / 4),  # a part of the excess hides behind slack
        ([50, 80, 50, 80], [100, 125, 100, 120], STEADY, 20 / 2),  # two steps; the shorter of them counts
        ([50, 60, 50, 50], [100, 190, 100, 100], STEADY, 10 / 4),  # never more than its own excess
        (
            [50, 80, 50, 50],
            [100, 120, 100, 100],
            [50, 65, 50, 50],
            5 / 4,
        ),  # somebody else works longer as well
        ([50, 80, 50, 50], [100, 120, 125, 100], STEADY, 0),  # another step is as long
        ([80, 80, 80, 80], [100, 100, 100, 100], STEADY, 0),  # slow in all steps: nothing to compare with
        ([50, 50, 50, 50], [100, 120, 100, 100], STEADY, 0),
        ([NAN, 80, 50, NAN], [100, 120, 100, 100], STEADY, 20 / 2),  # the rank has two steps whole
    ],
)
def test_other_steps_price_an_intermittent_fault(mine, wall, other, least):
    own = np.array([mine, other, STEADY], float)
    run = SimpleNamespace(steps=SimpleNamespace(own=own, wall=np.tile(np.array(wall, float), (3, 1))))
    found = SimpleNamespace(value=own - 50)
    assert struck_ns(run, found, np.array([0])) == pytest.approx(least)


def test_recordings_of_no_other_rank_tell_nothing_more():
    own, wall = np.array([[50.0, 80.0, 50.0]]), np.array([[100.0, 120.0, 100.0]])
    run = SimpleNamespace(steps=SimpleNamespace(own=own, wall=wall))
    assert struck_ns(run, SimpleNamespace(value=own - 50), np.array([0])) == pytest.approx(20 / 3)


def test_steps_price_a_rank_where_matches_are_missing(tmp_path, monkeypatch):
    mesh = grid(tp=2, dp=4)
    case = prepared(job(tmp_path, mesh, slow={5: 1.3}, slow_steps={1}, steps=3, layers=6), mesh)
    assert told_by_steps(case, None) is None  # all is matched: the model prices it
    monkeypatch.setattr(evidence_gaps, "coverage", lambda case: Coverage(0.2, {}))
    found = told_by_steps(case, None)
    assert found is not None
    assert (found.rows, found.gain) == ((5,), pytest.approx(12 * 0.3e6 / 3, rel=0.15))
    dearer = replace(found, gain=2 * found.gain)
    assert told_by_steps(case, dearer) is dearer

    accident = replace(case, found=replace(case.found, throughout=frozenset()))
    assert told_by_steps(accident, None) is None  # the device was not slow throughout its one step
