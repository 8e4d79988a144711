"""A process that stands still in a collective leaves it after the others, although it came in time."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.decision.decide import concluded, decide
from tracekit.case.case import build
from tracekit.matching.match import match
from tracekit.rank_events.operations import read_rank
from tracekit.schema import EVENTS

MESH = grid(tp=2, dp=3)
HELD = 3


def answered(folder, stays, *, on_gpu=False, steps=5):
    """The answer about a job of steps of about 6 ms, carried out by threads of hosts or by devices."""
    run = job(folder, MESH, stays=stays, steps=steps)
    ranks = [replace(read_rank(run, r.rank), on_gpu=on_gpu) for r in run.ranks]
    return decide(build(run, match(ranks, run.groups), MESH, None))


def test_a_rank_that_leaves_late_is_no_health(tmp_path):
    found = answered(tmp_path, {(HELD, 1): 30_000.0, (HELD, 3): 30_000.0})
    assert found.verdict == "inconclusive"
    assert [c.rank for c in found.candidates] == [HELD]
    assert "by up to 30.0 ms in step 1, 3" in found.reason
    assert found.candidates[0].lost_ms_high == pytest.approx(2 * 30.0 / 5, rel=0.05)
    assert found.rules == ("ranks_leave_late",)


def test_no_step_is_cured_of_a_time_slice(tmp_path):
    assert answered(tmp_path, {(HELD, step): 3_000.0 for step in range(5)}).verdict == "healthy"


def test_members_leave_devices_together(tmp_path):
    """A kernel that ends later on a device began later: its durations show the order of arrival."""
    stays = {(HELD, 1): 30_000.0, (HELD, 3): 30_000.0}
    assert "ranks_leave_late" not in answered(tmp_path, stays, on_gpu=True).rules


def on_gloo(folder, stays):
    """The answer about the same job with a span of the transport in each call; a rank stays behind that."""
    run = job(folder, MESH, stays=stays)
    for record in run.ranks:
        rows = pq.read_table(folder / f"rank-{record.rank}.parquet").to_pylist()
        step, first, transports = -1, True, []
        for row in sorted(rows, key=lambda r: (r["ts"], -r["dur"])):
            if row["cat"] == "user_annotation":
                step, first = step + 1, True
                continue
            row |= {"cat": "cpu_op", "pid": 1, "tid": 1}
            if row["collective"] is None:
                row["name"] = "aten::mm"
                continue
            less = round(1000 * stays.get((record.rank, step), 0.0)) if first else 0
            row["name"], first = "record_param_comms", False
            transports.append(
                dict.fromkeys(EVENTS.names)
                | {"ts": row["ts"] + 10, "dur": row["dur"] - less - 10, "cat": "user_annotation"}
                | {"name": "gloo:all_reduce", "pid": 1, "tid": 2}
            )
        rows = sorted([*rows, *transports], key=lambda r: (r["ts"], -r["dur"]))
        pq.write_table(pa.Table.from_pylist(rows, schema=EVENTS), folder / f"rank-{record.rank}.parquet")
    return decide(build(run, match([read_rank(run, r.rank) for r in run.ranks], run.groups), MESH, None))


def test_a_rank_stopped_behind_its_transport_is_named(tmp_path):
    """All of the exchange was over, so that only this rank can have kept its host from going on."""
    found = on_gloo(tmp_path, {(HELD, 1): 30_000.0, (HELD, 3): 30_000.0})
    (suspect,) = found.suspects
    assert (suspect.rank, found.cause) == (HELD, "host_stall")
    assert suspect.lost_ms_per_step == pytest.approx(2 * 30.0 / 5, rel=0.05)
    assert found.candidates == ()


def test_a_time_slice_behind_each_transport_is_health(tmp_path):
    assert on_gloo(tmp_path, {(HELD, step): 3_000.0 for step in range(5)}).verdict == "healthy"


def test_a_long_transfer_may_be_a_second_accident(tmp_path):
    """A process that stops before it sent its part holds all members: its own time shows one accident of two."""
    verdicts = []
    for group in ((), (2, HELD)):
        folder = tmp_path / str(len(group))
        folder.mkdir()
        long = {(rank, 1): 8_000.0 for rank in group}
        run = job(folder, MESH, stays=long, accident=(HELD, 3, 8_000.0), steps=12)
        ranks = [replace(read_rank(run, r.rank), on_gpu=False) for r in run.ranks]
        verdicts.append(concluded(build(run, match(ranks, run.groups), MESH, None))[1].verdict)
    assert verdicts == ["healthy", "inconclusive"]
