"""An operation table and traces of one simulated pipeline replay alike: both directions of messages on one stream."""

import numpy as np
import pytest

from reftrain.simulate.program import Kind
from reftrain.simulate.runner import simulate
from tests.simulate.case import setup_of, written
from tests.slowrank.jobs import grid, prepared
from tests.what_if.tables import ingested, row
from tracekit.ingest import load
from tracekit.step_graph.table.recording import recording_of
from tracekit.step_graph.table.timeline import timeline_of

STEPS = 3
FAULT = "slow_link:rank=1,delay_ms=30"
MESSAGES = {Kind.SEND: "send", Kind.RECV: "recv"}


def job(stages, *faults):
    tables = {"model": {"layers": 2 * stages, "vocab_size": 32000}}
    return setup_of({"pp": stages}, *faults, steps=STEPS, tables=tables, merge=False)


def tabulated(setup):
    """The rows of an operation table of a simulated job; each computation is one operation, from begin to end."""
    simulated, rows = simulate(setup), []
    begins = np.min([times.bounds for times in simulated.times], axis=(0, 2))
    for program, times in zip(simulated.programs, simulated.times, strict=True):
        for number in range(STEPS):
            found, count = {}, {}
            for index, op in enumerate(program.ops):
                at = number * len(program.ops) + index
                start, end = (float(t[at].max() - begins[number]) / 1e9 for t in (times.start, times.end))
                name = "optimizer" if op.micro_batch < 0 else "backward" if op.backward else "forward"
                if op.kind is Kind.COMPUTE:
                    key = (name if op.micro_batch < 0 else f"{name}-compute", max(op.micro_batch, 0))
                    found[key] = found.get(key, (start, end))[0], end
                elif op.kind in MESSAGES:
                    name = f"{name}-{MESSAGES[op.kind]}"
                    count[name] = count.get(name, -1) + 1
                    found[name, count[name]] = start, end
            for (name, place), (start, end) in found.items():
                rows.append(row(number, program.rank, program.rank, 0, name, place, start, end - start))
    return rows


def named(timeline):
    """The work of a timeline by rank, name and ordinal of its operations."""
    operations = timeline.recording.operations
    return {(o.rank, o.name, o.ordinal): timeline.work[i] for i, o in enumerate(operations)}


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.quick(1)
def test_a_table_and_traces_replay_alike(tmp_path, stages):
    cured, lines = [], {}
    for name, faults in (("struck", [FAULT]), ("healthy", [])):
        setup, config = job(stages, *faults)
        (tmp_path / name).mkdir()
        lines[name] = timeline_of(recording_of(ingested(tmp_path / name, tabulated(setup))))
        written(tmp_path / name / "traces", setup, config, detail="kernels")
        cured.append(prepared(load([str(tmp_path / name / "traces" / "trace")]), grid(pp=stages)))
    struck, healthy = lines["struck"], lines["healthy"]
    recorded = struck.recording.end.max(axis=0)
    assert struck.step_ns(struck.work, struck.late) == pytest.approx(recorded, rel=1e-6)
    usual = named(healthy)
    table_ms = struck.step_ns(np.array([usual[key] for key in named(struck)])).mean() / 1e6
    own, transfer = cured[1].steps.own, cured[1].model.transfer
    saved = struck.step_ns(struck.work).mean() / 1e6 - table_ms
    traces = (cured[0].model.recorded_ns - cured[0].model.step_ns(own, transfer)) / 1e6
    assert saved == pytest.approx(traces, rel=0.01)
