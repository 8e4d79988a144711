"""Clocks that differ by seconds, drift, or count from another epoch are aligned by the common ends of collectives."""

import numpy as np
import pytest
from scipy.stats import theilslopes

from tests.tables.rows import Row, comm, gemm, group, matched, recv, send, shifted, step
from tracekit.matching.clock import align, line_through

EPOCH_US = 1_774_000_000_000_000


def rows(rank, count=30, span=1000.0):
    """Collectives that end at the same true moments on all ranks, posted at different ones."""
    out = []
    for i in range(count):
        late = (rank * 37 + i * 13) % 50
        out += [gemm(i * span, 400 + late), comm(i * span + 400 + late, 200 - late, 0)]
    return out


def worst(ops, rates=None):
    """Largest difference between aligned ends of one instance, ns."""
    clocks = align(ops)
    ends = {}
    for rank in ops.ranks:
        where = ops.of(rank)
        for instance, end in zip(
            ops.instance[where].tolist(), clocks.align(rank, ops.end[where]).tolist(), strict=True
        ):
            ends.setdefault(instance, []).append(end)
    return max(max(e) - min(e) for i, e in ends.items() if i >= 0)


@pytest.mark.parametrize("shift_us", [-1e6, -37.5, 0, 1e6])
def test_offsets_of_a_second_are_undone(shift_us):
    ops = matched({0: rows(0), 1: shifted(rows(1), shift_us), 2: rows(2)}, group(0, 0, 1, 2))
    assert worst(ops) <= 2
    clocks = align(ops)
    assert clocks.residual_ns <= 2
    assert set(clocks.island.values()) == {0}


@pytest.mark.parametrize("rate", [-50e-6, 50e-6, 200e-6])
def test_drift_is_undone(rate):
    ops = matched(
        {0: rows(0, 60), 1: shifted(rows(1, 60), 1e6, rate), 2: shifted(rows(2, 60), -5e5)}, group(0, 0, 1, 2)
    )
    assert worst(ops) <= 20  # without the rate 60 ms × rate would remain: 3 µs and more
    found = align(ops)
    assert found.rate[1] - found.rate[0] == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("noise", [0, 40])
def test_few_ends_on_a_line_tell_a_drift(noise):
    """Two recordings of 40 ms half a minute apart hold five ends: a line tells the drift, noise tells none."""
    times = [0, 20_000, 30_000_000, 30_020_000, 30_040_000]
    late = [noise * n for n in (1, -1, 1, -1, 1)]
    mine = [comm(t, 100, 0) for t in times]
    theirs = shifted(
        [comm(t + n, 100, 0) for t, n in zip(times, late, strict=True)], 1e6, 4e-5 if not noise else 0
    )
    ops = matched({0: mine, 1: theirs}, group(0, 0, 1))
    clocks = align(ops)
    assert (clocks.exact[0] == clocks.exact[1]) == (not noise)
    if not noise:
        assert worst(ops) <= 50  # a constant would leave 1.2 ms


def test_the_line_is_theil_and_sens():
    rng = np.random.default_rng(3)
    when = np.cumsum(rng.uniform(1, 9e8, 100))
    shift = 3e5 - 2e-5 * when + rng.normal(0, 40, 100) + (rng.random(100) < 0.2) * 1e7
    slope, intercept, _, _ = theilslopes(shift, when)
    assert line_through(shift, when) == pytest.approx((intercept, slope), rel=1e-12)


def test_mostly_equal_endsline_through_without_a_warning():
    rng = np.random.default_rng(0)
    for _ in range(50):
        when = rng.choice([0.0, 1e6], 24, p=[0.9, 0.1])
        shift = rng.choice([0.0, 5.0], 24, p=[0.9, 0.1])
        assert all(np.isfinite(line_through(shift, when)))


def test_a_clock_of_another_epoch_loses_no_digit():
    ops = matched(
        {0: shifted(rows(0), EPOCH_US), 1: rows(1), 2: shifted(rows(2), EPOCH_US)}, group(0, 0, 1, 2)
    )
    assert worst(ops) <= 2


def test_chains_of_groups_carry_the_alignment():
    """Ranks 0 and 3 share no group: the way leads over 1 and 2."""
    links = [group(0, 0, 1), group(1, 1, 2), group(2, 2, 3)]
    made = {}
    for rank in range(4):
        own = []
        for i in range(40):
            for g in links:
                if rank in g.ranks:
                    begin = i * 1000.0 + 300 * g.group
                    own += [comm(begin + 10 * rank, 200 - 10 * rank, g.group)]
        made[rank] = shifted(own, 1e5 * rank * (-1) ** rank)
    ops = matched(made, *links)
    assert set(align(ops).island.values()) == {0}
    assert worst(ops) <= 4


def test_messages_both_ways_join_what_no_collective_does():
    ahead = 250_000.0
    here, there = [], []
    for i in range(20):
        begin = i * 1000.0
        here += [send(begin, 30, 0, 1), recv(begin + 400, 130, 1, 0)]
        there += [recv(begin - 50, 80, 0, 1), send(begin + 500, 30, 1, 0)]
    clocks = align(matched({0: here, 1: shifted(there, ahead)}, group(0, 0, 1)))
    assert set(clocks.island.values()) == {0}
    moved = int(
        clocks.align(1, np.array([round((ahead + 100) * 1000)]))[0] - clocks.align(0, np.array([100_000]))[0]
    )
    assert abs(moved) <= 1000


