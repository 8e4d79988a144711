"""Dumps older than their peers: the culprit is named where all waiting starts from it, a victim never."""

import pickle
import random

import pytest

from tests.hang.simulate import Case, make
from tests.hang.test_comparable import finding as comparable
from tests.marks import quick_first
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.plain_pickle import loads_plain

MESH = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}


def older(dump, calls, open_=0):
    """The dump as it was `calls` calls earlier, with the last `open_` of its calls not yet done."""
    entries = dump["entries"][:-calls]
    for place in range(len(entries) - open_, len(entries)):
        change = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
        entries[place] = {**entries[place], **change}
    status = {}
    for key in dump["pg_status"]:
        mine = [e for e in entries if str(e["pg_id"]) == key and not e["is_p2p"]]
        done = [e["collective_seq_id"] for e in mine if e["retired"]]
        status[key] = {
            "last_enqueued_collective": max((e["collective_seq_id"] for e in mine), default=-1),
            "last_started_collective": -1,
            "last_completed_collective": max(done, default=-1),
        }
    return {**dump, "entries": entries, "pg_status": status}


def with_older(case, rank, calls, open_=0):
    dumps = {**case.dumps, rank: older(case.dumps[rank], calls, open_)}
    return Case(case.sizes, case.fault, case.axis, case.culprit, case.timed, dumps)


@pytest.mark.parametrize("axis", ["tp", "cp", "pp", "dp"])
@pytest.mark.parametrize("calls", quick_first(1, [2, 30, 1, 5, 12]))
@pytest.mark.quick(1)
def test_a_culprit_whose_dump_is_older_is_named(judge, axis, calls):
    named = 0
    for seed in range(4):
        case = make(seed, "host_stall", axis, MESH)
        finding = judge(with_older(case, case.culprit, calls, open_=seed % 2))
        found = {c.rank for c in finding.culprits}
        assert found <= {case.culprit}, finding.reason
        named += found == {case.culprit}
        assert {c.kind for c in finding.culprits} <= {"host_stalled"} or seed % 2
    assert named >= (3 if calls > 1 else 2)  # of a pair's only call a dead link shows the same


@pytest.mark.parametrize("axis", quick_first(1, ["tp", "cp", "dp"]))
@pytest.mark.parametrize("calls", [1, 5])
def test_an_older_culprit_of_a_larger_group_is_named(judge, axis, calls):
    """Nothing but the culprit explains what a group of four shows: here no seed may be left open."""
    for seed in range(4):
        case = make(seed, "host_stall", axis, {**MESH, "pp": 1, axis: 4})
        finding = judge(with_older(case, case.culprit, calls, open_=seed % 2))
        assert {c.rank for c in finding.culprits} == {case.culprit}, finding.reason


@pytest.mark.parametrize("seed", quick_first(4, range(24)))
def test_a_victim_whose_dump_is_older_is_never_blamed(judge, seed):
    rng = random.Random(seed)
    case = make(seed, rng.choice(["host_stall", "skip", "wrong_op", "crash", "device_unseen"]))
    victim = rng.choice([r for r in case.dumps if r != case.culprit])
    finding = judge(with_older(case, victim, rng.choice([1, 3, 8, 25]), open_=seed % 3))
    assert {c.rank for c in finding.culprits} <= {case.culprit}, finding.reason


def test_an_older_dump_is_told(judge):
    case = make(1, "host_stall", "tp", MESH)
    finding = judge(with_older(case, case.culprit, 20))
    (row,) = [q for q in finding.quality if q.kind == "stale_dump"]
    assert f"rank {case.culprit} " in row.detail
    assert row.path.endswith(f"_{case.culprit}")
    (culprit,) = finding.culprits
    assert culprit.last_enqueued == culprit.collective.seq - 1


@pytest.mark.parametrize("seed", quick_first(3, range(8)))
def test_live_dumps_taken_one_by_one_are_no_hang(judge, seed):
    rng = random.Random(seed)
    case = make(seed, None, "tp", MESH)
    dumps = {r: older(d, rng.randrange(1, 60)) for r, d in case.dumps.items()}
    finding = judge(Case(MESH, None, "tp", None, False, dumps))
    assert finding.verdict in {"none", "inconclusive"}, finding.reason
    assert finding.culprits == ()


def test_one_old_dump_shows_no_moving_job(tmp_path):
    """Ranks 2 and 3 never finish a call of their pair; of rank 0 there is only an older dump."""
    groups = {"0": range(4), "1": (0, 1), "2": (2, 3)}
    rows = [
        [("0", 1, True), ("1", 1, True)],
        [("0", 1, True), ("1", 1, True), ("0", 2, True), ("1", 2, False)],
    ]
    rows += [[("0", 1, True), ("2", 1, True), ("0", 2, True), ("2", 2, False), ("0", 3, False)]] * 2
    found = comparable(tmp_path, rows, groups)
    assert (found.verdict, found.culprits) == ("inconclusive", ())
    assert "the dump of rank 0 is older" in found.reason
    assert [q.kind for q in found.quality] == ["stale_dump"]


def test_calls_that_differ_are_named_beside_an_old_dump(tmp_path):
    rows = [[("0", seq, seq < 6) for seq in range(1, 7 if rank else 4)] for rank in range(6)]
    comparable(tmp_path, rows, {"0": range(6)})
    path = tmp_path / "nccl_trace_rank_5"
    dump = loads_plain(path.read_bytes())
    dump["entries"][-1]["profiling_name"] = "nccl:broadcast"
    path.write_bytes(pickle.dumps(dump, protocol=2))
    found = analyse(load_dumps([str(tmp_path)]))
    assert {c.rank: c.kind for c in found.culprits} == {5: "mismatched_call"}
