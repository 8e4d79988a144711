"""Series whose course is known: how often something is claimed of none, and what is found of one."""

import numpy as np
import pytest

from tests.marks import quick_first
from tracekit.analysis.trend.change_points import chance_of_change, cuts_of, points_needed
from tracekit.analysis.trend.judge import judged, trends
from tracekit.analysis.trend.series import Series
from tracekit.analysis.trend.significance import adjusted, line_of, serial_factor, swing_of
from tracekit.analysis.trend.step import step_trend
from tracekit.findings.trend import TrendPoint
from tracekit.thresholds.trend import LEVEL
from tracekit.units import NS_PER_DAY, NS_PER_HOUR

STEP = 100e6
SEEDS = 300


def series(values, hours=1.0):
    """A series of windows at equal distances."""
    points = [
        TrendPoint(n, round(n * hours * NS_PER_HOUR), (0,), 4, float(v), {}) for n, v in enumerate(values)
    ]
    none = np.zeros((0, len(points)))
    return Series(tuple(points), (), none, none, np.zeros((0, 3, len(points))))


def noisy(seed, count, noise=0.01, serial=0.0):
    """Steps whose noise resembles that of the step before by `serial`."""
    draw = np.random.default_rng([seed, 5])
    shocks, held = draw.normal(size=count + 50), np.zeros(count + 50)
    for i in range(1, len(held)):
        held[i] = serial * held[i - 1] + shocks[i]
    return STEP * (1 + noise * held[50:])


def claimed(values, hours=1.0):
    found = step_trend(series(values, hours))
    return found.trend.shape != "none" or (found.swing is not None and found.swing.proven)


@pytest.mark.parametrize(
    ("count", "hours"), quick_first(2, [(12, 1.0), (40, 3.0), (8, 1.0), (25, 24.0), (80, 1.0)])
)
@pytest.mark.quick(1)
def test_no_trend_is_claimed_of_noise(count, hours):
    false = sum(claimed(noisy(seed, count, noise=0.03), hours) for seed in range(SEEDS))
    assert false <= 3 * LEVEL * SEEDS


def test_serial_noise_is_rarely_a_trend():
    """Windows that resemble the next are fewer than they look."""
    false = sum(claimed(noisy(seed, 20, noise=0.03, serial=0.3)) for seed in range(SEEDS))
    assert false <= 6 * LEVEL * SEEDS


@pytest.mark.parametrize("seed", range(5))
def test_slow_drift_is_a_drift(seed):
    values = noisy(seed, 20) + STEP * np.linspace(0, 0.08, 20)
    found = step_trend(series(values)).trend
    assert found.shape == "drift"
    assert found.low_ns <= 0.08 * STEP <= found.high_ns
    assert found.change_ns == pytest.approx(0.08 * STEP, rel=0.3)


@pytest.mark.parametrize("place", [5, 12, 18])
def test_step_change_is_found_where_it_is(place):
    hits = 0
    for seed in range(20):
        values = noisy(seed, 24) + 0.10 * STEP * (np.arange(24) >= place)
        found = step_trend(series(values)).trend
        if found.shape == "change":
            assert [s.number for s in found.shifts] == [place]
            assert found.change_ns == pytest.approx(0.10 * STEP, rel=0.2)
            hits += 1
    assert hits >= 16


def test_change_that_goes_back_has_two_ends():
    values = noisy(0, 30) + 0.10 * STEP * ((np.arange(30) >= 10) & (np.arange(30) < 20))
    found = step_trend(series(values)).trend
    assert [s.number for s in found.shifts] == [10, 20]
    assert abs(found.change_ns) < 0.02 * STEP < found.rise_ns


