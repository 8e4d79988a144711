"""Every message seen on both ranks has its two ends paired, and nothing else has."""

from tests.tables.rows import comm, group, matched, recv, send
from tracekit.matching.match import message_ends


def paired(ops):
    """(kind, rank, ordinal on the rank) of both ends of each message."""
    return [
        tuple((str(ops.op[i]), int(ops.rank[i]), int(i) - ops.first[int(ops.rank[i])]) for i in ends)
        for ends in zip(*message_ends(ops), strict=True)
    ]


def test_sends_and_receives_are_paired_in_order():
    ops = matched(
        {
            0: [send(0, 1, 0, 1), comm(1, 1, 0), send(2, 1, 0, 1), recv(4, 1, 1, 0)],
            1: [recv(0, 1, 0, 1), comm(1, 1, 0), recv(2, 1, 0, 1), send(4, 1, 1, 0)],
        },
        group(0, 0, 1),
    )
    assert sorted(paired(ops)) == [
        (("send", 0, 0), ("recv", 1, 0)),
        (("send", 0, 2), ("recv", 1, 2)),
        (("send", 1, 3), ("recv", 0, 3)),
    ]


def test_a_message_with_one_end_has_no_pair():
    ops = matched({0: [send(0, 1, 0, 1), comm(1, 1, 0)], 1: [comm(1, 1, 0)]}, group(0, 0, 1))
    assert paired(ops) == []


def test_without_messages_there_are_no_pairs():
    assert paired(matched({0: [comm(1, 1, 0)], 1: [comm(1, 1, 0)]}, group(0, 0, 1))) == []
