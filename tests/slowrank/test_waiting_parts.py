"""Work beside which communication waits loses first what the wait made of it; the rest of a cut falls on all alike."""

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.step_graph.own_parts import WaitingParts, cut_there
from tracekit.step_graph.waiting_parts import waiting_parts

KNOTS = np.array([0.0, 100.0, 200.0])
PARTS = WaitingParts(np.array([10.0, 40.0, 150.0]), np.array([20.0, 50.0, 260.0]))


def lengths(ratio, parts=PARTS):
    """(length of each step, of its waiting parts, of the rest) behind a cut."""
    points, factor = cut_there(parts, KNOTS, np.array(ratio))
    width, middle = np.diff(points) * factor, (points[:-1] + points[1:]) / 2
    inside = np.array([any(b < m < e for b, e in zip(*parts, strict=True)) for m in middle])
    steps = [(KNOTS[n] < middle) & (middle < KNOTS[n + 1]) for n in range(2)]
    return [tuple(float(width[s & w].sum()) for w in (inside | ~inside, inside, ~inside)) for s in steps]


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ([1.0, 1.0], [(100, 20, 80), (100, 50, 50)]),
        ([0.95, 0.9], [(95, 15, 80), (90, 40, 50)]),
        ([0.72, 1.1], [(72, 8, 64), (110, 55, 55)]),
    ],
    ids=["nothing", "within what waits made longer", "more, and a longer step"],
)
def test_the_waiting_parts_lose_first(ratio, expected):
    assert lengths(ratio) == [pytest.approx(e) for e in expected]


def test_without_waiting_parts_all_lose_alike():
    none = WaitingParts(np.zeros(0), np.zeros(0))
    assert lengths([0.5, 0.8], none) == [pytest.approx((50, 0, 50)), pytest.approx((80, 0, 80))]


def test_exposed_waits_are_no_work(tmp_path):
    mesh = grid(tp=4)
    case = prepared(job(tmp_path, mesh, slow={2: 1.5}), mesh)
    assert case.waits.wait.max() > 0
    for begins, ends in waiting_parts(case, range(4)).values():
        assert len(begins) == len(ends) == 0
