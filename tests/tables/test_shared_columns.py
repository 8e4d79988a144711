"""What is equal on several ranks, or in two tables, is in memory once."""

import numpy as np

from tests.tables.rows import comm, gemm, group, matched, recorded
from tracekit.rank_events.rank_ops import SharedColumns
from tracekit.step_graph.collective_queue import _in_order, _since_the_first

PAIR = group(0, 0, 1)


def calls(number, sizes):
    """Operations of a rank with collectives of these sizes."""
    rows = [
        gemm(0, 1),
        *(comm(4 * n + 1, 1, 0, in_nelems=size, out_nelems=size) for n, size in enumerate(sizes)),
    ]
    return recorded(number % 2, *rows, groups=[PAIR])


def test_ranks_share_their_equal_columns():
    known: SharedColumns = {}
    one, other, third = (
        calls(n, sizes).sharing(known) for n, sizes in enumerate([(8, 16), (8, 16), (8, 32)])
    )
    assert other.nelems is one.nelems
    assert other.token is one.token
    assert third.op is one.op
    assert third.nelems.tolist() == [8, 32]
    assert list(third.token) != list(one.token)


def test_equal_moments_of_resumption_are_no_copy():
    rows = [comm(0, 1, 0), comm(2, 1, 0)]
    ops = matched({0: rows, 1: rows}, PAIR)
    assert np.shares_memory(ops.progress[1].resumed, ops.end)


def test_queues_run_on_from_their_own_begin():
    values = np.array([5.0, 1.0, 7.0, 2.0, 9.0, 3.0, 0.0, 4.0])
    this, behind = np.array([1, 2, 3, 5, 6, 7]), np.array([0, 1, 2, 4, 5, 6])
    assert _since_the_first(values, this, behind).tolist() == [1, 1, 1, 3, 0, 0]
    _in_order(values, this, behind)
    assert values.tolist() == [5, 5, 7, 7, 9, 9, 9, 9]
