"""Operation tables are read on one clock, step behind step, in seconds."""

import pytest

import tracekit
from tests.what_if.tables import ingested, pipeline, replicas
from tracekit.errors import InputError


def shifted(rows, by):
    """The rows with the clock of each rank ahead by that many seconds."""
    return [r | {"start_ts": r["start_ts"] + by.get(r["rank"], 0.0)} for r in rows]


def told(folder, rows):
    """Every number of the answers about a table."""
    folder.mkdir()
    run = ingested(folder, rows)
    found, asked = tracekit.slowrank(run), tracekit.whatif(run)
    suspects = {s.rank: s.lost_ms_per_step for s in found.suspects}
    return found.verdict, asked.step_ms, suspects, {a.question: a.slowdown for a in asked.answers}


@pytest.mark.parametrize("by", [0.004, 0.3, 7.0, -1e6])
@pytest.mark.parametrize("rows", [replicas([1, 2, 1]), pipeline()])
@pytest.mark.quick(2)
def test_a_shifted_clock_changes_no_answer(tmp_path, rows, by):
    verdict, step, suspects, answers = told(tmp_path / "a", rows)
    again = told(tmp_path / "b", shifted(rows, {1: by, 2: -by / 3}))
    assert (again[0], again[1]) == (verdict, pytest.approx(step, rel=1e-4))
    assert again[2] == pytest.approx(suspects, rel=1e-3)
    assert again[3] == pytest.approx(answers, rel=1e-3)


def test_shifted_clocks_are_told(tmp_path):
    run = ingested(tmp_path, shifted(replicas([1, 1]), {1: 0.25}))
    (row,) = [q for q in run.quality if q.kind == "clocks_aligned"]
    assert "differ by up to 250.0 ms" in row.detail
    assert "µs" in row.detail


def test_ends_that_agree_nowhere_move_nothing(tmp_path):
    rows = replicas([1, 1], steps=4)
    for r in rows:
        r["start_ts"] += 0.02 * (-1) ** r["step"] * r["rank"]
    run = ingested(tmp_path, rows)
    assert not [q for q in run.quality if q.kind == "clocks_aligned"]


@pytest.mark.parametrize(("gap", "every"), [(0.0, 1), (0.05, 1), (50.0, 1), (0.05, 7)])
def test_time_between_steps_is_no_step(tmp_path, gap, every):
    """Each step lasts 80 ms, whatever lies before the next one."""
    rows = [r | {"start_ts": r["start_ts"] + r["step"] * (0.08 + gap)} for r in replicas([1, 1])]
    run = ingested(tmp_path, [r | {"step": r["step"] * every} for r in rows])
    found = tracekit.slowrank(run)
    assert (found.verdict, found.what_if.step_ms) == ("healthy", pytest.approx(80, rel=1e-4))


def test_the_recorded_step_holds_its_last_operation(tmp_path):
    """140 ms from the first gather to the end of the optimizer."""
    assert tracekit.whatif(ingested(tmp_path, replicas([1, 2]))).step_ms == pytest.approx(140)


def test_seconds_since_1970_are_read(tmp_path):
    rows = [r | {"start_ts": r["start_ts"] + 1.7e9} for r in replicas([1, 2, 1])]
    found = tracekit.slowrank(ingested(tmp_path, rows))
    assert [s.rank for s in found.suspects] == [1]
    assert found.what_if.step_ms == pytest.approx(140, rel=1e-4)


@pytest.mark.parametrize("unit", [1e6, 1e9])
def test_whole_numbers_are_refused_with_a_remedy(tmp_path, unit):
    times = ("start_ts", "duration")
    rows = [r | {t: round(r[t] * unit) for t in times} for r in replicas([1, 2])]
    with pytest.raises(InputError, match=r"divide start_ts and duration by 1e3 .* 1e6 if microseconds"):
        ingested(tmp_path, rows)
