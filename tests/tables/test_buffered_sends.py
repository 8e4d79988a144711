"""Sends are eager by size and by proof, each size and each pair of ranks by itself."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tables.rows import comm, group, matched, recv, send, shifted
from tracekit.matching.clock import align
from tracekit.timing.buffered_sends import buffered_sends, bytes_of

LARGE, SMALL = 1 << 22, 1 << 19


def conversation(*kinds, count=6, clock=0.0):
    """Messages of rank 0 to rank 1 in turn, each (elements, µs after which the receive is posted, whether it holds)."""
    here, there = [], []
    for i in range(count):
        for n, (nelems, posted, held) in enumerate(kinds):
            at = 4000.0 * i + 1000 * n
            end = posted + 20 if held else 40
            here.append(send(at, end, 0, 1, nelems=nelems))
            there.append(recv(at + posted, max(end - posted, 5), 0, 1, nelems=nelems))
        here.append(comm(4000.0 * i + 3800, 30, 0))
        there.append(comm(4000.0 * i + 3790, 40, 0))
    return matched({0: here, 1: shifted(there, clock)}, group(0, 0, 1))


def decided(ops):
    """Elements → (sends that are eager, sends that are open)."""
    found = buffered_sends(ops, align(ops))
    sizes = {t: int(t.rsplit("/", 1)[1]) for t in set(ops.token) if t.startswith("p2p/")}
    sends = ops.op == "send"
    return {
        size: (
            int(found.eager[sends & (ops.token == t)].sum()),
            int(found.unsure[sends & (ops.token == t)].sum()),
        )
        for t, size in sizes.items()
    }


@pytest.mark.parametrize("clock", [0.0, 1e6])
def test_each_size_is_decided_by_itself(clock):
    ops = conversation((SMALL, 300, False), (LARGE, 300, True), clock=clock)
    assert decided(ops) == {SMALL: (6, 0), LARGE: (0, 0)}


def test_without_proof_it_stays_open():
    ops = conversation((SMALL, 0, True))
    assert decided(ops) == {SMALL: (0, 6)}


@pytest.mark.parametrize(("nelems", "eager"), [(1 << 12, 6), (1 << 26, 0)])
def test_the_smallest_and_the_largest_need_no_proof(nelems, eager):
    assert decided(conversation((nelems, 0, True))) == {nelems: (eager, 0)}


def test_a_send_that_ended_first_never_waited():
    """One message of many ended before its receive was posted: that one is eager, the others are not."""
    here, there = [], []
    for i in range(30):
        at, held = 1000.0 * i, i != 7
        here += [send(at, 320 if held else 40, 0, 1), comm(at + 800, 30, 0)]
        there += [recv(at + 300, 20 if held else 5, 0, 1), comm(at + 790, 40, 0)]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    found = buffered_sends(ops, align(ops))
    assert [i // 2 for i in range(0, 60, 2) if found.eager[i]] == [7]


def test_few_late_receives_show_that_sends_wait():
    """Most receives are posted at once; the few late ones still have their sends, which ended together with them."""
    here, there = [], []
    for i in range(30):
        at, late = 1000.0 * i, 300 if i in {4, 9, 21} else 2
        here += [send(at, late + 20, 0, 1, nelems=-1), comm(at + 800, 30, 0)]
        there += [recv(at + late, 20, 0, 1, nelems=-1), comm(at + 790, 40, 0)]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    found = buffered_sends(ops, align(ops))
    assert not found.eager.any()
    assert not found.unsure.any()


def test_a_batch_that_lasts_proves_nothing():
    """The sender's kernel also receives, so that it may have waited for another message."""
    here, there = [], []
    for i in range(6):
        at = 2000.0 * i
        here += [send(at, 320, 0, 1, correlation=i), comm(at + 1800, 30, 0)]
        there += [recv(at + 300, 20, 0, 1), comm(at + 1790, 40, 0)]
    ops = matched({0: here, 1: there}, group(0, 0, 1))
    batched = replace(ops, kernel=np.where(ops.op == "send", 0, ops.kernel))
    assert buffered_sends(batched, align(ops)).unsure.sum() == 12


def test_pairs_of_ranks_may_differ():
    """Rank 0 reaches rank 1 through a large buffer, and rank 2 through a small one."""
    rows = {0: [], 1: [], 2: []}
    for i in range(6):
        at = 2000.0 * i
        rows[0] += [send(at, 40, 0, 1), send(at + 700, 320, 0, 2)]
        rows[1] += [recv(at + 300, 5, 0, 1)]
        rows[2] += [recv(at + 1000, 20, 0, 2)]
        for r, mine in rows.items():
            mine.append(comm(at + 1500 - 10 * r, 30 + 10 * r, 0))
    ops = matched(rows, group(0, 0, 1, 2))
    found = buffered_sends(ops, align(ops))
    for other, eager in ((1, True), (2, False)):
        received = (ops.rank == other) & (ops.op == "recv")
        assert set(found.eager[received].tolist()) == {eager}


@pytest.mark.parametrize(
    ("token", "size"),
    [("p2p/BFloat16/8", 16), ("p2p/Float/8", 32), ("p2p/Double/2", 16), ("p2p/Byte/5", 5), ("p2p/Int/3", 12),
     ("p2p/Long/3", 24), ("p2p/Float/-1", -1), ("p2p//8", -1)],
)  # fmt: skip
def test_bytes_follow_from_the_token(token, size):
    assert bytes_of(token) == size
