"""Messages whose peer nothing tells are counted, with the time that compute stood still for them."""

import pyarrow.parquet as pq

from tests.slowrank.jobs import grid, job
from tests.tables.rows import bare, events
from tracekit.analysis.slowrank.analyse import analyse


def test_messages_without_a_peer_are_counted(tmp_path):
    run = job(tmp_path, grid(tp=2), steps=4)
    for record in run.ranks:
        path = run.folder / record.table
        rows = pq.read_table(path).to_pylist()
        end = max(r["ts"] + r["dur"] for r in rows if r["cat"] == "kernel") / 1000
        pq.write_table(events([*rows, bare(end - 5.0, 400.0, 1)]), path)
    found = {q.kind: q for q in analyse(run).quality}
    assert found["messages_without_peer"].count == 2
    assert "ms, waiting or not" in found["messages_without_peer"].detail
