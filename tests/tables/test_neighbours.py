"""Peers that nothing tells are found by common ends, or stay open where those prove nothing."""

import pytest

from tests.tables.rows import bare, comm, events, gemm, group, launch, record, shifted, step
from tracekit.inference.peers.neighbours import linked
from tracekit.inference.peers.open_messages import open_kernels, with_links
from tracekit.matching.clock import align
from tracekit.matching.match import match, rematch
from tracekit.rank_events.operations import rank_ops

LINE = [(0, 1), (1, 2)]
STAGES = group(0, 0, 1, 2)


def uneven(n):
    """Microseconds that follow no period."""
    return (n * n * 37) % 211


def exchange(at, posts, streams=(7, 7), copy=20):
    """The kernels of two ranks that wait for each other: posted at `posts` after `at`."""
    end = at + max(posts) + copy
    return [bare(at + p, end - at - p, -1, stream=s) for p, s in zip(posts, streams, strict=True)]


def pipeline(count=8, synced=True):
    """Three stages; in each round the middle one exchanges with the first, then with the last."""
    rows = {0: [], 1: [], 2: []}
    for n in range(count):
        at = 2000.0 * n + uneven(n)
        first, middle = exchange(at, (100 + uneven(n + 3), 300))
        again, last = exchange(at + 700 + uneven(n + 7), (200, 50 + uneven(n + 5)))
        for rank, kernel in ((0, first), (1, middle), (1, again), (2, last)):
            rows[rank].append(kernel)
        if synced:
            for rank, mine in rows.items():
                mine.append(comm(at + 1500 - 10 * rank, 30 + 10 * rank, 0))
    return rows


def found(rows, pairs=LINE, *, sure=True, groups=(STAGES,)):
    """(operations after the inference, links)."""
    ops = match([rank_ops(r, events([*mine, gemm(-9, 1)])) for r, mine in rows.items()], groups)
    clocks = align(ops)
    links = linked(open_kernels(ops, clocks), pairs, 0.0, sure=sure)
    return rematch(ops, with_links(ops, links), groups), links


def told(ops):
    """(rank, source, destination) of each message that has found its other end, by rank in order of start."""
    ends = []
    for rank, source in ops.per_rank.items():
        joined = ops.instance[ops.of(rank)] >= 0
        sides = zip(source.op, source.src.tolist(), source.dst.tolist(), joined, strict=True)
        ends += [(rank, src, dst) for op, src, dst, both in sides if both and op != "all_reduce"]
    return ends


def test_each_message_of_the_middle_finds_its_own_neighbour():
    ops, links = found(pipeline())
    assert len(links) == 16
    assert told(ops) == [(0, 0, 1)] * 8 + [(1, 0, 1), (1, 1, 2)] * 8 + [(2, 1, 2)] * 8


@pytest.mark.parametrize("clock", [3e6, -4e4])
def test_other_clocks_change_nothing(clock):
    rows = pipeline()
    ops, _ = found(rows | {1: shifted(rows[1], clock)})
    assert told(ops) == told(found(rows)[0])


@pytest.mark.parametrize("clock", [0, 3e6])
def test_ranks_without_collectives_are_aligned_by_their_messages(clock):
    rows = pipeline(synced=False)
    rows = {r: [step(0, -10, 40_000), *mine] for r, mine in rows.items()}
    ops, links = found(rows | {1: shifted(rows[1], clock, rate=5e-5)})
    assert len(links) == 16
    assert told(ops) == told(found(pipeline())[0])


def test_a_difference_that_joins_the_best_is_no_rival():
    """Two messages after each other fit when moved by one as well; in all other steps both lead to the same clock."""
    rows = {0: [], 1: []}
    for n in range(5):
        at = 1_000_000.0 * n
        for rank, mine in rows.items():
            mine.append(step(n, at - 100, 900_000))
            for k in range(12):
                begin = at + 3000 * k + uneven(k + 12 * n)
                mine.append(bare(begin + 100 * rank, 300 - 100 * rank, -1, stream=7))
                if k % 4 or n:
                    mine.append(bare(begin + 300 + 100 * rank, 200 - 100 * rank, -1, stream=7))
    rows[1] = shifted(rows[1], 2e6)
    _, links = found(rows, [(0, 1)])
    assert len(links) == 117


@pytest.mark.parametrize("rate", [4e-5, -4e-5])
def test_clocks_that_few_collectives_tell_may_drift(rate):
    """Two collectives tell how far two clocks are apart, and not how fast they drift: messages do."""
    rows = pipeline(count=40, synced=False)
    for r, mine in rows.items():
        mine += [comm(1500.0 + n - 10 * r, 30 + 10 * r, 0) for n in (2_000, 76_000)]
        mine += [step(n, 20_000 * n - 10, 20_000) for n in range(4)]
    rows = {r: [row | {k: 20 * row[k] for k in ("ts", "dur")} for row in mine] for r, mine in rows.items()}
    _, links = found(rows | {1: shifted(rows[1], 0, rate=rate)})
    assert len(links) == 80


