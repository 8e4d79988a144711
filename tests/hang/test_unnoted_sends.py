"""Gloo notes no end of most sends: one that the other end has received is done, and no wait."""

import pickle

from tests.hang.test_comparable import entry, pg_config
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

RANKS = 3


def message(at, way, me, peer, *, done):
    """An entry of a dump: the `at`-th message of its rank."""
    name = f"gloo:{way} {me}{'->' if way == 'send' else '<-'}{peer}"
    return {
        **entry(at, "0", 0, done, at),
        "is_p2p": True,
        "p2p_seq_id": at + 1,
        "op_id": at + 1,
        "profiling_name": name,
    }


def written(folder, rows):
    """Dumps of `rows`: of each rank its messages as (send or recv, peer, whether an end was noted)."""
    for rank, messages in enumerate(rows):
        entries = [message(at, way, rank, peer, done=done) for at, (way, peer, done) in enumerate(messages)]
        dump = {"version": "2.4", "pg_config": pg_config(rank, {"0": range(RANKS)}), "entries": entries}
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def test_a_send_that_was_received_is_no_wait(tmp_path):
    """Rank 1 made its sends, and then nothing: the others wait for its next ones."""
    end = [("send", 1, False), ("recv", 1, True), ("recv", 1, False)]
    middle = [("recv", 0, True), ("send", 0, False), ("recv", 2, True), ("send", 2, False)]
    found = written(tmp_path, [end, middle, end])
    assert [(c.rank, c.kind) for c in found.culprits] == [(1, "host_stalled")]
    assert found.victims == (0, 2)


def test_a_send_that_nobody_received_is_one(tmp_path):
    end = [("send", 1, False), ("recv", 1, True), ("recv", 1, False)]
    middle = [("send", 0, False), ("send", 2, False), ("recv", 2, True)]
    found = written(tmp_path, [end, middle, end])
    assert 1 in {c.rank for c in found.culprits}, "rank 1 does not receive what rank 0 sent"
