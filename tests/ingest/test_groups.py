"""Process groups are member sets: cut lists are rebuilt or left unknown, names never identify."""

import json
from multiprocessing import Pipe

import pytest

from tests.ingest.sample import document, event, kernel, put
from tracekit.ingest import load
from tracekit.ingest.file_result import FileGroup
from tracekit.ingest.kineto.group_membership import ListedGroup, Membership, listed_groups, members_of

CUT = "[" + ", ".join(str(2 * i) for i in range(30)) + ", ..., ...]"


def said(**more):
    return Membership(**(dict.fromkeys(Membership._fields) | more))


@pytest.mark.parametrize(
    ("membership", "members"),
    [
        (said(pg_ranks="[4, 0, 2]"), (4, 0, 2)),
        (said(pg_ranks="[0, 1]", group_size=3), None),
        (said(pg_ranks=CUT, group_size=64, rank_start=0, rank_stride=2), tuple(range(0, 128, 2))),
        (said(pg_ranks=CUT, group_size=64, rank_start=0, rank_stride=3), None),
        (said(pg_ranks=CUT, group_size=64), None),
        (said(pg_ranks=CUT, group_size=40, pg_name="5"), tuple(range(0, 80, 2))),
        (said(group_size=4, rank_start=1, rank_stride=8), (1, 9, 17, 25)),
        (said(group_size=1, rank_start=6), (6,)),
        (said(group_size=4, rank_start=-1, rank_stride=8), None),
        (said(group_size=2**40, rank_start=0, rank_stride=1), None),
        (said(pg_name="5"), tuple(range(0, 80, 2))),
        (said(pg_id=5), tuple(range(0, 80, 2))),
        (said(pg_name="twice"), None),
        (said(pg_name="twice", group_size=3), (1, 2, 3)),
        (said(pg_name="none"), None),
        (said(pg_name="5", pg_ranks="[]", group_size=1), tuple(range(0, 80, 2))),  # a `wait` of torch 2.11
        (said(pg_name="twice", pg_ranks="[]", group_size=1), None),
    ],
)
def test_members(membership, members):
    listed = [
        ListedGroup("5", "", tuple(range(0, 80, 2))),
        ListedGroup("twice", "", (0, 1)),
        ListedGroup("twice", "", (1, 2, 3)),
    ]
    assert members_of(membership, listed) == members


def test_listed_groups_in_the_forms_that_occur():
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": []},
        {"pg_name": "1", "uid": 4, "ranks": [0, 2]},
        {"uid": 7, "ranks": [1, 3]},
        {"pg_name": "9", "ranks": "[2, 3]"},
        {"pg_name": "9", "ranks": [1, "x"]},
        5,
    ]
    found = listed_groups({"world_size": 4, "pg_config": config})
    assert [(g.name, g.ranks) for g in found] == [
        ("0", (0, 1, 2, 3)), ("1", (0, 2)), ("7", (1, 3)), ("9", (2, 3))
    ]  # fmt: skip
    assert listed_groups({"pg_config": 5}) == []


def collective(i, name, ranks, **more):
    args = {"Collective name": "allreduce", "Process Group Name": name, "Process Group Ranks": ranks}
    return kernel(i, **args | more)


def test_other_members_make_another_group_and_numbers_agree(tmp_path):
    listed = {
        0: [collective(1, "tp", "[0, 1]"), collective(2, "dp", "[0, 2]")],
        1: [collective(1, "dp", "[1, 3]"), collective(2, "tp", "[0, 1]")],
        2: [collective(1, "tp", "[2, 3]"), collective(2, "x", "[0, 2]"), event(3)],
    }
    for rank, events in listed.items():
        put(tmp_path / f"{rank}.json", document(events, rank=rank))
    run = load([str(tmp_path)])
    assert [(g.ranks, g.names) for g in run.groups] == [
        ((0, 1), ("tp",)), ((0, 2), ("dp", "x")), ((1, 3), ("dp",)), ((2, 3), ("tp",))
    ]  # fmt: skip
    assert [run.events(r).column("group").to_pylist() for r in range(3)] == [[0, 1], [2, 0], [3, 1, None]]
    assert run.events(1, ["ts", "group"]).column("group").to_pylist() == [2, 0]


def test_pg_config_groups_are_listed_though_unused(tmp_path):
    doc = document()
    doc["distributedInfo"]["pg_config"] = [{"pg_name": "3", "pg_desc": "mesh_pp", "ranks": [0, 2]}]
    run = load([put(tmp_path / "a.json", doc)])
    assert [(g.ranks, g.names, g.descs) for g in run.groups] == [((0, 2), ("3",), ("mesh_pp",))]


def test_unknown_members_are_null_and_counted(tmp_path):
    events = [collective(i, "7", CUT, **{"Group size": 64}) for i in range(3)] + [event(4)]
    run = load([put(tmp_path / "a.json", document(events))])
    assert run.events(0).column("group").to_pylist() == [None] * 4
    assert [(q.kind, q.count) for q in run.quality] == [("group_members_unknown", 3)]


def test_a_wait_with_an_empty_name_lacks_nothing(tmp_path):
    waits = [collective(1, "", "[]", **{"Group size": 1}), event(2)]
    assert load([put(tmp_path / "a.json", document(waits))]).quality == ()


