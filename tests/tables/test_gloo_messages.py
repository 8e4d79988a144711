"""Messages on Gloo: when they began and were done, and waits inside operators."""

from tests.tables.gloo import message, named, operator, steps
from tests.tables.rows import recorded
from tracekit.inference.peers.places_in_groups import with_places_in_groups, with_recorded_places
from tracekit.matching.clock import Clocks
from tracekit.matching.match import match
from tracekit.timing.buffered_sends import buffered_sends
from tracekit.timing.waits import measure_waits

STEP = 10_000


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
    same = dict.fromkeys(range(2), 0)
    clocks = Clocks(same, same, same, same, residual_ns=0.0)
    ops = match([recorded(r, *rows, groups=groups) for r, rows in enumerate((sender, receiver))], groups)
    ops = match(with_recorded_places(ops, clocks, [(0, 1)])[0], groups)
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


def test_calls_name_peers_in_the_only_group_that_fits():
    """The inputs of a call give the place of the peer alone."""
    groups = [named(0, "0", 0, 1, 2)]
    rows = {
        0: [*message("send", 100, 300, 1), *message("recv", 400, 900, 2)],
        1: [*message("recv", 100, 300, 0), *message("send", 400, 700, 2)],
        2: [*message("recv", 400, 700, 1), *message("send", 750, 900, 0)],
    }
    ranks = [recorded(r, *steps((0, STEP)), *mine, groups=groups) for r, mine in rows.items()]
    ends = [
        list(zip(r.src.tolist(), r.dst.tolist(), strict=True)) for r in with_places_in_groups(ranks, groups)
    ]
    assert ends == [[(0, 1), (2, 0)], [(0, 1), (1, 2)], [(1, 2), (2, 0)]]
