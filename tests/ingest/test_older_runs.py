"""A run folder that an older tracekit wrote lacks columns; it opens, and they are null."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.slowrank.jobs import grid, job
from tracekit import schema
from tracekit.schema import EVENTS


@pytest.fixture
def older(tmp_path):
    run = job(tmp_path, grid(tp=2), steps=2)
    for record in run.ranks:
        path = run.folder / record.table
        pq.write_table(pq.read_table(path).drop_columns(["group_rank"]), path)
    return run


def test_missing_columns_are_null(older):
    table = older.events(0, ["ts", "group_rank"])
    assert table.column("group_rank").null_count == table.num_rows > 0


def test_all_columns_are_handed_out(older):
    assert set(older.events(0).column_names) == set(EVENTS.names)


def test_every_number_of_a_stored_event_has_bounds():
    """But for processes and threads, which are only told apart; a group counts the rank's groups."""
    numbers = {field.name for field in EVENTS if pa.types.is_integer(field.type)}
    assert numbers - set(schema._RANGES) == {"pid", "tid", "group"}
