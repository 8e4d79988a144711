"""Jobs of many windows whose course is known: told as it is, whoever writes ranks and whatever is missing."""

import re
from dataclasses import replace

import pytest

import tracekit
from tests.house.source import ROOT
from tests.slowrank.jobs import job
from tests.trend.jobs import MESH, grid, windows
from tracekit.errors import InputError
from tracekit.report.trend_json import trend_document
from tracekit.report.trend_text import trend_text
from tracekit.steps.recorded_windows import common, windows_of


def degraded(rank, window):
    """Rank 2 gets slower by 2 % a window."""
    return 1 + 0.02 * window * (rank == 2)


@pytest.fixture(scope="module")
def worse(tmp_path_factory):
    return windows(tmp_path_factory.mktemp("worse") / "run", 12, degraded)


@pytest.fixture(scope="module")
def found(worse):
    return tracekit.trend(worse)


def test_rank_that_gets_slower_is_named(found):
    assert (found.verdict, [r.rank for r in found.slower]) == ("slower", [2])
    (rank,) = found.slower
    assert (rank.part, rank.trend.shape) == ("compute", "drift")
    assert rank.trend.rise_ns == pytest.approx(0.22 * 4e6, rel=0.1)
    assert found.step.drift_ns == pytest.approx(rank.trend.rise_ns, rel=0.1)


def test_one_point_shows_no_drift(tmp_path):
    text = trend_text(tracekit.trend(job(tmp_path, MESH, steps=1)))
    assert text.startswith("INCONCLUSIVE  1 step was recorded")
    assert "\n  drift" not in text
    assert re.search(r"\n  steps +1 of \d", text)  # its length, not the time between its own begin and itself


def test_steady_job_blames_nobody(tmp_path):
    found = tracekit.trend(windows(tmp_path, 12))
    assert (found.verdict, found.slower, found.to_decide) == ("steady", (), None)


@pytest.mark.slow
def test_common_drift_blames_nobody(tmp_path):
    found = tracekit.trend(windows(tmp_path, 12, lambda _rank, window: 1 + 0.01 * window))
    assert (found.verdict, found.step.shape, found.slower) == ("slower", "drift", ())


@pytest.mark.slow
def test_change_at_once_is_dated(tmp_path):
    found = tracekit.trend(windows(tmp_path, 16, lambda _rank, window: 1 + 0.1 * (window >= 9)))
    assert (found.verdict, [s.number for s in found.step.shifts], found.slower) == ("slower", [9], ())
    assert found.step.shifts[0].at_ns == pytest.approx(9 * 3600e9, rel=1e-6)


@pytest.mark.slow
def test_slack_hides_no_rank_that_degrades(tmp_path):
    """The step is that of the slow replica; a rank of the other one gets slower within its slack."""
    mesh = grid(dp=4)
    found = tracekit.trend(
        windows(tmp_path, 14, lambda r, w: 1.5 if r == 0 else 1 + 0.02 * w * (r == 3), mesh=mesh, noise=0.001)
    )
    assert (found.verdict, [r.rank for r in found.slower]) == ("rank_drift", [3])


@pytest.mark.slow
def test_of_two_the_one_that_rises_is_named(tmp_path):
    """Beside one peer only: the peer seems to get quicker, and who gets quicker makes nobody slow."""
    pace = {
        "worse": lambda r, w: 1 + 0.02 * w * (r == 1),
        "better": lambda r, w: 1.3 - 0.02 * w * (r == 1),
    }
    found = {
        name: tracekit.trend(windows(tmp_path / name, 12, pace[name], mesh=grid(dp=2), noise=0.001))
        for name in pace
    }
    assert [r.rank for r in found["worse"].slower] == [1]
    assert found["better"].slower == ()


@pytest.mark.slow
def test_clocks_and_numbers_of_steps_change_nothing(found, tmp_path):
    clocks = [0.0, 7e12, -3e9, 12.0]
    moved = tracekit.trend(windows(tmp_path, 12, degraded, clocks=clocks, ascending=True))
    assert [replace(p, steps=(), at_ns=0) for p in moved.points] == [
        replace(p, steps=(), at_ns=0) for p in found.points
    ]
    assert [(r.rank, r.trend.rise_ns, r.slower) for r in moved.by_rank] == [
        (r.rank, r.trend.rise_ns, r.slower) for r in found.by_rank
    ]


@pytest.mark.slow
def test_swapped_ranks_swap_the_answer(found, tmp_path):
    other = {0: 3, 1: 2, 2: 1, 3: 0}
    turned = tracekit.trend(windows(tmp_path, 12, lambda r, w: degraded(other[r], w)))
    assert (turned.verdict, [r.rank for r in turned.slower]) == (found.verdict, [1])


