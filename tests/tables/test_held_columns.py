"""What the operations of a rank hold in memory: columns of one value hold it once, times are held once for a run."""

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tests.tables.rows import comm, group, matched
from tracekit.arrays import compact
from tracekit.rank_events.coded_words import Column

MOST_BYTES = 32
"""Of an operation in the columns of its rank: group, number, step, kernel and launch are not equal on all of them."""


@pytest.mark.parametrize("column", [np.full(9, -1), np.zeros(9, bool), np.full(9, np.nan), np.full(9, 2.5)])
def test_equal_entries_are_held_once(column):
    found = compact(column)
    assert (found.strides, found.dtype, found.shape) == ((0,), column.dtype, column.shape)
    assert np.array_equal(found, column, equal_nan=column.dtype == np.float64)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = column[0]
    assert found.copy().flags.writeable


@pytest.mark.parametrize("column", [np.zeros(0), np.array([1, 2, 1]), np.array([0.0, -0.0])])
def test_other_columns_stay_as_they_are(column):
    assert compact(column) is column


def test_a_column_of_words_is_an_array_of_words():
    words = ["send", "recv", "send"]
    column = Column(["recv", "send", "unused"], np.array([1, 0, 1], np.int32))
    assert (len(column), column[1], column[:].tolist(), column[[0, 1]].tolist()) == (
        3,
        "recv",
        words,
        words[:2],
    )
    assert (column == "send").tolist() == (~(column != "send")).tolist() == [True, False, True]
    assert (column.kinds(), column.among(["unused"]).any()) == (["recv", "send"], False)


def test_times_of_ranks_are_views_of_the_run():
    rows = [comm(3 * n, n + 1, 0, seq=n) for n in range(20)]
    ops = matched(dict.fromkeys(range(3), rows), group(0, 0, 1, 2))
    assert all(
        np.shares_memory(r.start, ops.start) and np.shares_memory(r.end, ops.end)
        for r in ops.per_rank.values()
    )


def test_an_operation_takes_few_bytes(tmp_path):
    ops = prepared(job(tmp_path, MESH := grid(tp=2, dp=4)), MESH).ops
    columns = [c for r in ops.per_rank.values() for c in vars(r).values() if isinstance(c, np.ndarray)]
    own = [c for c in columns if not (np.shares_memory(c, ops.start) or np.shares_memory(c, ops.end))]
    assert sum(c.nbytes for c in own if c.strides != (0,)) <= MOST_BYTES * len(ops.start)
