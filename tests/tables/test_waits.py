"""Waits: who came last, how long the others waited, and how long the transfer took."""

import numpy as np
import pytest

from tests.tables.rows import comm, gemm, group, matched, recv, send, shifted
from tracekit.matching.clock import align
from tracekit.timing.buffered_sends import buffered_sends
from tracekit.timing.waits import measure_waits

TRIO = group(0, 0, 1, 2)


def waits_of(ops, *, eager=False):
    return measure_waits(ops, align(ops), eager=np.full(len(ops.start), eager))


def trio(shift=0.0):
    """Rank 1 comes last; the transfer takes 20 µs after it."""
    return matched(
        {
            0: [gemm(0, 100), comm(100, 120, 0), gemm(220, 10)],
            1: shifted([gemm(0, 200), comm(200, 20, 0), gemm(220, 10)], shift),
            2: [gemm(0, 150), comm(150, 70, 0), gemm(220, 10)],
        },
        TRIO,
    )


@pytest.mark.parametrize("shift", [0, 1e6, -1e6])
def test_durations_tell_who_came_last_by_any_clock(shift):
    ops = trio(shift)
    found = waits_of(ops)
    assert found.wait.tolist() == [100_000, 0, 50_000]
    assert found.exposed_wait.tolist() == [100_000, 0, 50_000]
    assert found.transfer.tolist() == [20_000]
    assert ops.rank[found.last].tolist() == [1]
    assert (found.members.tolist(), found.complete.tolist()) == ([3], [True])


def test_a_wait_behind_compute_is_not_exposed():
    ops = matched({0: [gemm(0, 400), comm(100, 120, 0)], 1: [gemm(0, 200), comm(200, 20, 0)]}, group(0, 0, 1))
    found = waits_of(ops)
    assert found.wait.tolist() == [100_000, 0]
    assert found.exposed_wait.tolist() == [0, 0]


def test_an_instance_that_lacks_a_member_is_not_complete():
    ops = matched({0: [comm(0, 50, 0)], 2: [comm(30, 20, 0)]}, TRIO)
    found = waits_of(ops)
    assert (found.members.tolist(), found.complete.tolist()) == ([2], [False])


def test_rooted_operations_tell_no_order():
    ops = matched({0: [comm(0, 5, 0, "broadcast")], 1: [comm(0, 50, 0, "broadcast")]}, group(0, 0, 1))
    assert waits_of(ops).wait.tolist() == [0, 0]


def test_members_that_leave_together_waited_for_the_last():
    """Clocks show it: a root that left early would have ended its broadcast before the last member came."""
    usual = [comm(100.0 * i, 10, 0) for i in range(1, 20)]
    late = {0: comm(5, 45, 0, "broadcast"), 1: comm(30, 20, 0, "broadcast")}
    ops = matched({rank: [mine, *usual] for rank, mine in late.items()}, group(0, 0, 1))
    assert waits_of(ops).wait[ops.among(("broadcast",))].tolist() == [25_000, 0]


@pytest.mark.parametrize(("late", "wait"), [(25.0, 25_000), (5.0, 0)])
def test_broadcasts_wait_by_clocks_that_messages_join(late, wait):
    """A message takes 10 µs, and a clock that only messages join to others may be off by as much."""
    here, there = [comm(5, 25 + late, 0, "broadcast")], [comm(5 + late, 25, 0, "broadcast")]
    for i in range(1, 20):
        here += [send(100.0 * i, 10, 0, 1), recv(100.0 * i + 50, 10, 1, 0)]
        there += [recv(100.0 * i, 10, 0, 1), send(100.0 * i + 50, 10, 1, 0)]
    ops = matched({0: here, 1: shifted(there, 1e6)}, group(0, 0, 1))
    assert waits_of(ops).wait[ops.among(("broadcast",))].tolist() == [wait, 0]


def pair(posted, sent, *, copy=10.0, count=1, shift=0.0):
    """Rank 1 posts receives at `posted`, rank 0 sends at `sent`; a rendezvous, and a sync to align the clocks by."""
    here, there = [], []
    for i in range(count):
        at = i * 1000.0
        end = at + max(posted, sent) + copy
        here += [send(at + sent, end - at - sent, 0, 1), comm(at + 800, 20, 0)]
        there += [recv(at + posted, end - at - posted, 0, 1), comm(at + 790, 30, 0)]
    return matched({0: here, 1: shifted(there, shift)}, group(0, 0, 1))