def test_a_file_in_none_of_its_groups_is_told(tmp_path):
    run = load([put(tmp_path / "a.json", document([collective(1, "7", "[1, 2]")]))])
    assert [q.kind for q in run.quality] == ["rank_in_no_group"]


def test_peers_are_global_ranks_and_negative_means_none(tmp_path):
    events = [
        kernel(1, **{"Collective name": "send", "Dst Rank": 3, "Src Rank": -1}),
        kernel(2, **{"Collective name": "recv", "Src Rank": 2**40}),
    ]
    table = load([put(tmp_path / "a.json", document(events))]).events(0)
    assert table.column("dst_rank").to_pylist() == [3, None]
    assert table.column("src_rank").to_pylist() == [None, None]


def test_of_nested_records_the_outer_stays(tmp_path):
    def record(ts, dur, tid=12, **args):
        more = {"args": {"Collective name": "allreduce", **args}}
        return event(0, name="record_param_comms", ts=ts, dur=dur, tid=tid, **more)

    events = [record(10, 8, a=1), record(9, 10, Seq=1), record(20, 3, Seq=2), record(21, 1, tid=13, Seq=3)]
    run = load([put(tmp_path / "a.json", json.dumps(document(events)))])
    assert run.events(0).column("seq").to_pylist() == [1, 2, 3]
    assert [(q.kind, q.count) for q in run.quality] == [("nested_communication_record", 1)]


def test_later_calls_inside_a_long_record_are_kept(tmp_path):
    """The record of a functional collective lasts until its work is freed, beyond the calls that follow."""
    call = {"name": "record_param_comms", "tid": 12}
    events = [
        event(0, ts=ts, dur=dur, args={"Collective name": "allreduce", "Seq": seq}, **call)
        for ts, dur, seq in ((9, 90, 7), (10, 2, 7), (20, 5, 8), (30, 5, 9))
    ]
    run = load([put(tmp_path / "a.json", json.dumps(document(events)))])
    assert run.events(0).column("seq").to_pylist() == [7, 8, 9]


def test_another_call_inside_a_record_is_kept(tmp_path):
    send = {"Collective name": "send", "Src Rank": 0, "Dst Rank": 1, "In msg nelems": 8}
    recv = {"Collective name": "recv", "Src Rank": 1, "Dst Rank": 0, "In msg nelems": 8}
    events = [
        event(0, name="record_param_comms", ts=ts, dur=dur, args=args)
        for ts, dur, args in ((9, 10, send), (10, 8, recv))
    ]
    run = load([put(tmp_path / "a.json", json.dumps(document(events)))])
    assert run.events(0).column("collective").to_pylist() == ["send", "recv"]


TP, DP = ("tp", "[6, 7]"), ("dp", "[2, 6]")


@pytest.mark.parametrize(
    ("name", "events", "rank"),
    [
        (
            "node001/rank2.json",
            [collective(1, *TP), collective(2, *DP)],
            6,
        ),  # local rank 2 of the second node
        ("host_12.1694128201545.pt.trace.json", [collective(1, *TP), collective(2, *DP)], 6),
        (
            "host_12.1694128201545.pt.trace.json",
            [collective(1, "world", "[0, 1, 2, 3, 4, 5, 6, 7]", Rank=6)],
            6,
        ),
        ("rank3.json", [collective(1, "dp", "[7, 6, 2]", Rank=1)], 6),  # places count in the order written
        (
            "rank2.json",
            [collective(1, "world", "[0, 1, 2, 3, 4, 5, 6, 7]", Rank=0)],
            2,
        ),  # as a writer that fills in 0
        ("rank2.json", [collective(1, "dp", "[2, 6]")], 2),  # its groups leave it open
        (
            "rank2.json",
            [collective(1, "tp", "[0, 1]"), collective(2, "dp", "[2, 6]")],
            2,
        ),  # they contradict each other
        (
            "rank2.json",
            [collective(1, *DP, Rank=0), collective(2, *DP, Rank=1)],
            2,
        ),  # as several ranks in one file do
        (
            "rank2.json",
            [collective(1, *DP, **{"Rank": 1, "Collective name": "broadcast"})],
            2,
        ),  # its root's place
    ],
)
def test_groups_show_the_rank_in_the_job(tmp_path, name, events, rank):
    run = load([put(tmp_path / name, document(events, distributedInfo={"backend": "nccl"}))])
    assert [r.rank for r in run.ranks] == [rank]
    assert [q.kind for q in run.quality if q.kind == "rank_by_groups"] == ["rank_by_groups"] * (rank == 6)


def test_the_rank_that_a_trace_states_counts(tmp_path):
    run = load([put(tmp_path / "rank2.json", document([collective(1, *TP), collective(2, *DP)], rank=3))])
    assert [r.rank for r in run.ranks] == [3]


@pytest.mark.parametrize(
    "ranks", [(), (3,), (0, 1, 4), (5, 3), (2, 2, 2), (1, 9, 17, 25), tuple(range(16384))]
)
def test_a_group_travels_in_few_bytes(ranks):
    """Each file of a job of 16 384 ranks names all of them, which took a sixth of the time to read it."""
    group, (receiver, sender) = FileGroup(ranks, ("5",), ("dp",)), Pipe(duplex=False)
    sender.send(group)
    assert len(receiver.recv_bytes()) < 300
    for _ in range(2):
        sender.send(group)
    one, other = receiver.recv(), receiver.recv()
    assert one == other == group
    assert len(ranks) < 8 or one.ranks is other.ranks
