"""Operation tables become event tables: pairs meet, steps lie apart, the mesh shows."""

import itertools
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ingest.sample import DATA, needs_data
from tracekit.errors import InputError
from tracekit.ingest import load

DP, PP, MICRO = 2, 3, 2


def rows():
    """Two steps of dp 2 x pp 3 with two micro-batches, times in seconds from each step's start."""
    for step, dp, stage in itertools.product((5, 9), range(DP), range(PP)):
        where = {"dp_rank": dp, "stage": stage, "rank": stage * DP + dp, "step": step}

        def op(kind, k, start, dur, mb=-1, where=where):
            return {**where, "optype": kind, "seq_id": k, "start_ts": start, "duration": dur, "mb_id": mb}

        yield op("params-all-gather", 0, 0.0, 0.01 + stage / 1000)
        for k in range(MICRO):
            at = 0.1 * (stage + k) + 0.02
            yield op("forward-compute", k, at, 0.05, k)
            if stage > 0:
                yield op("forward-recv", k, at - 0.01, 0.01)
                yield op("backward-send", k, 1 + at, 0.01)
            if stage < PP - 1:
                yield op("forward-send", k, at + 0.05, 0.01)
                yield op("backward-recv", k, 1 + at + 0.1, 0.01)
        yield op("grads-reduce-scatter", 0, 2.0, 0.02)
        yield op("layernorm-grads-all-reduce", 0, 2.1, 0.02)
        if stage in (0, PP - 1):
            yield op("embedding-grads-all-reduce", 0, 2.2, 0.02)


def write(path, listed, **change):
    table = pa.Table.from_pylist(list(listed))
    for name, values in change.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(table, path)
    return str(path)


def everything(run):
    for record in run.ranks:
        for row in run.events(record.rank).to_pylist():
            yield {**row, "rank": record.rank}


def assert_instances_meet(run):
    """Each sequence number stands once on every member of a collective, once on both ends of a p2p."""
    members = {g.group: g.ranks for g in run.groups}
    found = {}
    for row in everything(run):
        if row["collective"] is not None:
            found.setdefault((row["group"], row["seq"]), []).append(row)
    for (group, _), ends in found.items():
        ranks = [r["rank"] for r in ends]
        if ends[0]["collective"] in ("send", "recv"):
            send, recv = sorted(ends, key=lambda r: r["collective"], reverse=True)
            assert (send["collective"], recv["collective"]) == ("send", "recv")
            assert (send["rank"], recv["rank"]) == (send["src_rank"], send["dst_rank"])
            assert (recv["src_rank"], recv["dst_rank"]) == (send["src_rank"], send["dst_rank"])
            assert set(ranks) <= set(members[group])
        else:
            assert sorted(ranks) == list(members[group])
            assert len({(r["name"], r["collective"]) for r in ends}) == 1
    return found


def test_a_small_table(tmp_path):
    run = load([write(tmp_path / "anything.bin", rows())])
    assert run.mesh_hint == {"order": ["tp", "cp", "dp", "pp"], "sizes": {"tp": 1, "cp": 1, "dp": 2, "pp": 3}}
    assert run.world_size == 6
    assert run.quality == ()
    assert {(g.ranks, g.descs) for g in run.groups} == {
        *(((r,), ("tp",)) for r in range(6)), ((0, 1), ("dp",)), ((2, 3), ("dp",)), ((4, 5), ("dp",)),
        ((0, 2, 4), ("pp",)), ((1, 3, 5), ("pp",)), ((0, 4), ("embedding",)), ((1, 5), ("embedding",)),
    }  # fmt: skip
    found = assert_instances_meet(run)
    assert len(found) == 2 * (PP * 2 + 2 * DP * (PP - 1) * MICRO + DP * PP + DP)
    steps = [r for r in everything(run) if r["cat"] == "user_annotation" and r["rank"] == 3]
    assert [s["name"] for s in steps] == ["ProfilerStep#5", "ProfilerStep#9"]
    assert steps[0]["ts"] + steps[0]["dur"] < steps[1]["ts"]
    first = run.events(2).to_pylist()[:6]
    assert [r["name"] for r in first] == [
        "ProfilerStep#5", "params-all-gather", "forward-recv", "forward-compute", "forward-send", "forward-recv"
    ]  # fmt: skip
    assert [r["ts"] for r in first[1:4]] == [0, 110_000_000, 120_000_000]
    assert (first[3]["micro_batch"], first[3]["dur"], first[3]["collective"]) == (0, 50_000_000, None)


def test_reversed_ranks_and_rows_in_any_order(tmp_path):
    listed = [r | {"rank": r["dp_rank"] * PP + r["stage"]} for r in rows()]
    np.random.default_rng(1).shuffle(listed)
    run = load([write(tmp_path / "a.parquet", listed)])
    assert run.mesh_hint == {"order": ["tp", "cp", "pp", "dp"], "sizes": {"tp": 1, "cp": 1, "dp": 2, "pp": 3}}
    assert_instances_meet(run)


def test_a_missing_end_and_bad_rows_are_counted(tmp_path):
    listed = list(rows())
    gone = next(i for i, r in enumerate(listed) if r["optype"] == "forward-recv" and r["seq_id"] == 1)
    del listed[gone]
    listed[0] |= {"start_ts": float("nan")}
    listed[1] |= {"duration": -1.0}
    listed[2] |= {"start_ts": None}
    run = load([write(tmp_path / "a.parquet", listed)])
    assert [(q.kind, q.count) for q in run.quality] == [
        ("malformed_event", 2), ("negative_duration", 1), ("unpaired_p2p", 2)
    ]  # fmt: skip


def test_tables_that_are_none(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="without an operation table's columns"):
        load([str(tmp_path / "other.parquet")])
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "other.parquet").read_bytes()[:100])
    with pytest.raises(InputError, match="unreadable as Parquet"):
        load([str(tmp_path / "cut.parquet")])
    listed = [r | {"rank": 0} for r in rows()]
    with pytest.raises(InputError, match="one rank has two places"):
        load([write(tmp_path / "twice.parquet", listed)])
    with pytest.raises(InputError, match="unusable values"):
        load([write(tmp_path / "text.parquet", [r | {"stage": "x"} for r in rows()])])


@needs_data
@pytest.mark.realdata
def test_the_published_table(tmp_path):
    for path in (DATA / "ops").glob("*-ST.*"):
        shutil.copy(path, tmp_path)
    run = load([str(tmp_path)])
    assert run.mesh_hint == {"order": ["tp", "cp", "dp", "pp"], "sizes": {"tp": 1, "cp": 1, "dp": 2, "pp": 4}}
    assert [r.rank for r in run.ranks] == list(range(8))
    assert sum(r.events for r in run.ranks) == 6784 + 8 * 32
    assert [q.kind for q in run.quality] == ["foreign_files"]
    found = assert_instances_meet(run)
    late = [
        abs(a["ts"] + a["dur"] - b["ts"] - b["dur"])
        for a, b in (ends for ends in found.values() if ends[0]["collective"] in ("send", "recv"))
    ]
    assert len(late) == 1536
    assert max(late) < 200_000  # both ends of each pair leave within 0.2 ms, so the pairs are right
