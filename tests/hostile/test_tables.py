"""A row of an operation table that breaks a bound is dropped and counted; no number of it makes work."""

import math
import time
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ingest.test_ops import rows, write
from tests.marks import quick_first
from tracekit.errors import InputError
from tracekit.ingest import load

HUGE = (-(2**63), -1, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
WHOLE = ("dp_rank", "stage", "step", "rank")
SECONDS = 10.0


def with_row(**change):
    listed = list(rows())
    listed[7] = listed[7] | change
    return listed


def dropped(run):
    return sum(q.count for q in run.quality if q.kind == "malformed_event")


@pytest.mark.parametrize("value", quick_first(3, HUGE))
@pytest.mark.parametrize("key", WHOLE)
@pytest.mark.quick(3)
def test_a_wild_number_costs_its_row(tmp_path, key, value):
    run = load([write(tmp_path / "x.parquet", with_row(**{key: value}))])
    assert (dropped(run), len(run.ranks), run.world_size) == (1, 6, 6)


@pytest.mark.parametrize("key", ["mb_id", "seq_id"])
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
def test_a_wild_ordinal_costs_its_row(tmp_path, key, value):
    assert dropped(load([write(tmp_path / "x.parquet", with_row(**{key: value}))])) == 1


@pytest.mark.quick(4)
@pytest.mark.parametrize("key", ["start_ts", "duration"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, -1e18, 1e9])
def test_a_wild_time_costs_its_row(tmp_path, key, value):
    assert dropped(load([write(tmp_path / "x.parquet", with_row(**{key: value}))])) == 1


@pytest.mark.parametrize("value", [0.5, math.nan, 1e30])
def test_a_fraction_is_no_place(tmp_path, value):
    listed = [r | {"stage": float(r["stage"])} for r in rows()]
    listed[7]["stage"] = value
    assert dropped(load([write(tmp_path / "x.parquet", listed)])) == 1


def test_numbers_as_text_and_unsigned_are_read(tmp_path):
    listed = [r | {"stage": str(r["stage"])} for r in rows()]
    listed[7]["stage"] = "9" * 5000
    table = pa.Table.from_pylist(listed)
    at = table.schema.get_field_index("dp_rank")
    table = table.set_column(at, "dp_rank", table.column(at).cast(pa.uint64()))
    pq.write_table(table, tmp_path / "x.parquet")
    assert dropped(load([str(tmp_path / "x.parquet")])) == 1


@pytest.mark.parametrize("column", [[b"\xff"], [None], [[1]], [True], [{"a": 1}]])
@pytest.mark.parametrize("key", ["stage", "optype", "start_ts", "seq_id"])
@pytest.mark.quick(5)
def test_a_column_of_another_kind_is_refused(tmp_path, key, column):
    listed = list(rows())
    path = write(tmp_path / "x.parquet", listed, **{key: column * len(listed)})
    with suppress(InputError):
        assert load([path]).ranks


def test_steps_and_names_without_number_take_linear_time(tmp_path):
    listed = [
        r | {"step": i, "optype": f"x{i}-send", "rank": i % 4, "stage": i % 4, "dp_rank": 0}
        for i in range(5_000)
        for r in [next(rows())]
    ]
    begin = time.perf_counter()
    load([write(tmp_path / "x.parquet", listed)])
    assert time.perf_counter() - begin < SECONDS


def test_many_places_take_linear_time(tmp_path):
    base = next(rows())
    listed = [base | {"dp_rank": i, "stage": 0, "rank": i, "step": 0} for i in range(60)]
    begin = time.perf_counter()
    assert len(load([write(tmp_path / "x.parquet", listed)]).ranks) == 60
    assert time.perf_counter() - begin < SECONDS