@pytest.mark.parametrize("shift", [0, 1e6])
@pytest.mark.parametrize(
    ("posted", "sent", "receiver_waits", "sender_waits"), [(100, 300, 200, 0), (300, 100, 0, 200)]
)
def test_rendezvous_either_end_waits_for_the_other(shift, posted, sent, receiver_waits, sender_waits):
    ops = pair(posted, sent, count=4, shift=shift)
    found = waits_of(ops)
    for rank, expected in ((0, sender_waits), (1, receiver_waits)):
        where = ops.of(rank)
        message = np.isin(ops.op[where].astype(str), ["send", "recv"])
        assert found.wait[where][message].tolist() == pytest.approx([expected * 1000] * 4, abs=5)
    late = 0 if sent > posted else 1
    p2p = np.array([ops.channels[c].p2p for c in ops.channel[found.first_row]])
    assert set(ops.rank[found.last[p2p]].tolist()) == {late}
    assert found.transfer[p2p].tolist() == pytest.approx([10_000] * 4, abs=5)


def test_a_sender_that_only_fills_a_buffer_never_waits():
    here = [send(1000.0 * i + 100, 5, 0, 1) for i in range(10)]
    there = [recv(1000.0 * i + 20 * i, max(110 - 20 * i, 5), 0, 1) for i in range(10)]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    assert buffered_sends(ops, align(ops)).eager.any()
    sends = ops.op == "send"
    assert waits_of(ops, eager=True).wait[sends].tolist() == [0] * 10


def test_senders_that_wait_are_no_eager_ones():
    here = [send(1000.0 * i, 10 + 100 * (i % 3), 0, 1) for i in range(9)]
    there = [recv(1000.0 * i + 100 * (i % 3), 10, 0, 1) for i in range(9)]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    assert not buffered_sends(ops, align(ops)).eager.any()


@pytest.mark.parametrize(("posted", "eager"), [(480.0, False), (-20.0, True)])
def test_the_few_sends_held_up_tell_whether_sends_wait(posted, eager):
    """Three of 40 sends last 500 µs: until a receive that was posted late, or because the transfer took so long."""
    here, there = [], []
    for i in range(40):
        at, held = 1000.0 * i, i % 13 == 5
        here += [send(at + 100, 500 if held else 5, 0, 1), comm(at + 800, 20, 0)]
        late = posted if held else -15.0 * (i % 7)
        there += [recv(at + 100 + late, (500 if held else 5) - late, 0, 1), comm(at + 790, 30, 0)]
    ops = matched({0: here, 1: shifted(there, 1e6)}, group(0, 0, 1))
    assert bool(buffered_sends(ops, align(ops)).eager.any()) is eager


def test_without_messages_nothing_is_eager():
    assert not buffered_sends(trio(), align(trio())).eager.any()


def test_between_islands_a_message_is_not_timed():
    ops = matched({0: [send(0, 10, 0, 1)], 1: [recv(5e6, 40, 0, 1)]}, group(0, 0, 1))
    found = waits_of(ops)
    assert found.timed.tolist() == [False]
    assert found.transfer.tolist() == [10_000]


@pytest.mark.parametrize(("copied", "timed"), [(70.0, False), (550.0, True)])
def test_a_large_message_that_arrived_is_not_timed(copied, timed):
    """Its receive is posted long after it was sent, and lasts as long as the copy of one; small ones are quicker."""
    here, there = [], []
    for i in range(4):
        at = 2000.0 * i
        takes = 70.0 if i else copied
        here += [send(at, 70, 0, 1), send(at + 100, 10, 0, 1, nelems=64), comm(at + 1800, 20, 0)]
        there += [recv(at + 900, takes, 0, 1), recv(at + 1500, 10, 0, 1, nelems=64), comm(at + 1790, 30, 0)]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    found = waits_of(ops, eager=True)
    first = ops.instance[np.flatnonzero((ops.op == "recv") & (ops.rank == 1))[0]]
    assert bool(found.timed[first]) is timed
