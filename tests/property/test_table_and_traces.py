"""An operation table and traces of the same job name the same ranks, and give the same prices."""

from collections import defaultdict
from random import Random

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.what_if.tables import ingested, replicas, stages
from tracekit.analysis.slowrank.analyse import analyse

US_PER_S = 1e6
NOISE = 0.01
ROUNDING = 1e-3  # traces have whole nanoseconds, and lack the end of the last step
NORM_MS = (
    1.0  # the all-reduce over all ranks passes the slow link as well; a table does not tell it from work
)
MEETINGS = {
    "params-all-gather": "all_gather",
    "grads-reduce-scatter": "reduce_scatter",
    "optimizer-clip-main-grad": "all_reduce",
}
"""Operations of a table that communicate: with the ranks of the stage, the last one with all ranks."""


def traced(folder, rows):
    """The run of traces with the operations of a table as kernels, one behind the other on each rank."""
    stage = {row["rank"]: row["stage"] for row in rows}
    groups = defaultdict(tuple)
    for rank in sorted(stage):
        groups[stage[rank]] += (rank,)
    world = len(groups)
    groups[world] = tuple(sorted(stage))
    took, begins = defaultdict(float), {}
    for row in rows:
        took[row["step"]] = max(took[row["step"]], (row["start_ts"] + row["duration"]) * US_PER_S)
    for step in sorted(took):
        begins[step] = sum(took[earlier] for earlier in begins)
    lines = {rank: Timeline(rank) for rank in sorted(stage)}
    for row in sorted(rows, key=lambda row: (row["step"], row["start_ts"])):
        line = lines[row["rank"]]
        line.at = begins[row["step"]] + row["start_ts"] * US_PER_S
        if row["optype"] in MEETINGS:
            norm = row["optype"] == "optimizer-clip-main-grad"
            handle = line.post(world if norm else row["stage"], MEETINGS[row["optype"]])
            line.finish(handle, line.at + row["duration"] * US_PER_S, in_nelems=10**6, dtype="Float")
        else:
            line.compute(row["duration"] * US_PER_S, row["optype"])
        if row["optype"] == "optimizer":
            line.step(row["step"], begins[row["step"]])
    descs = {number: "default_pg" if number == world else "mesh_dp" for number in groups}
    return write_run(folder, list(lines.values()), dict(groups), descs, len(stage))


def drawn(seed):
    """A job of three stages of three replicas or more with one fault, or none."""
    lots = Random(seed)
    dp, steps = lots.choice([3, 4, 5]), lots.choice([4, 5, 6])
    at = lots.randrange(dp), lots.randrange(3)
    noise = {}

    def need(*place):
        return noise.setdefault(place, lots.uniform(1 - NOISE, 1 + NOISE))

    fault = [
        {"slow": {at: lots.uniform(1.1, 1.6)}},
        {"slow": {(d, at[1]): 1.3 for d in range(dp)}},
        {"scatter": {at[1]: lots.uniform(4, 10)}},
        {"gather": {at[1]: lots.uniform(4, 10)}},
        {},
    ][seed % 5]
    return stages(dp=dp, steps=steps, need=need, **fault)


JOBS = {
    "replicas": lambda: replicas([1, 1.5, 1, 1]),
    **{f"drawn {seed}": lambda seed=seed: drawn(seed) for seed in range(10)},
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.quick(2)
def test_a_table_and_traces_give_the_same_prices(tmp_path, name):
    rows = JOBS[name]()
    (tmp_path / "table").mkdir()
    (tmp_path / "traces").mkdir()
    table = analyse(ingested(tmp_path / "table", rows))
    mesh = {"dp": 1 + max(row["dp_rank"] for row in rows), "pp": 1 + max(row["stage"] for row in rows)}
    traces = analyse(traced(tmp_path / "traces", rows), mesh)
    assert traces.verdict == table.verdict
    assert traces.cause == table.cause
    assert [s.rank for s in traces.suspects] == [s.rank for s in table.suspects]
    for one, other in zip(traces.suspects, table.suspects, strict=True):
        if table.cause == "stage_imbalance":
            # a table's stage gives its work to the others (M_S of OSDI'25), a trace's does as much as they do
            assert other.lost_ms_low <= one.lost_ms_per_step
            assert one.lost_ms_per_step <= other.lost_ms_high * (1 + NOISE)
        else:
            assert one.lost_ms_per_step == pytest.approx(other.lost_ms_per_step, rel=ROUNDING)
            assert one.lost_ms_low == pytest.approx(other.lost_ms_low, rel=ROUNDING)
            more = NORM_MS if table.cause == "network" else 0.0
            assert one.lost_ms_high == pytest.approx(other.lost_ms_high + more, rel=ROUNDING)
