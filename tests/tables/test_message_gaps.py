"""Open messages between linked ones are linked in their order, where their lanes have one partner each."""

from dataclasses import replace

import numpy as np

from tests.tables.rows import matched, recv, send, step
from tracekit.inference.peers.stream_order import filled
from tracekit.matching.clock import align
from tracekit.matching.match import rematch

COUNT = 6


def pair(*, lost=(3,), named=(), early=None, partners=(1,), steps=((), ())):
    """Rank 0 sends to `partners` in turn; the messages in `lost` are open on both sides, the others linked.

    Those in `named` are not linked either, since their arguments name the other rank.

    The receive numbered `early` ends before its send begins. `steps` are the profiler steps of the sender and others.
    """
    rows = {0: [], **{p: [] for p in partners}}
    for n in range(COUNT):
        to = partners[n % len(partners)]
        rows[0].append(send(100.0 * n, 5, 0, to, stream=7))
        end = 100.0 * n + (-50 if n == early else 6)
        rows[to].append(recv(end - 9, 9, 0, to, stream=9))
    for rank, mine in rows.items():
        mine.extend(steps[rank > 0])
    ops = matched(rows)
    ranks = []
    for rank in ops.ranks:
        source = ops.per_rank[rank]
        number = np.array([n for n in range(COUNT) if rank in (0, partners[n % len(partners)])])
        open_ = np.isin(number, lost)
        ranks.append(
            replace(
                source,
                op=tuple("send_recv" if o else op for o, op in zip(open_, source.op, strict=True)),
                src=np.where(open_, -1, source.src).astype(np.int32),
                dst=np.where(open_, -1, source.dst).astype(np.int32),
                message=np.where(open_ | np.isin(number, named), -1, number),
            )
        )
    ops = rematch(ops, ranks, [])
    return rematch(ops, filled(ops, align(ops), 0.0), [])


def open_messages(ops):
    """How many operations have found no other end."""
    return int((ops.instance < 0).sum())


def test_a_message_between_two_linked_ones_is_linked():
    ops = pair()
    assert open_messages(ops) == 0
    assert len(np.unique(ops.instance)) == COUNT


def test_messages_at_the_rim_are_counted_from_their_neighbours():
    assert open_messages(pair(lost=(0, 1, 5))) == 0


def test_what_came_before_it_was_sent_stays_open():
    assert open_messages(pair(early=3)) == 2


def test_a_message_stays_within_its_step():
    """By the marks of rank 1 the open message belongs to the next step."""
    same, moved = ([step(0, -9, 350), step(1, 345, 300)], [step(0, -9, 290), step(1, 285, 300)])
    assert open_messages(pair(steps=(same, same))) == 0
    assert open_messages(pair(steps=(same, moved))) == 2


def test_a_lane_to_two_ranks_stays_open():
    assert open_messages(pair(lost=(2, 3), partners=(1, 2))) == 4


def test_recorded_peers_are_kept():
    """The one linked message of the stream goes to rank 1; every second message names rank 2."""
    ops = pair(lost=(), named=range(1, COUNT), partners=(1, 2))
    assert ops.per_rank[0].dst.tolist() == [1, 2] * 3


def middle(*, steps=3):
    """Rank 1 receives from ranks 0 and 2 on one stream, in turn; nothing tells the peer of the first of each step.

    All other messages are linked, so that only those of rank 0 have no other end.
    """
    rows = {0: [], 1: [], 2: []}
    numbers = {0: [], 1: [], 2: []}
    for n in range(4 * steps):
        source = (0, 2)[n % 2]
        rows[source].append(send(100.0 * n, 5, source, 1, stream=7))
        rows[1].append(recv(100.0 * n - 3, 9, source, 1, stream=9))
        for rank in (source, 1):
            numbers[rank].append(-1 if n % 4 == 0 else n)
    ops = matched(rows)
    ranks = []
    for rank in ops.ranks:
        told, source = np.array(numbers[rank]), ops.per_rank[rank]
        ends = {end: np.where(told < 0, -1, getattr(source, end)).astype(np.int32) for end in ("src", "dst")}
        op = tuple("send_recv" if n < 0 else kind for n, kind in zip(told, source.op, strict=True))
        ranks.append(replace(source, op=op, message=told, **ends))
    ops = rematch(ops, ranks, [])
    return rematch(ops, filled(ops, align(ops), 0.0), [])


def test_strays_belong_to_the_rank_that_misses_them():
    ops = middle()
    assert open_messages(ops) == 0
    first = ops.per_rank[1]
    assert first.src.tolist() == [0, 2] * 6
