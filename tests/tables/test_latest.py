"""An identifier that is used again belongs to the last event before."""

import numpy as np

from tracekit.rank_events.event_columns import latest


def test_the_last_one_before_the_moment_counts():
    known, time = np.array([7, 8, 7, 7]), np.array([10, 20, 300, 200])
    found = latest(known, time, np.array([7, 7, 7, 8, 9, 7]), np.array([15, 250, 400, 30, 30, 5]))
    assert found.tolist() == [0, 3, 2, 1, -1, 0]


def test_nothing_known_is_nothing_found():
    none = np.zeros(0, np.int64)
    assert latest(none, none, np.array([1, 2]), np.array([1, 2])).tolist() == [-1, -1]
