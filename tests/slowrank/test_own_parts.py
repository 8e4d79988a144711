"""A step is cut where peers run the same operations in the same order, and becomes shorter where it is longer."""

import numpy as np
import pytest

from tests.tables.rows import LARGE, comm, gemm, group, launch, matched, recv, send, step
from tracekit.step_graph.own_parts import Parts, parts_of

PAIR, STAGE = (0, 1), group(0, 0, 2)


def ops_of_one(turned):
    """Rank 0 sends twice and reduces twice, in turn or (`turned`) the messages behind each other."""
    calls = [send(10, 5, *PAIR), comm(20, 5, 0), send(30, 5, *PAIR), comm(40, 5, 0)]
    if turned:
        calls = [send(10, 5, *PAIR), send(20, 5, *PAIR), comm(30, 5, 0), comm(40, 5, 0)]
    rows = [gemm(0, 10), *calls, gemm(15, 5), gemm(25, 5), gemm(35, 5), step(0, 0, 45)]
    other = [recv(9, 20, *PAIR, nelems=LARGE), recv(30, 9, *PAIR, nelems=LARGE), step(0, 0, 45)]
    mates = [gemm(0, 20), comm(20, 5, 0), gemm(25, 15), comm(40, 5, 0), step(0, 0, 45)]
    return matched({0: rows, 1: [gemm(0, 9), *other], 2: mates}, STAGE)


def parts(ops, until=30_000.0, ready=None):
    rows = np.arange(len(ops.per_rank[0].start))
    began = ops.at_start.astype(np.float64) if ready is None else ready
    return parts_of(ops, rows, [0], np.zeros(len(rows), np.int64), np.array([0.0, until]), began)


def order(ops, found):
    return tuple(ops.calls[0][number] for number in found.order)


def test_messages_cut_a_step_as_well():
    ops = ops_of_one(turned=False)
    finest, coarse = parts(ops)
    assert order(ops, finest) == ("message of 2", "all_reduce of 2") * 2
    assert len(coarse.order) == len(coarse.cuts) - 2 == 2


def test_the_busiest_channel_cuts_a_step():
    rows = [comm(100.0 * i, 10, 0) for i in range(5)] + [comm(50.0 + 200 * i, 10, 1) for i in range(3)]
    ops = matched({0: rows, 1: rows}, group(0, 0, 1), group(1, 0, 1))
    *_, found = parts(ops, 500_000.0)
    assert order(ops, found) == ("all_reduce of 2",) * 5


def test_what_a_rank_stands_still_for_cuts_a_step():
    """A pause behind two reductions is not taken from the work before them; one behind compute cuts nothing."""
    still = [comm(100.0, 10, 0), comm(200.0, 10, 1), comm(300.0, 10, 0)]
    hidden = [comm(400.0, 10, 1), comm(500.0, 10, 0)]
    rows = [gemm(0, 100), gemm(110, 90), gemm(210, 90), gemm(310, 190), *still, *hidden]
    finest, busiest = parts(matched({0: rows, 1: rows}, group(0, 0, 1), group(1, 0, 1)), 600_000.0)
    assert len(busiest.order) == 3
    assert np.diff(finest.cuts[:4]) == pytest.approx([100e3, 90e3, 90e3])


def test_messages_both_ways_cut_a_step_together():
    """A pause before a receive is cured there only if receives cut the step as well as sends."""
    here = [send(100.0 * i, 10, *PAIR) for i in range(3)] + [
        recv(500.0 + 100 * i, 10, 1, 0) for i in range(3)
    ]
    there = [recv(100.0 * i, 10, *PAIR) for i in range(3)]
    there += [send(500.0 + 100 * i, 10, 1, 0) for i in range(3)]
    ops = matched({0: here, 1: there})
    assert [order(ops, p) for p in parts(ops, 900_000.0)] == [("message of 2",) * 6]


def test_another_order_is_not_alike():
    one, other = parts(ops_of_one(turned=False)), parts(ops_of_one(turned=True))
    assert not one[0].alike(other[0])
    assert one[1].alike(other[1])


def two_streams(first, second, *, launched):
    """Rank 0 sends at `first` and reduces at `second`, once its kernel is done."""
    one, other = ({"stream": n, "correlation": n if launched else None} for n in (1, 2))
    rows = [gemm(0, 20), send(first, 5, *PAIR, **one), comm(second, 9, 0, **other), gemm(40, 5)]
    calls = [launch(1, 1), launch(2, 2)] if launched else []
    there = [gemm(0, 10), recv(10, 15, *PAIR, nelems=LARGE), comm(26, 7, 0)]
    ops = matched({0: [*rows, *calls], 1: there}, group(0, 0, 1))
    finest, *_ = parts(ops)
    return order(ops, finest)


@pytest.mark.parametrize(("first", "second"), [(20.0, 20.0), (20.0, 20.001), (20.001, 20.0)])
def test_what_starts_together_has_one_order(first, second):
    """Operations on two streams wait for the same kernel, and nothing tells which was issued first."""
    assert two_streams(first, second, launched=False) == ("all_reduce of 2", "message of 2")


@pytest.mark.parametrize(("first", "second"), [(20.0, 24.0), (24.0, 20.0)])
def test_launches_tell_the_order(first, second):
    assert two_streams(first, second, launched=True) == ("message of 2", "all_reduce of 2")


def test_a_pause_is_cured_in_its_part():
    found = Parts(np.array([0.0, 50, 60, 70]), np.array([0]), np.zeros(2, np.int32))
    shorter = found.trimmed(np.array([10.0, 10, 10]), np.array([30 / 70]))
    assert np.diff(found.cuts) * shorter == pytest.approx([10, 10, 10])


def test_a_step_is_cut_where_operations_could_start():
    """What queues behind a late rank starts later in its peers' work than in the late rank's own."""
    ops = ops_of_one(turned=False)
    early = ops.at_start.astype(np.float64)
    early[1] -= 4_000.0
    (finest, *_), (recorded, *_) = parts(ops, ready=early), parts(ops)
    assert (recorded.cuts - finest.cuts).tolist() == [0, 0, 4_000, 0, 0, 0]
