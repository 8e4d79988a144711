"""Messages on Gloo: their peers by place in a group, and when they were done."""

from tests.tables.gloo import message, named, operator, steps
from tests.tables.rows import recorded
from tracekit.tables.buffered_sends import buffered_sends
from tracekit.tables.clock import Clocks
from tracekit.tables.local_peers import with_local_peers
from tracekit.tables.match import match
from tracekit.tables.waits import measure_waits

STEP = 10_000


def pipeline(groups, counts=(2, 2, 2)):
    """Four ranks in a row; rank r sends `counts[r]` messages to place r + 1 of their group of four."""
    found = []
    for rank in range(4):
        rows = steps((0, STEP))
        if rank:
            for n in range(counts[rank - 1]):
                rows += message("recv", 100 + 500 * n, 500 + 500 * n, rank - 1)
        for n in range(counts[rank] if rank < 3 else 0):
            rows += message("send", 300 + 500 * n, 520 + 500 * n, rank + 1)
        found.append(recorded(rank, *rows, groups=groups))
    return found


def ends(rank):
    """(kind, source, destination) of each operation."""
    return [(o, int(s), int(d)) for o, s, d in zip(rank.op, rank.src, rank.dst, strict=True)]


def test_places_tell_peers_where_counts_agree():
    groups = [named(0, "0", 0, 1, 2, 3)]
    told = with_local_peers(pipeline(groups), groups)
    assert set(ends(told[1])) == {("recv", 0, 1), ("send", 1, 2)}
    assert match(told, groups).unmatched == 0


def test_groups_that_disagree_about_peers_stay_open():
    """Of two groups only one has as many messages the other way."""
    groups = [named(0, "0", 0, 1, 2, 3), named(1, "1", 3, 2, 1, 0)]
    fewer = with_local_peers(pipeline(groups[:1], counts=(2, 1, 2)), groups[:1])
    assert set(ends(fewer[0])) == {("send", 0, 1)}
    torn = pipeline(groups[:1])
    torn[1] = recorded(1, *steps((0, STEP)), *message("recv", 100, 500, 0), groups=groups[:1])
    assert ("send_recv", -1, -1) in ends(with_local_peers(torn, groups[:1])[0])


def test_a_message_begins_with_its_call():
    receiver = recorded(0, *steps((0, STEP)), *message("recv", 100, 905, 1, call_us=800))
    assert (receiver.start[0], receiver.end[0]) == (100_000, 905_000)


def test_a_send_found_done_ends_with_its_call():
    """The host waited for the receive, and looked for the send afterwards."""
    rows = [*steps((0, STEP)), *message("send", 100, 910, 1), *message("recv", 110, 900, 1)]
    rank = recorded(0, *rows)
    assert rank.op[0] == "send_recv"
    assert rank.found.tolist() == [True, False]
    assert rank.end.tolist() == [105_000, 900_000]


def test_a_receive_found_late_took_no_longer_than_others():
    """The host computed until long after the message had come."""
    groups = [named(0, "0", 0, 1)]
    sender = [*steps((0, STEP)), *message("send", 100, 300, 1), *message("send", 2000, 2300, 1)]
    receiver = [
        *steps((0, STEP)), *message("recv", 50, 300, 0),
        *message("recv", 1900, 6010, 0), operator("aten::mm", 2000, 4000),
    ]  # fmt: skip
    ranks = with_local_peers(
        [recorded(r, *rows, groups=groups) for r, rows in enumerate((sender, receiver))], groups
    )
    ops = match(ranks, groups)
    same = dict.fromkeys(range(2), 0)
    clocks = Clocks(same, same, same, same, residual_ns=0.0)
    waits = measure_waits(ops, clocks, eager=buffered_sends(ops, clocks).eager)
    assert waits.transfer.tolist() == [200_000, 200_000]


def test_a_wait_inside_an_operator_is_no_compute():
    """An operator on a DTensor waits for the collective that gave its input."""
    rank = recorded(
        0,
        *steps((0, STEP)),
        operator("aten::mm", 100, 900),
        operator("_c10d_functional::wait_tensor", 150, 700),
    )
    assert (rank.busy[0].tolist(), rank.busy[1].tolist()) == ([100_000, 850_000], [150_000, 1_000_000])
