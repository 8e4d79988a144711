"""Robust statistics: which row exceeds its peers, by how much, and whether chance explains it."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import binom

from tracekit.step_graph.delays import lower_level
from tracekit.step_graph.statistics import (
    MAD_TO_SIGMA,
    NO_ROWS,
    Excess,
    chance_of,
    confidence,
    errors_of_chance,
    excess,
    median_of_others,
    spread,
    spread_of_others,
    usual_of_others,
)
from tracekit.thresholds.slowrank import Z_LIMIT

ALL = [np.arange(4)]


def test_peers_are_the_others_of_the_group_only():
    values = np.array([[1.0], [2.0], [30.0], [40.0], [7.0]])
    found = median_of_others(values, [np.array([0, 1]), np.array([2, 3]), np.array([4])])
    assert found[:4, 0].tolist() == [2.0, 1.0, 40.0, 30.0]
    assert np.isnan(found[4, 0])


@pytest.mark.parametrize("above", range(1, 8))
def test_lower_of_two_levels_shows_what_is_usual(above):
    values = 100.0 + np.random.default_rng(above).normal(size=(8, 6))
    values[:above] += 20.0
    low = lower_level(values)
    assert low.tolist() == [False] * above + [True] * (8 - above)
    usual = usual_of_others(values, [np.arange(8)], np.flatnonzero(low))
    assert usual[:above] == pytest.approx(np.full((above, 6), 100.0), abs=3.0)
    over = excess(values, [np.arange(8)], 0.1, usual=np.flatnonzero(low)).mean[:above]
    assert over == pytest.approx(np.full(above, 20.0), abs=2.0)


def test_without_usual_rows_the_median_of_others_counts():
    values = np.random.default_rng(1).normal(size=(5, 6))
    groups = [np.arange(3), np.arange(3, 5)]
    assert np.array_equal(usual_of_others(values, groups, NO_ROWS), median_of_others(values, groups))


def test_chance_makes_no_levels():
    random = np.random.default_rng(2)
    split = [lower_level(random.normal(size=(8, 6))).all() for _ in range(200)]
    assert np.mean(split) > 0.98


def test_unknown_peers_are_left_out_not_zero():
    values = np.array([[5.0, 5.0], [np.nan, 6.0], [7.0, np.nan], [np.nan, np.nan]])
    found = median_of_others(values, ALL)
    assert found[0].tolist() == [7.0, 6.0]
    assert found[3].tolist() == [6.0, 5.5]


def test_spread_is_robust_standard_deviation():
    noise = np.random.default_rng(5).normal(0, 3, 4000)
    assert spread(noise) == pytest.approx(3, rel=0.1)
    noise[:200] = 1e9
    assert spread(noise) == pytest.approx(3, rel=0.15)
    assert spread(np.array([np.nan])) == 0


def test_a_lasting_excess_is_significant_and_noise_is_not():
    rng = np.random.default_rng(6)
    values = rng.normal(1e6, 1e3, (8, 10))
    values[5] += 2e4
    found = excess(values, [np.arange(8)], floor=100.0)
    assert found.mean[5] == pytest.approx(2e4, rel=0.1)
    assert found.z[5] > Z_LIMIT
    assert (np.delete(found.z, 5) < Z_LIMIT).all()
    assert found.sigma == pytest.approx(1e3, rel=0.5)


def test_the_floor_keeps_trifles_of_a_noiseless_trace_quiet():
    values = np.full((4, 5), 1e6)
    values[2] += 10
    assert excess(values, ALL, floor=1000.0).z[2] < Z_LIMIT
    assert excess(values, ALL, floor=1.0).z[2] > Z_LIMIT


def test_normal_noise_hardly_ever_alarms():
    rng = np.random.default_rng(7)
    alarms = sum(
        (excess(rng.normal(1e6, 1e4, (16, 6)), [np.arange(16)], 1.0).z > Z_LIMIT).any() for _ in range(100)
    )
    assert alarms <= 2


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.floats(-1e9, 1e9))
def test_a_common_shift_of_all_ranks_is_nobodys_excess(seed, shift):
    values = np.random.default_rng(seed).normal(1e6, 1e4, (4, 5))
    before, after = (excess(v, ALL, 1.0) for v in (values, values + shift))
    assert after.mean == pytest.approx(before.mean, abs=1e-3)


def test_confidence_falls_with_the_number_of_ranks_tested():
    assert confidence(5, 8) > confidence(5, 10**6)
    assert confidence(0, 8) == 0
    assert confidence(50, 8) == 0.999


@pytest.mark.parametrize("module", ["slowrank.analyse", "hang.stragglers"])
def test_commands_start_without_scipy(module):
    """Its parts take a third to half of a second to import; most inputs need none."""
    code = f"import sys, tracekit.analysis.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"tracekit.analysis.{module}" in loaded.split()
    assert "scipy" not in loaded.split()


@pytest.mark.parametrize("probability", [1e-300, 1e-20, 1e-6, 0.01, 0.5, 0.9])
def test_the_normal_quantile_is_that_of_scipy(probability):
    assert errors_of_chance(probability) == pytest.approx(-float(ndtri(probability)), rel=1e-12, abs=1e-12)


def test_certainty_has_no_standard_errors():
    assert errors_of_chance(1.0) == -math.inf


COLUMNS = st.lists(
    st.lists(
        st.one_of(st.just(math.nan), st.integers(-3, 3).map(float), st.floats(-1e9, 1e9)),
        min_size=3,
        max_size=3,
    ),
    min_size=2,
    max_size=9,
)


@given(COLUMNS)
def test_medians_of_others_are_those_of_numpy(rows):
    values = np.array(rows)
    found = median_of_others(values, [np.arange(len(values))])
    for row in range(len(values)):
        others = np.delete(values, row, axis=0)
        for column in range(3):
            known = others[np.isfinite(others[:, column]), column]
            told = float(np.median(known)) if len(known) else math.nan
            assert np.array_equal(found[row, column], told, equal_nan=True)


@given(st.lists(st.one_of(st.integers(0, 4).map(float), st.floats(0, 1e9)), min_size=2, max_size=12))
def test_spread_of_others_is_about_their_own_median(levels):
    peers, between = spread_of_others(levels)
    for i, _ in enumerate(levels):
        others = np.delete(np.array(levels), i)
        assert peers[i] == np.median(others)
        assert between[i] == MAD_TO_SIGMA * np.median(np.abs(others - np.median(others)))


@pytest.mark.parametrize(("times", "trials"), [(0, 5), (1, 1), (2, 3), (5, 6), (7, 6), (600, 2000)])
@pytest.mark.parametrize("probability", [0.5, 0.1, 1 / 3])
def test_chance_of_is_the_binomial_tail(times, trials, probability):
    assert chance_of(times, trials, probability) == pytest.approx(
        binom.sf(times - 1, trials, probability), rel=1e-9, abs=1e-300
    )


def test_equally_slow_rows_are_significant_together():
    """Four rows of eight are slow in every second column: one of them alone is a little below the limit."""
    z = np.array([0.0, 0.1, 0.0, -0.1, 4.55, 4.62, 4.26, 4.62])
    found = Excess(np.zeros((8, 12)), np.abs(z), 1.0, z)
    assert np.flatnonzero(found.significant(0.5)).tolist() == [4, 5, 6, 7]
    one = np.where(np.arange(8) == 6, 4.26, 0.0)
    assert not replace(found, z=one).significant(0.5).any()
    assert not replace(found, mean=np.full(8, 0.4)).significant(0.5).any()
