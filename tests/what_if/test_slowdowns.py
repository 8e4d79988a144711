"""Simulated steps and their slowdowns equal what paper and pencil give, and the published figures."""

import json

import numpy as np
import pytest

from tests.ingest.sample import DATA, needs_data
from tests.what_if.tables import ingested, pipeline, replicas, row, timeline
from tracekit.analysis.questions.table_engine import slowdowns
from tracekit.axes import AXES
from tracekit.ingest import load
from tracekit.mesh import from_sizes
from tracekit.step_graph.table.recording import recording_of
from tracekit.step_graph.table.timeline import timeline_of

MS = 1e6
PAIR = from_sizes(dict.fromkeys(AXES, 1) | {"dp": 2}, AXES)


def test_one_slow_worker_of_two_on_paper(tmp_path):
    """Recorded 5 + 120 + 5 + 10 ms; ideal compute is the mean of 60 and 120 ms."""
    found = slowdowns(timeline(tmp_path, replicas([1, 2])), PAIR)
    assert found.recorded_ns == pytest.approx(140 * MS)
    assert found.ideal_ns == pytest.approx(110 * MS)
    assert found.slowdown == pytest.approx(140 / 110)
    assert found.by_replica == pytest.approx({0: 1.0, 1: 140 / 110})
    assert found.by_step == pytest.approx(dict.fromkeys(range(3), 140 / 110))
    assert found.by_type["backward-compute"] == pytest.approx(130 / 110)  # rank 1: 2 × 40 ms
    assert found.by_worker[1] > found.by_worker[0]
    assert found.worst_workers == pytest.approx(1.0)


def test_gaps_between_operations_cost_nothing(tmp_path):
    found = slowdowns(timeline(tmp_path, replicas([1, 1], gap=0.5)), PAIR)
    assert found.recorded_ns == pytest.approx(80 * MS)
    assert found.slowdown == pytest.approx(1.0)


def test_messages_are_transfer_and_wait(tmp_path):
    """Stage 0 works 30 ms, stage 1 30 ms in between, and two messages take 1 ms each."""
    simulated = timeline(tmp_path, pipeline())
    assert simulated.step_ns(simulated.work) == pytest.approx([64 * MS, 64 * MS])
    for name in ("forward-send", "forward-recv", "backward-send", "backward-recv"):
        assert simulated.work[simulated.rows(name)] == pytest.approx(1 * MS)
    twice = np.where(simulated.communication[:, None], simulated.work, 2 * simulated.work)
    assert simulated.step_ns(twice) == pytest.approx(126 * MS)


def test_a_step_that_lacks_a_row_is_left_out(tmp_path):
    listed = [r for r in replicas([1, 2]) if (r["step"], r["rank"], r["optype"]) != (1, 1, "optimizer")]
    recording = recording_of(ingested(tmp_path, listed))
    assert (recording.steps, recording.left_out) == ((0, 2), (1,))


def test_several_chunks_a_stage_are_not_guessed(tmp_path):
    more = [row(s, 0, 0, 0, "forward-compute", 1, 0.07, 0.01) for s in range(2)]
    assert timeline_of(recording_of(ingested(tmp_path, pipeline() + more))) is None


@needs_data
@pytest.mark.realdata
@pytest.mark.parametrize("name", ["ST", "AR"])
@pytest.mark.quick(1)
def test_published_figures_are_reproduced(name):
    folder = DATA / "ops"
    run = load([str(folder / f"trace-{name}.parquet")])
    simulated = timeline_of(recording_of(run))
    found = slowdowns(simulated, from_sizes(run.mesh_hint["sizes"], run.mesh_hint["order"]))
    told = json.loads((folder / f"result-{name}.json").read_text())
    assert found.slowdown == pytest.approx(told["blocking_slowdown"], rel=0.001)
    for mine, key in (
        (found.by_step, "blocking_step_slowdown"),
        (found.by_replica, "blocking_decompose_by_dp_rank"),
        (found.by_stage, "blocking_decompose_by_stage"),
        (found.by_type, "blocking_decompose_by_optype"),
    ):
        assert {str(k): v for k, v in mine.items()} == pytest.approx(told[key], rel=0.001)
    for mine, key in ((found.last_stage, "ms"), (found.worst_workers, "mw")):
        published = json.loads((folder / f"{key}-{name}.json").read_text())
        assert mine == pytest.approx(published["rem"], abs=0.001)
