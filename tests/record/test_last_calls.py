"""The ring of last calls: what it keeps, what it leaves out when torn, and how it completes a dump."""

import pickle

import pytest

from reftrain.record import last_calls
from reftrain.record.last_calls import SLOT_BYTES, SLOTS, LastCalls, merge_last_calls, read_tail, with_tail
from tracekit.plain_pickle import RefusedError, loads_plain


def call(number, group="5", *, p2p=False, created=0):
    return {
        "process_group": (group, "mesh_tp"),
        "collective_seq_id": 0 if p2p else number,
        "p2p_seq_id": number if p2p else 0,
        "profiling_name": "gloo:send 0->1" if p2p else "gloo:all_reduce",
        "is_p2p": p2p,
        "time_created_ns": created or number,
        "frames": [],
    }


def test_calls_come_back_in_order_with_what_is_done(tmp_path):
    ring = LastCalls(tmp_path / "t")
    for number in range(1, 4):
        ring.add(call(number), "collective")
        if number < 3:
            ring.done("5", "collective", newest=True)
    ring.done("6", "collective", newest=True)  # nothing open there
    found = read_tail(tmp_path / "t")
    assert [(c["collective_seq_id"], c["retired"], c["state"]) for c in found] == [
        (1, True, "completed"), (2, True, "completed"), (3, False, "scheduled"),
    ]  # fmt: skip
    assert found[0]["process_group"] == ("5", "mesh_tp")


def test_messages_are_done_oldest_first(tmp_path):
    ring = LastCalls(tmp_path / "t")
    for number in (1, 2):
        ring.add(call(number, p2p=True), "send 1")
    ring.done("5", "send 1", newest=False)
    assert [c["retired"] for c in read_tail(tmp_path / "t")] == [True, False]


def test_the_ring_holds_the_last_calls(tmp_path):
    ring = LastCalls(tmp_path / "t")
    for number in range(1, 3 * SLOTS + 3):
        ring.add(call(number), "collective")
    numbers = [c["collective_seq_id"] for c in read_tail(tmp_path / "t")]
    assert numbers == list(range(2 * SLOTS + 3, 3 * SLOTS + 3))


def test_a_call_torn_by_death_is_left_out(tmp_path):
    ring = LastCalls(tmp_path / "t")
    for number in (1, 2):
        ring.add(call(number), "collective")
    raw = bytearray((tmp_path / "t").read_bytes())
    raw[2 * SLOT_BYTES + 40] ^= 1
    (tmp_path / "t").write_bytes(raw)
    assert [c["collective_seq_id"] for c in read_tail(tmp_path / "t")] == [1]
    (tmp_path / "t").write_bytes(raw[: SLOT_BYTES + 100])
    assert read_tail(tmp_path / "t") == []


def test_frames_go_before_a_call_does(tmp_path):
    ring = LastCalls(tmp_path / "t")
    ring.add({**call(1), "frames": [{"name": "f" * 5000}]}, "collective")
    ring.add({**call(2), "profiling_name": "x" * 5000}, "collective")
    (kept,) = read_tail(tmp_path / "t")
    assert kept["frames"] == []


def entry(number, pg_id, *, retired, p2p=False):
    state = "completed" if retired else "scheduled"
    return {**call(number, p2p=p2p), "pg_id": pg_id, "retired": retired, "state": state, "record_id": 0}


def test_a_dump_is_completed_by_what_came_after_it():
    base = {
        "version": "2.10",
        "pg_config": {"5": {}, "7": {}},
        "pg_status": {"3": {"last_enqueued_collective": 2, "last_started_collective": -1,
                            "last_completed_collective": 1}},
        "entries": [entry(1, 3, retired=True), entry(2, 3, retired=False)],
    }  # fmt: skip
    later = [
        {**call(1), "retired": True, "state": "completed"},
        {**call(2), "retired": True, "state": "completed"},
        {**call(3, created=9), "retired": False, "state": "scheduled"},
        {**call(1, "7", created=8), "retired": False, "state": "scheduled"},
    ]
    merged = with_tail(base, later)
    got = merged["entries"]
    assert [(e["process_group"][0], e["collective_seq_id"], e["retired"], e["record_id"]) for e in got] == [
        ("5", 1, True, 0), ("5", 2, True, 1), ("7", 1, False, 2), ("5", 3, False, 3),
    ]  # fmt: skip
    assert merged["pg_status"]["3"] == {
        "last_enqueued_collective": 3,
        "last_started_collective": -1,
        "last_completed_collective": 2,
    }
    assert merged["entries"][2]["pg_id"] != 3
    assert base["entries"][1]["retired"] is False, "the dump handed in stays as it is"


def test_merging_replaces_dumps_and_removes_rings(tmp_path):
    folder = tmp_path / "fr"
    folder.mkdir()
    (folder / "rank_0").write_bytes(pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": []}))
    for rank in range(2):  # the second left no dump
        LastCalls(last_calls.last_calls_of(folder / f"rank_{rank}")).add(call(1), "collective")
    assert [p.name for p in folder.iterdir()] == ["rank_0"], "rings stand elsewhere"
    merge_last_calls(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["fr"]
    (got,) = pickle.loads((folder / "rank_0").read_bytes())["entries"]
    assert got["collective_seq_id"] == 1


def test_a_merged_dump_keeps_its_ranks_last_heartbeat(tmp_path):
    folder = tmp_path / "fr"
    folder.mkdir()
    for rank, beats in enumerate(([5 * 10**18], [10**18, 2 * 10**18], [])):
        dump = folder / f"rank_{rank}"
        dump.write_bytes(pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": []}))
        ring = LastCalls(last_calls.last_calls_of(dump))
        ring.add(call(1), "collective")
        for beat in beats:
            ring.beat(beat)
    merge_last_calls(folder)
    merged = [loads_plain((folder / f"rank_{rank}").read_bytes()) for rank in range(3)]
    assert [dump.get("heartbeat_ns") for dump in merged] == [5 * 10**18, 2 * 10**18, None]
    assert [len(dump["entries"]) for dump in merged] == [1, 1, 1], "the heartbeat is no call"
    assert (folder / "rank_1").stat().st_mtime_ns == 2 * 10**18


def test_a_dump_that_names_code_is_refused(tmp_path):
    folder = tmp_path / "fr"
    folder.mkdir()
    (folder / "rank_0").write_bytes(pickle.dumps(last_calls.LastCalls))
    LastCalls(last_calls.last_calls_of(folder / "rank_0")).add(call(1), "collective")
    with pytest.raises(
        RefusedError,
        match=r"it asks for reftrain\.record\.last_calls\.LastCalls; a dump holds plain data only",
    ):
        merge_last_calls(folder)
