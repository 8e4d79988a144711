"""Interval sets against a plain oracle: one flag for each unit of time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.intervals import covered_until, empty, gap_start, subtract, union

SPAN = 40
ANY = st.lists(st.tuples(st.integers(0, SPAN), st.integers(-3, 12)), max_size=12)
TIMES = np.arange(-3, SPAN + 20)
QUICK = settings(max_examples=150, deadline=None)


def arrays(spans):
    starts = np.array([s for s, _ in spans], np.int64)
    return starts, starts + np.array([d for _, d in spans], np.int64)


def flags(spans):
    """Whether each unit [t, t + 1) of TIMES is covered."""
    return np.array([any(s <= t < s + d for s, d in spans) for t in TIMES])


def of(intervals):
    """The same of an interval set."""
    return np.array([any(s <= t < e for s, e in zip(*intervals, strict=True)) for t in TIMES])


def is_set(intervals):
    """Sorted, disjoint, not even touching, none empty."""
    starts, ends = intervals
    return bool((starts < ends).all() and (ends[:-1] < starts[1:]).all())


@QUICK
@given(ANY)
def test_union_covers_what_any_interval_covers(spans):
    found = union(*arrays(spans))
    assert is_set(found)
    assert (of(found) == flags(spans)).all()


@QUICK
@given(ANY, ANY)
def test_subtract_leaves_what_no_hole_covers(spans, holes):
    found = subtract(union(*arrays(spans)), union(*arrays(holes)))
    assert is_set(found)
    assert (of(found) == (flags(spans) & ~flags(holes))).all()


@QUICK
@given(ANY)
def test_covered_until_counts_the_units_before(spans):
    covered = covered_until(union(*arrays(spans)), TIMES)
    assert covered.tolist() == np.concatenate([[0], np.cumsum(flags(spans))[:-1]]).tolist()


@QUICK
@given(ANY)
def test_gap_start_is_where_the_idle_time_before_began(spans):
    intervals = union(*arrays(spans))
    ends = intervals[1].tolist()
    inside = [any(s < t < e for s, e in zip(*intervals, strict=True)) for t in TIMES]
    expected = []
    for t, busy in zip(TIMES.tolist(), inside, strict=True):
        at_end = any(s < t <= e for s, e in zip(*intervals, strict=True))
        before = [e for e in ends if e <= t]
        begin = max(before) if before else np.iinfo(np.int64).min
        expected.append(t if busy or at_end else begin)
    assert gap_start(intervals, TIMES).tolist() == expected


def test_nothing_covers_nothing():
    assert [len(a) for a in empty()] == [0, 0]
    assert covered_until(empty(), TIMES).sum() == 0
    assert [len(a) for a in subtract(empty(), union(*arrays([(0, 5)])))] == [0, 0]
    assert (gap_start(empty(), TIMES) == np.iinfo(np.int64).min).all()


def test_nanoseconds_since_the_epoch_lose_no_digit():
    epoch = 1_774_000_000_000_000_001
    found = union(np.array([epoch, epoch + 3]), np.array([epoch + 2, epoch + 4]))
    assert covered_until(found, np.array([epoch + 4])).tolist() == [3]