@pytest.mark.parametrize("lost", [[0], [3], [0, 3]])
@pytest.mark.quick(1)
def test_dropped_ranks_move_no_blame(worse, found, lost):
    part = tracekit.trend(worse.without(lost, "left out"))
    assert {r.rank for r in part.slower} <= {2}
    assert part.ranks.missing == tuple(lost)


@pytest.mark.slow
def test_without_the_culprit_nobody_is_named(worse):
    part = tracekit.trend(worse.without([2], "left out"))
    assert part.slower == ()
    assert part.verdict != "steady"


@pytest.mark.slow
def test_windows_that_ranks_lack_are_borne(tmp_path):
    lost = {(0, 3), (1, 0), (3, 7), (3, 8)}
    clocks = [0.0, 5e12, 1e3, -2e11]
    part = tracekit.trend(windows(tmp_path, 14, degraded, lost=lost, clocks=clocks))
    assert (part.verdict, [r.rank for r in part.slower]) == ("slower", [2])
    held = {r.rank: [n for n, ns in enumerate(r.own_ns) if ns is None] for r in part.by_rank}
    assert {(rank, n) for rank, ns in held.items() for n in ns} <= lost
    assert len(part.points) == 14


def test_few_windows_decide_nothing(tmp_path):
    found = tracekit.trend(windows(tmp_path, 5, degraded))
    assert (found.verdict, found.slower) == ("inconclusive", ())
    assert found.to_decide == "record 3 more windows (8 at least)"
    assert "whether they drift is not known" in " ".join(found.notes)


@pytest.mark.slow
def test_noisy_windows_are_not_called_steady(tmp_path):
    found = tracekit.trend(windows(tmp_path, 9, noise=0.06))
    assert (found.verdict, found.to_decide) == ("inconclusive", "record more windows")


def test_one_window_compares_its_steps(tmp_path):
    found = tracekit.trend(windows(tmp_path, 1, steps=12))
    assert (found.unit, len(found.points)) == ("step", 12)
    assert any("one window was recorded" in note for note in found.notes)


@pytest.mark.slow
def test_windows_without_steps_or_peers_tell_nothing(worse, tmp_path):
    with pytest.raises(InputError):
        tracekit.trend(worse, steps=[(50, 60)])
    part = tracekit.trend(windows(tmp_path, 12, degraded, lost={(r, 4) for r in (0, 1, 3)}))
    assert part.points[4].ranks == 1  # no peer beside it
    assert all(r.beyond_ns[4] is None for r in part.by_rank)
    assert [r.rank for r in part.slower] == [2]


def test_part_of_a_run_is_one_window(worse):
    parts = windows_of(worse)
    assert len(parts) == 12
    rows = [sum(w.run.events(r).num_rows for w in parts) for r in MESH.coordinates]
    assert rows == [worse.events(r).num_rows for r in MESH.coordinates]
    ts = parts[3].run.events(1, ["name"])
    assert ts.column_names == ["name"]


def test_windows_are_joined_by_their_times():
    hour = 3_600_000
    one, two = [hour * n for n in (0, 1, 2, 4, 5)], [hour * n + 17 for n in (1, 4, 5)]
    far = [t + 10**12 for t in two]
    odd = [hour * n // 2 for n in (0, 2, 5, 10)]
    times, numbers = common({0: one, 1: two, 2: far, 3: odd})
    assert times == [0, hour, 2 * hour, 5 * hour // 2, 4 * hour, 5 * hour]
    assert numbers == {0: [0, 1, 2, 4, 5], 1: [1, 4, 5], 2: [1, 4, 5], 3: [0, 1, 3, 5]}


def test_windows_at_equal_distances_are_joined_by_steps(tmp_path):
    """Clocks that are apart by decades, and windows that begin each hour: only their steps tell which are the same."""
    lost, clocks = {(3, 0), (3, 1), (0, 13)}, [0.0, 5e12, -3e9, 1e5]
    parts = windows_of(windows(tmp_path, 14, lost=lost, clocks=clocks, ascending=True))
    held = [{r.rank for r in w.run.ranks} for w in parts]
    assert held == [{0, 1, 2}, {0, 1, 2}, *[{0, 1, 2, 3}] * 11, {1, 2, 3}]
    assert [w.at_ns for w in parts] == pytest.approx([n * 3600e9 for n in range(14)], rel=1e-3)


@pytest.mark.slow
def test_same_run_gives_same_answer(worse, found):
    assert trend_document(tracekit.trend(worse)) == trend_document(found)


def test_rows_are_ranks_in_windows(found):
    rows = found.to_arrow().to_pylist()
    assert len(rows) == 48
    assert {r["rank"] for r in rows if r["slower"]} == {2}


def test_documented_answer_is_given(found):
    page = (ROOT / "docs" / "trend.md").read_text(encoding="utf-8")
    assert f"```\n{trend_text(found)}```" in page
