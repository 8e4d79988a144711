"""A number that no run has refuses, by name, the capture or the order plan that holds it."""

import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from numerics.errors import CaptureError
from numerics.order.order_plan import OrderPlan, Reduction, read_plan, write_plan
from numerics.row_bounds import RANGES, fault_in
from numerics.schema import ROWS
from numerics.store import open_capture
from tests.numerics.synthetic import Plan, write
from tracekit.errors import InputError

TEXTS = {
    "global_shape": ["9999999999999x9999999999999", "4x-1", "x", "9" * 5000, "1x" * 40],
    "boxes": ["0+281474976710656", "281474976710656+1", "-1+2", "0+" + "9" * 5000, "5"],
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return open_capture(write(tmp_path_factory.mktemp("run") / "a", Plan(micro_batches=1, steps=1))).table


def with_value(table, name, value):
    at = table.schema.get_field_index(name)
    column = [value, *table.column(name).to_pylist()[1:]]
    return table.set_column(at, ROWS.field(name), pa.array(column, ROWS.field(name).type))


def test_every_whole_number_of_a_row_has_a_range():
    whole = {f.name for f in ROWS if pa.types.is_signed_integer(f.type)}
    assert whole == set(RANGES)


def test_whole_rows_have_no_fault(rows):
    assert fault_in(rows) is None


@pytest.mark.parametrize("name", RANGES)
def test_a_number_out_of_range_is_a_fault(rows, name):
    low, end = RANGES[name]
    bits = ROWS.field(name).type.bit_width
    wild = [low - 1, *(v for v in (end, 2**63 - 1) if v < 2 ** (bits - 1)), -(2 ** (bits - 1))]
    for value in wild:
        assert name in (fault_in(with_value(rows, name, value)) or "")


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in TEXTS.items() for t in texts])
def test_a_wild_shape_or_box_is_a_fault(rows, name, text):
    assert fault_in(with_value(rows, name, text)) is not None


def test_a_capture_with_a_wild_number_is_refused(tmp_path):
    path = write(tmp_path / "a", Plan(micro_batches=1, steps=1)) / "capture" / "rank00000.parquet"
    table = pq.read_table(path)
    pq.write_table(with_value(table, "numel", 2**62).replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(InputError, match=r"rank00000\.parquet.*numel"):
        open_capture(tmp_path / "a")


WILD = {
    "world_size": (0, -1, 2**31, 2**63),
    "mesh": ({"tp": 0}, {"tp": 2**40}, {"tp": -1}),
    "group": ([-1], [2**31]),
    "operands": ([-2], [2**60]),
    "elements": (-1, 2**60),
    "bounds": ([[0, 2**60]], [[-1, 2]]),
    "layout": ([["w", -1]], [["w", 2**60]]),
    "cuts": ([-2], [2**60]),
    "steps": ([0, 2**60], [-2, 0]),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in WILD.items() for v in values])
@pytest.mark.quick(6)
def test_a_wild_number_refuses_the_plan(tmp_path, name, value):
    one = Reduction(
        label="w", axis="dp", op="all_reduce", phase="reduce", dtype="f", group=(0, 1), operands=(0,)
    )
    write_plan(tmp_path, OrderPlan(source="x", world_size=2, mesh={"dp": 2}, reductions=(one,)))
    assert read_plan(tmp_path) is not None
    document = json.loads((tmp_path / "order_plan.json").read_bytes())
    place = document if name in document else document["reductions"][0]
    place[name] = value
    (tmp_path / "order_plan.json").write_bytes(msgspec.json.encode(document))
    with pytest.raises(CaptureError, match=rf"order_plan\.json.*{name}"):
        read_plan(tmp_path)
