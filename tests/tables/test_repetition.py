"""What repeats in a sequence is found wherever a recording begins, and across its windows."""

import numpy as np
import pytest

from tracekit.steps.repetition import OUTSIDE, least_rotation, period, repeating


def whole(*kinds, windows=None):
    """What `repeating` finds in `kinds`; one window unless told."""
    return repeating(np.array(kinds), np.array(windows if windows is not None else [0] * len(kinds)))


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([0, 0, 1] * 4, (3, 12)),
        ([7, 8] + [0, 0, 1] * 4, (3, 12)),
        ([0, 1] + [0, 0, 1] * 4 + [0], (3, 15)),
        ([0] * 9, (1, 9)),
        ([0, 0, 1] * 2, (3, 6)),
        ([0, 0, 1, 0, 2], (0, 0)),
        ([0, 1, 2, 3, 4, 5, 6, 7], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_the_shortest_repetition(kinds, found):
    assert period(kinds) == found


@pytest.mark.parametrize("shift", range(5))
def test_rotations_have_one_least_form(shift):
    kinds = [2, 0, 1, 0, 0]
    assert least_rotation(kinds[shift:] + kinds[:shift]) == (0, 0, 2, 0, 1)


def test_recordings_of_the_same_work_have_the_same_pattern():
    one, two = whole(*[5, 1, 2] * 3), whole(*[1, 2, 5] * 2, 1)
    assert one.pattern == two.pattern
    assert one.place.tolist() == [2, 0, 1] * 3
    assert two.place.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_what_came_before_the_repetition_has_no_place():
    assert whole(9, 9, *[1, 2, 3] * 3).place.tolist()[:3] == [OUTSIDE, OUTSIDE, 0]


def test_each_window_has_its_own_begin():
    """The second window begins in the middle of a repetition, so that nothing repeats across the border."""
    kinds = [*[1, 2, 3, 4] * 3, 3, 4, *[1, 2, 3, 4]]
    found = whole(*kinds, windows=[0] * 12 + [1] * 6)
    assert found.place.tolist() == [0, 1, 2, 3] * 3 + [2, 3] + [0, 1, 2, 3]


def test_a_short_sequence_borrows_a_pattern():
    known = whole(*[1, 2, 3] * 3).pattern
    short = np.array([2, 3, 1, 2])
    assert repeating(short, np.zeros(4, int)) is None
    assert repeating(short, np.zeros(4, int), [known]).place.tolist() == [1, 2, 0, 1]
