"""Windows written as Kineto does, one after the other, appended to a run, and asked about by the command."""

import json
from dataclasses import replace

import pytest

from tests.cli.program import Program
from tests.generator import generate
from tests.generator.case import _windows, _World
from tests.generator.engine import simulate
from tests.generator.faults import draw_durations

COUNT, HOUR_NS = 10, 3_600_000_000_000


def written(folder, slow, seed=11):
    """Ten windows of a healthy simulated job, in each of which `slow` (window → factor) strikes rank 1's device."""
    first = generate(
        seed, kind="healthy", world=4, steps=3, ragged=False, missing=set(), truncated={}, form="plain"
    )
    every = round(HOUR_NS / (1e6 * first.truth.step_ms[0]))  # steps go on between windows
    for window in range(COUNT):
        durations = draw_durations(first.job, first.program, seed + 1000 * window)
        durations.work[1] = durations.work[1] * slow(window)
        times = simulate(first.program, durations, eager=first.job.eager)
        world = _World(first.job, first.groups, first.program, durations)
        offsets = [o + window * HOUR_NS for o in first.capture.offsets]
        spans = _windows(world, times, first.captured, ragged=False, rng=None)
        capture = replace(first.capture, windows=spans, offsets=offsets)
        replace(first, times=times, capture=capture, first_step=window * every).write(
            folder / f"w{window:02}"
        )
        yield window


@pytest.fixture
def program(monkeypatch, capfd):
    return Program(monkeypatch, capfd)


@pytest.mark.slow
def test_appended_windows_tell_who_degrades(program, tmp_path):
    traces, run, page = tmp_path / "traces", tmp_path / "run", tmp_path / "page.html"
    for _ in written(traces, lambda window: 1 + 0.06 * window):
        assert program("ingest", traces, "--out", run, "--append", "--quiet").code == 0
    done = program("trend", run, "--fail-on", "slower", "--json", "-", "--html", page, "--quiet")
    assert done.code == 1, done.err
    document = json.loads(done.out)
    assert (document["schema"], document["verdict"]) == ("tracekit.trend/1", "slower")
    assert [r["rank"] for r in document["by_rank"] if r["slower"]] == [1]
    assert len(document["points"]) == COUNT
    assert document["points"][-1]["at_ns"] == pytest.approx((COUNT - 1) * HOUR_NS, rel=1e-3)
    assert document["reason"] in page.read_text()
    told = program("trend", run, "--markdown", "-", "--quiet").out
    assert told.startswith("**SLOWER ")
    assert "rank 1" in told


@pytest.mark.slow
def test_healthy_windows_fail_no_build(program, tmp_path):
    for _ in written(tmp_path / "traces", lambda _window: 1.0):
        pass
    done = program("trend", tmp_path / "traces", "--fail-on", "any", "--quiet", "--verbose")
    assert done.code in {0, 4}, done.out
    assert "gets slower than" not in done.out.replace("no rank is proven to get slower than", "")
    table = done.out.split("\n  windows ")[0].splitlines()[1:]
    assert max(map(len, table)) <= 110


@pytest.mark.slow
def test_one_short_recording_is_left_open(program, ingested):
    done = program("trend", ingested("healthy"), "--fail-on", "slower", "--quiet")
    assert done.code == 4
    assert "record 5 more steps" in done.out
