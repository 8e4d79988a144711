"""Messages of which one side alone names its peer find the other side, and never another rank."""

from tests.tables.rows import comm, events, gemm, recv, send
from tests.tables.test_neighbours import LINE, STAGES, exchange, uneven
from tracekit.inference.peers.neighbours import linked
from tracekit.inference.peers.open_messages import (
    Link,
    agreeing,
    half_known,
    open_kernels,
    set_aside,
    taken_back,
    with_links,
)
from tracekit.matching.clock import align
from tracekit.matching.match import match, rematch
from tracekit.rank_events.operations import rank_ops


def jobs(count=8):
    """Three stages: the middle one names no peers, the first sends to it and the last receives from it."""
    rows = {0: [], 1: [], 2: []}
    for n in range(count):
        at = 2000.0 * n + uneven(n)
        (first, middle), later = exchange(at, (100 + uneven(n + 3), 300)), at + 700 + uneven(n + 7)
        again, last = exchange(later, (200, 50 + uneven(n + 5)))
        rows[0].append(send(first["ts"] / 1000, first["dur"] / 1000, 0, 1))
        rows[1] += [middle, again]
        rows[2].append(recv(last["ts"] / 1000, last["dur"] / 1000, 1, 2))
        for rank, mine in rows.items():
            mine.append(comm(at + 1500 - 10 * rank, 30 + 10 * rank, 0))
    return match([rank_ops(r, events([*mine, gemm(-9, 1)])) for r, mine in rows.items()], [STAGES])


def messages(ops, rank):
    """How many messages of a rank are matched, and how many it has."""
    where = ops.of(rank)
    rows = [op != "all_reduce" for op in ops.op[where]]
    return int((ops.instance[where][rows] >= 0).sum()), sum(rows)


def test_the_silent_side_is_found_by_common_ends():
    ops = jobs()
    told = half_known(ops)
    assert {rank: len(rows) for rank, rows in told.items()} == {0: 8, 2: 8}
    assert messages(ops, 1) == (0, 16)
    ops = rematch(ops, set_aside(ops.per_rank.values(), told), [STAGES])
    links = agreeing(linked(open_kernels(ops, align(ops)), LINE, 0.0, sure=True), ops, told)
    ops = rematch(ops, with_links(ops, links), [STAGES])
    assert [messages(ops, rank) for rank in (0, 1, 2)] == [(8, 8), (16, 16), (8, 8)]


def test_a_link_to_another_rank_is_refused():
    ops = jobs()
    told = half_known(ops)
    kernel = int(ops.per_rank[0].kernel[min(told[0])])
    assert agreeing([Link((0, 2), (kernel, 0), 1)], ops, told) == []


def test_what_was_told_is_kept_without_links():
    ops = jobs()
    told = half_known(ops)
    aside = set_aside(ops.per_rank.values(), told)
    assert not (aside[0].src >= 0).any()
    back = taken_back(aside, told)
    assert [r.op for r in back] == [r.op for r in ops.per_rank.values()]
    assert all((r.src == ops.per_rank[r.rank].src).all() for r in back)


def test_without_an_open_side_nothing_is_set_aside():
    ops = match(
        [
            rank_ops(0, events([send(0, 1, 0, 1), send(2, 1, 0, 1), comm(5, 1, 0)])),
            rank_ops(1, events([recv(0, 1, 0, 1), comm(5, 1, 0)])),
        ],
        [STAGES],
    )
    assert half_known(ops) == {}
