"""Operation tables that can be worked out on paper; times in seconds from the begin of each step."""

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tables.rows import events
from tracekit.ingest import load
from tracekit.step_graph.table.recording import recording_of
from tracekit.step_graph.table.timeline import timeline_of

GATHER, FORWARD, BACKWARD, SCATTER, OPTIMIZER = 0.005, 0.01, 0.02, 0.005, 0.01


def replicas(slow, steps=3, gap=0.0):
    """Data-parallel ranks with two micro-batches; `slow`: factor on the compute of each rank, which sets their number.

    gap: seconds that rank 0 lies idle before its reduce-scatter.
    """
    rows = []
    for step in range(steps):
        own = [2 * (FORWARD + BACKWARD) * f for f in slow]
        end = GATHER + max(w + (gap if r == 0 else 0) for r, w in enumerate(own)) + SCATTER
        for rank, factor in enumerate(slow):
            at = GATHER
            line = [("params-all-gather", 0, 0.0, GATHER)]
            for kind, seconds in (("forward-compute", FORWARD), ("backward-compute", BACKWARD)):
                for k in range(2):
                    line.append((kind, k, at, seconds * factor))
                    at += seconds * factor
            at += gap if rank == 0 else 0
            line += [("grads-reduce-scatter", 0, at, end - at), ("optimizer", 0, end, OPTIMIZER)]
            rows += [row(step, rank, 0, rank, *op) for op in line]
    return rows


def stages(dp=2, pp=3, steps=4, *, batches=4, need=None, slow=None, scatter=None, gather=None):
    """Stages that compute beside each other, without messages, and end together at the norm of their gradients.

    need(step, dp, batch): factor on the compute of a micro-batch, on all stages. slow: factor on the compute of a place
    (dp, stage). scatter, gather: factor on the reduce-scatter and the all-gather of a stage.
    """
    rows = []
    for step in range(steps):
        lines, starts = {}, []
        for stage in range(pp):
            first = GATHER * (gather or {}).get(stage, 1)
            ends = []
            for d in range(dp):
                at, line = first, [("params-all-gather", 0, 0.0, first)]
                for kind, seconds in (("forward-compute", FORWARD), ("backward-compute", BACKWARD)):
                    for k in range(batches):
                        lasts = seconds * (slow or {}).get((d, stage), 1) * (need(step, d, k) if need else 1)
                        line.append((kind, k, at, lasts))
                        at += lasts
                lines[d, stage] = line
                ends.append(at)
            end = max(ends) + SCATTER * (scatter or {}).get(stage, 1)
            for d, at in enumerate(ends):
                lines[d, stage].append(("grads-reduce-scatter", 0, at, end - at))
            starts.append(end)
        norm = max(starts) + 0.001
        for (d, stage), line in lines.items():
            line += [
                ("optimizer-clip-main-grad", 0, starts[stage], norm - starts[stage]),
                ("optimizer", 0, norm, OPTIMIZER),
            ]
            rows += [row(step, stage * dp + d, stage, d, *op) for op in line]
    return rows


def pipeline(steps=2):
    """Two stages and one micro-batch; each message takes 1 ms once both sides are there."""
    first = [
        ("forward-compute", 0, 0.0, 0.010), ("forward-send", 0, 0.010, 0.001), ("backward-recv", 0, 0.011, 0.031),
        ("backward-compute", 0, 0.042, 0.020), ("optimizer", 0, 0.062, 0.002),
    ]  # fmt: skip
    second = [
        ("forward-recv", 0, 0.0, 0.011), ("forward-compute", 0, 0.011, 0.010), ("backward-compute", 0, 0.021, 0.020),
        ("backward-send", 0, 0.041, 0.001), ("optimizer", 0, 0.042, 0.002),
    ]  # fmt: skip
    return [
        row(step, stage, stage, 0, *op)
        for step in range(steps)
        for stage, ops in enumerate((first, second))
        for op in ops
    ]


def row(step, rank, stage, dp, optype, seq, start, duration):
    return {
        "step": step, "rank": rank, "stage": stage, "dp_rank": dp, "optype": optype, "seq_id": seq, "start_ts": start,
        "duration": duration, "mb_id": seq if optype.endswith("compute") else -1,
    }  # fmt: skip


def ingested(folder, rows):
    """The run of a table with these rows."""
    path = folder / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return load([str(path)])


def timeline(folder, rows):
    return timeline_of(recording_of(ingested(folder, rows)))


def unnamed(run, axis):
    """The run whose operations along the outermost axis `axis` name neither their group nor their length."""
    mine = {g.group for g in run.groups if any(axis in d for d in g.descs)}
    for record in run.ranks:
        path = run.folder / record.table
        rows = pq.read_table(path).to_pylist()
        numbers = [record.groups[r["group"]] if r["group"] is not None else None for r in rows]
        for row, number in zip(rows, numbers, strict=True):
            if number in mine:
                row |= {"group": None, "in_nelems": 7, "out_nelems": 7, "seq": None}
        pq.write_table(events(rows), path)
    return run