@pytest.mark.parametrize("waits", [True, False])
def test_one_stream_may_carry_both_ways(waits):
    """Sends go to a buffer, and every second receive finds its message there; without waits nothing tells a pair."""
    rows = {0: [], 1: []}
    for n in range(24):
        at = 2000.0 * n + uneven(n)
        sender, receiver = (0, 1) if n % 3 else (1, 0)
        posted = 50 if waits and n % 2 else 600
        rows[sender].append(bare(at + 100, 20, -1, stream=7))
        rows[receiver].append(bare(at + posted, max(120 - posted, 5), -1, stream=7))
        for r, mine in rows.items():
            mine.append(comm(at + 1500 - 10 * r, 30 + 10 * r, 0))
    _, links = found(rows, [(0, 1)])
    ways = [0 if n % 2 else 1 if n % 3 else -1 for n in range(24)]
    assert [link.way for link in links] == (ways if waits else [])


def test_kernels_that_end_apart_stay_open():
    rows = pipeline()
    late = [r | {"dur": r["dur"] + 60_000 * (1 + n % 5)} for n, r in enumerate(rows[2])]
    _, links = found(rows | {2: [r for r in late if "Send" in r["name"]] + rows[2][1::2]})
    assert {link.ranks for link in links} == {(0, 1)}


def test_ranks_that_do_the_same_are_no_neighbours():
    rows = {
        r: [bare(900.0 * n + uneven(n) + 2 * r, 200 - 2 * r, -1, stream=7) for n in range(8)] for r in (0, 1)
    }
    rows = {r: [*mine, comm(9000 - r, 20 + r, 0), comm(9100 - r, 20 + r, 0)] for r, mine in rows.items()}
    assert found(rows, [(0, 1)], sure=False)[1] == []
    assert len(found(rows, [(0, 1)], sure=True)[1]) == 8


def test_kernels_that_end_on_all_ranks_are_no_messages():
    rows = {r: [] for r in range(3)}
    for n in range(8):
        at = 900.0 * n + uneven(n)
        for r in rows:
            begin = at + 50 * ((n + r) % 3)
            rows[r] += [bare(begin, at + 200 - begin, -1, stream=7), comm(at + 400 - r, 20 + r, 0)]
    assert found(rows, sure=False)[1] == []


def test_sends_to_a_buffer_are_paired_by_their_order():
    """The receiver waits for every second message only; the others had arrived before it asked."""
    rows = {0: [], 1: []}
    for n in range(12):
        at = 2000.0 * n + uneven(n)
        rows[0].append(bare(at + 100, 20, -1, stream=7))
        posted = 50 if n % 2 else 600
        rows[1].append(bare(at + posted, max(120 - posted, 5), -1, stream=9))
        for r, mine in rows.items():
            mine.append(comm(at + 1500 - 10 * r, 30 + 10 * r, 0))
    ops, links = found(rows, [(0, 1)])
    assert [link.way for link in links] == [1, 0] * 6
    assert {(ops.op[i], int(ops.rank[i])) for i in range(len(ops.op)) if ops.op[i] in {"send", "recv"}} == {
        ("send", 0),
        ("recv", 1),
    }


def call(at, op, kernel, nelems, number):
    """A recorded message without a peer: its record, its launch and its kernel."""
    host = record(at, 8, op, external_id=number, in_nelems=nelems, out_nelems=nelems, group=0)
    args = {"collective": op, "in_nelems": nelems, "out_nelems": nelems, "external_id": number, "group": 0}
    return [host, launch(at + 2, number), kernel | args | {"correlation": number}]


@pytest.mark.parametrize(("second", "nelems", "links"), [("recv", 64, 8), ("send", 64, 0), ("recv", 65, 0)])
def test_directions_and_sizes_must_agree(second, nelems, links):
    rows = {0: [], 1: []}
    for n in range(8):
        at = 2000.0 * n + uneven(n)
        one, two = exchange(at, (100, 300))
        rows[0] += call(at + 10, "send", one, 64, 2 * n + 1)
        rows[1] += call(at + 10, second, two, nelems, 2 * n + 2)
        for r, mine in rows.items():
            mine.append(comm(at + 1500 - 10 * r, 30 + 10 * r, 0))
    ops, joins = found(rows, [(0, 1)])
    assert len(joins) == links
    assert told(ops) == ([(0, 0, 1)] * 8 + [(1, 0, 1)] * 8 if links else [])
