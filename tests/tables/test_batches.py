"""A batched kernel waits for the last peer of all its messages; the rest is transfer, for each of them."""

import numpy as np
import pytest

from tests.tables.rows import bare, comm, gemm, group, launch, matched, record, title
from tracekit.matching.clock import align
from tracekit.timing.buffered_sends import buffered_sends
from tracekit.timing.waits import measure_waits

WORLD = group(0, 0, 1, 2)
US = 1000


def call(rank, begin, us, *messages):
    """A batch of `rank` whose kernel starts at `begin`; messages are (source, destination)."""
    told = [
        record(begin - 30 + n, 0.5, *(("send",) if a == rank else ("recv",)), src_rank=a, dst_rank=b)
        for n, (a, b) in enumerate(messages)
    ]
    correlation = int(begin) + 1
    return [*told, title(begin - 20, 2), launch(begin - 19, correlation), bare(begin, us, correlation)]


def exchange():
    """Rank 1 exchanges with both neighbours at 100 µs; rank 0 comes at 130, rank 2 at 180; each ends 10 later."""
    common = [gemm(0, 1), comm(1, 5, 0)]
    return matched(
        {
            0: [*common, *call(0, 130, 10, (0, 1), (1, 0))],
            1: [*common, *call(1, 100, 90, (1, 0), (0, 1), (2, 1))],
            2: [*common, *call(2, 180, 10, (2, 1))],
        },
        WORLD,
    )


@pytest.mark.parametrize("eager", [False, True])
def test_the_latest_peer_ends_the_wait_of_all(eager):
    ops = exchange()
    waits = measure_waits(ops, align(ops), eager=np.full(len(ops.start), eager))
    mine = (ops.rank == 1) & (ops.channel >= 0) & (ops.op != "all_reduce")
    assert waits.held[mine].tolist() == [80 * US] * 3
    assert sorted(waits.wait[mine].tolist()) == [0, 0, 80 * US]


def test_each_message_transfers_for_what_is_left():
    ops = exchange()
    waits = measure_waits(ops, align(ops), eager=np.full(len(ops.start), False))
    sent = (ops.rank != 1) & (ops.op == "send")
    assert waits.transfer[ops.instance[sent]].tolist() == [10 * US] * 2


def test_sends_inside_exchanges_do_not_tell_eagerness():
    ops = exchange()
    assert not buffered_sends(ops, align(ops)).eager.any()


def test_an_end_that_one_message_explains_proves_waiting():
    """Rank 1 receives and sends on at once; only the send's late receive ends together with its kernel."""
    rows = {r: [gemm(0, 1)] for r in range(3)}
    for at in range(1000, 13000, 2000):
        rows[0] += call(0, at + 100, 20, (0, 1))
        rows[1] += call(1, at + 100, 330, (0, 1), (1, 2))
        rows[2] += call(2, at + 410, 20, (1, 2))
        for rank, mine in rows.items():
            mine.append(comm(at + 1500 - 10 * rank, 30 + 10 * rank, 0))
    ops = matched(rows, WORLD)
    found = buffered_sends(ops, align(ops))
    onward = (ops.op == "send") & (ops.rank == 1)
    assert not (found.eager | found.unsure)[onward].any()


def test_a_kernel_that_ends_later_times_no_message():
    """Rank 1 receives from rank 0 within 15 µs, but its kernel ends with its send to rank 2, which comes late."""
    common = [gemm(0, 1), comm(1, 5, 0)]
    ops = matched(
        {
            0: [*common, *call(0, 105, 10, (0, 1))],
            1: [*common, *call(1, 100, 90, (0, 1), (1, 2))],
            2: [*common, *call(2, 180, 10, (1, 2))],
        },
        WORLD,
    )
    waits = measure_waits(ops, align(ops), eager=np.full(len(ops.start), True))
    received = ops.instance[(ops.rank == 1) & (ops.op == "recv")]
    assert waits.timed[received].tolist() == [False]
