"""The parts of a step: on paper, and never more or less than the step."""

from dataclasses import replace

import pytest

import tracekit
from tests.breakdown.runs import made, pair, repeated, stages
from tests.slowrank.jobs import grid, job, recorded_until
from tests.tables.rows import comm, row
from tracekit.analysis.breakdown.parts import added
from tracekit.findings import ExposedTime


def summed(parts):
    exposed = sum(e.wait_ns + e.transfer_ns + e.open_ns for e in parts.exposed)
    return parts.compute_ns + exposed + parts.bubble_ns + parts.host_ns + parts.idle_ns + parts.unknown_ns


def cell(finding, rank, step):
    (found,) = [c.parts for c in finding.cells if (c.rank, c.step) == (rank, step)]
    return found


def us(parts, *names):
    return [getattr(parts, f"{name}_ns") / 1000 for name in names]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_pair_on_paper(tmp_path, step):
    found = tracekit.breakdown(made(tmp_path, pair()), mesh={"tp": 2})
    quick, slow = cell(found, 0, step), cell(found, 1, step)
    assert us(quick, "step", "compute", "host", "idle", "unknown", "bubble") == [1000, 550, 100, 100, 0, 0]
    assert quick.exposed == (ExposedTime("tp", 150_000, 100_000, 0),)
    assert us(slow, "step", "compute", "host", "idle", "unknown", "bubble") == [1000, 900, 0, 0, 0, 0]
    assert slow.exposed == (ExposedTime("tp", 0, 100_000, 0),)
    assert [r.rank for r in found.by_rank] == [1, 0]


def test_waiting_for_another_stage_is_bubble(tmp_path):
    found = tracekit.breakdown(made(tmp_path, stages(), axis="pp"), mesh={"pp": 2})
    first, last = cell(found, 0, 1), cell(found, 1, 1)
    assert us(first, "step", "compute", "bubble", "host", "idle", "unknown") == [1000, 530, 380, 0, 0, 0]
    assert us(last, "step", "compute", "bubble", "host", "idle", "unknown") == [1000, 380, 400, 0, 0, 0]
    assert first.exposed == (ExposedTime("pp", 0, 90_000, 0),)
    assert last.exposed == (ExposedTime("pp", 130_000, 90_000, 0),)


def test_without_the_other_rank_waiting_is_open(tmp_path):
    run = job(tmp_path, grid(tp=2, dp=2), lost={1})
    total = tracekit.breakdown(run).total
    assert {e.axis: e.open_ns > 0 for e in total.exposed} == {"tp": True, "dp": True}
    found = tracekit.breakdown(run)
    alone = next(r.parts for r in found.by_rank if r.rank == 0)
    assert [(e.wait_ns, e.transfer_ns) for e in alone.exposed if e.axis == "tp"] == [(0, 0)]
    assert (alone.idle_ns, alone.unknown_ns) == (0, 0)


def test_a_recording_of_communication_alone_tells_no_compute(tmp_path):
    rows = {r: repeated([comm(100 + 50 * r, 100 - 50 * r, 0), comm(950, 50, 0)]) for r in (0, 1)}
    parts = cell(tracekit.breakdown(made(tmp_path, rows), mesh={"tp": 2}), 0, 1)
    assert us(parts, "compute", "host", "idle", "unknown") == [0, 0, 0, 850]


def test_a_gap_without_a_launch_is_unknown(tmp_path):
    rows = {r: [e for e in rows if e["cat"] != "cuda_runtime"] for r, rows in pair().items()}
    parts = cell(tracekit.breakdown(made(tmp_path, rows), mesh={"tp": 2}), 0, 1)
    assert us(parts, "compute", "host", "idle", "unknown") == [550, 0, 0, 200]


def test_a_message_without_a_peer_has_no_axis(tmp_path):
    rows = pair(row("kernel", "ncclDevKernel_SendRecv", 800, 50, stream=23))
    parts = cell(tracekit.breakdown(made(tmp_path, rows), mesh={"tp": 2}), 0, 1)
    assert parts.exposed == (ExposedTime("tp", 150_000, 100_000, 0), ExposedTime("unknown", 0, 0, 50_000))
    assert us(parts, "host", "idle", "unknown") == [100, 50, 0]


@pytest.mark.parametrize("axes", [{"tp": 2, "dp": 2}, {"tp": 2, "pp": 2}, {"dp": 3}])
def test_parts_add_up_to_the_step(tmp_path, axes):
    found = tracekit.breakdown(job(tmp_path, grid(**axes), slow={1: 1.4}, steps=3))
    assert [c for c in found.cells if summed(c.parts) != c.parts.step_ns] == []
    assert found.total == added(c.parts for c in found.cells)
    assert summed(found.total) == found.total.step_ns
    assert sum(s.share for s in found.shares) == pytest.approx(1)
    assert found.by_rank[0].rank == 1


def test_a_shifted_clock_changes_nothing(tmp_path):
    rows = pair()
    moved = {**rows, 1: [r | {"ts": r["ts"] + 7_000_000_000} for r in rows[1]]}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = (
        tracekit.breakdown(made(tmp_path / n, r), mesh={"tp": 2}) for n, r in (("a", rows), ("b", moved))
    )
    assert replace(one, notes=(), quality=()) == replace(two, notes=(), quality=())


def test_a_cut_step_shortens_no_mean(tmp_path):
    """Windows hold a part of the last of three equal steps: parts are those of whole steps."""
    found = []
    for name, share in (("whole", 1.0), ("cut", 0.6)):
        (folder := tmp_path / name).mkdir()
        run = job(folder, grid(dp=4), layers=6, steps=3, jitter=0)
        run = run if share == 1.0 else recorded_until(run, share)
        parts, floor = tracekit.breakdown(run), tracekit.floor(run)
        found.append((parts.steps.median_ms, sum(s.mean_ns for s in parts.shares), floor.step_ms))
    assert found[1] == pytest.approx(found[0], rel=0.01)