def test_daily_swing_is_found_with_its_peak():
    hours = np.arange(72)
    values = noisy(0, 72) + 0.04 * STEP * np.cos(2 * np.pi * (hours - 15) / 24)
    found = step_trend(series(values))
    assert found.swing.proven
    assert found.swing.swing_ns == pytest.approx(0.08 * STEP, rel=0.15)
    assert found.swing.peak_h == pytest.approx(15, abs=1)
    assert found.trend.shape == "none"


def test_drift_beneath_a_swing_is_told():
    hours = np.arange(96)
    values = noisy(0, 96) + STEP * (0.04 * np.cos(2 * np.pi * hours / 24) + 0.1 * hours / 96)
    found = step_trend(series(values))
    assert found.swing.proven
    assert found.trend.shape == "drift"


@pytest.mark.parametrize(
    ("hours", "count", "why"),
    [
        (0.01, 30, "less than an hour is recorded"),
        (1, 30, "29 h are recorded, 2 days"),
        (8, 9, "12 windows"),
        (24, 20, "h of the day"),
    ],
)
def test_swing_is_not_asked_of_too_little(hours, count, why):
    found = step_trend(series(noisy(0, count), hours))
    assert found.swing is None
    assert why in found.unasked


def test_one_outlier_is_no_change():
    values = noisy(0, 20)
    values[7] *= 2
    assert step_trend(series(values)).trend.shape == "none"


def test_trifles_are_no_trend():
    """A change that is sure, but below what anybody acts on."""
    values = noisy(0, 30, noise=1e-4) + 0.01 * STEP * (np.arange(30) >= 15)
    assert step_trend(series(values)).trend.shape == "none"


def test_order_in_time_alone_decides():
    """Units change nothing, and time turned round turns the drift."""
    values = noisy(1, 16) + STEP * np.linspace(0, 0.1, 16)
    one, back = (step_trend(series(v)).trend for v in (values, values[::-1]))
    assert back.drift_ns == pytest.approx(-one.drift_ns)
    assert back.p_drift == one.p_drift
    assert step_trend(series(values * 7)).trend.p_drift == one.p_drift


def test_more_tests_make_it_harder():
    lone = judged(series(noisy(3, 14)), noisy(3, 14) + STEP * np.linspace(0, 0.05, 14), 1.0)
    others = [judged(series(noisy(s, 14)), noisy(s, 14), 1.0) for s in range(4, 40)]
    (alone,) = trends(["a"], [lone])
    among = trends([str(i) for i in range(37)], [lone, *others])[0]
    assert among.p_drift > alone.p_drift
    assert adjusted([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])


@pytest.mark.parametrize("tests", [2, 32, 512])
def test_windows_needed_are_enough(tests):
    n = points_needed(tests)
    for count, enough in ((n, True), (n - 2, False)):
        values = np.arange(count) % (count // 2 + 1) * 1e-3 + (np.arange(count) >= count // 2)
        assert (tests * chance_of_change(values) <= LEVEL) == enough or enough


def test_constant_series_has_no_trend():
    found = step_trend(series(np.full(20, STEP)))
    assert (found.trend.shape, found.serial) == ("none", 0.0)
    assert cuts_of(np.full(20, STEP), 1.0) == ()


def test_line_bears_outliers_and_gaps():
    times = np.array([0.0, 1, 2, 5, 6, 7, 8, 20])
    values = 3 + 2 * times
    values[4] = 1000
    line = line_of(times, values)
    assert line.slope == pytest.approx(2)
    assert line.low <= 2 <= line.high
    assert serial_factor(np.zeros(8)) == 1


def test_wave_is_fitted_as_it_is():
    times = np.arange(0, 4 * NS_PER_DAY, NS_PER_DAY / 12)
    size, peak, wave = swing_of(times, 5 + np.cos(2 * np.pi * times / NS_PER_DAY - 1), NS_PER_DAY)
    assert (size, peak) == (pytest.approx(2), pytest.approx(NS_PER_DAY / 2 / np.pi))
    assert wave == pytest.approx(np.cos(2 * np.pi * times / NS_PER_DAY - 1))