def test_one_pair_with_mispaired_messages_moves_no_clock():
    """Rank 0 lost the record of one sending: the messages of that step stand with sendings 400 µs too late."""
    made = {}
    for rank in range(6):
        own, stage, peer = [], rank // 3, rank % 3
        for i in range(20):
            begin = i * 2000.0
            own += [step(i, begin, 1950), comm(begin + 10 * rank, 100 - 10 * rank, stage)]
            for n in range(3):
                at = begin + 200 + 400 * n
                there, back = (peer, peer + 3), (peer + 3, peer)
                sent, came = (there, back) if stage == 0 else (back, there)
                own += [send(at + 10 * stage, 30, *sent), recv(at - 10, 45, *came)]
                if (rank, i, n) == (0, 3, 0):
                    own.pop(-2)
        made[rank] = own if stage == 0 else shifted(own, 250_000.0)
    clocks = align(matched(made, group(0, 0, 1, 2), group(1, 3, 4, 5)))
    assert set(clocks.island.values()) == {0}
    moved = int(clocks.align(3, np.array([250_100_000]))[0] - clocks.align(0, np.array([100_000]))[0])
    assert abs(moved) <= 10_000


def test_pairs_that_always_wait_one_way_move_no_clock():
    """Of four pairs of two stages two take 1 ms longer one way, in every message: they show no middle."""
    made = {}
    for rank in range(8):
        own, stage, peer = [], rank // 4, rank % 4
        for i in range(20):
            begin = i * 5000.0
            own += [step(i, begin, 4950), comm(begin + 10 * rank, 100 - 10 * rank, stage)]
            for n, (src, dst) in enumerate([(peer, peer + 4), (peer + 4, peer)]):
                at, lasts = begin + 500 + 2000 * n, 1040.0 if n and peer > 1 else 40.0
                own.append(send(at, lasts, src, dst) if rank == src else recv(at, lasts, src, dst))
        made[rank] = own if stage == 0 else shifted(own, 250_000.0)
    clocks = align(matched(made, group(0, 0, 1, 2, 3), group(1, 4, 5, 6, 7)))
    moved = int(clocks.align(4, np.array([250_100_000]))[0] - clocks.align(0, np.array([100_000]))[0])
    assert abs(moved) <= 10_000


def test_a_slow_link_adds_no_doubt_about_clocks():
    """Of two links between two stages one takes 2 ms: the quick one says how far the clocks may be off."""
    made = {}
    for rank in range(4):
        own, stage, peer = [], rank // 2, rank % 2
        lasts = 2000.0 if peer else 100.0
        for i in range(20):
            begin = i * 10_000.0
            own += [step(i, begin, 9_950), comm(begin + 10 * rank, 100 - 10 * rank, stage)]
            for n, (src, dst) in enumerate([(peer, peer + 2), (peer + 2, peer)]):
                at = begin + 1_000 + 4_000 * n
                mine = send(at, lasts, src, dst) if src == rank else recv(at - 50, lasts + 50, src, dst)
                own.append(mine)
        made[rank] = own if stage == 0 else shifted(own, 250_000.0)
    clocks = align(matched(made, group(0, 0, 1), group(1, 2, 3)))
    assert 0 < max(clocks.doubt.values()) < 700_000  # half of the slow link's 2 ms would hide it


def test_unlinked_ranks_stay_on_their_own_islands():
    ops = matched({0: rows(0), 1: rows(1), 2: [gemm(0, 10)]}, group(0, 0, 1))
    assert align(ops).island == {0: 0, 1: 0, 2: 2}


def test_rooted_operations_tell_no_time():
    """A root leaves a broadcast when it has sent, long before the others have it."""
    bad = {
        r: [*rows(r), *(comm(50_000 + i * 100, 5 + 80 * r, 0, "broadcast") for i in range(60))]
        for r in (0, 1)
    }
    assert align(matched(bad, group(0, 0, 1))).offset[1] == pytest.approx(
        align(matched({r: rows(r) for r in (0, 1)}, group(0, 0, 1))).offset[1], abs=2
    )


def test_collectives_of_a_wrong_group_move_no_clock():
    """Half are taken for a group whose ranks run in lockstep 7 ms apart; in the others one waits, and both leave."""
    ranks: dict[int, list[Row]] = {0: [], 1: []}
    for begin in range(0, 180_000, 30_000):
        late = begin / 300
        ranks[0] += [comm(begin, 300, 0), comm(begin + 400, 9_000 + late, 0)]
        ranks[1] += [comm(begin + 7_000, 300, 0), comm(begin + 7_400, 2_000 + late, 0)]
    clocks = align(matched(ranks, group(0, 0, 1)))
    a, b = (clocks.align(rank, np.array([9_400_000]))[0] for rank in (0, 1))
    assert abs(int(a - b)) < 20_000
