"""Devices of most members are not blamed, nor ranks whose replica counts its calls otherwise."""

import pickle

import pytest

from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps


def entry(number, group, seq, done, at):
    return {
        "record_id": number,
        "pg_id": int(group),
        "process_group": (group, "MODEL_PARALLEL_GROUP" if group != "0" else "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + at * 1000,
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": done,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def pg_config(rank, groups):
    """The groups of a rank, as its dump lists them."""
    return {
        n: {"name": n, "desc": "default_pg" if n == "0" else "MODEL_PARALLEL_GROUP", "ranks": str(list(g))}
        for n, g in groups.items()
        if rank in g
    }


def finding(folder, rows, groups):
    """The finding on ranks with these calls: (group, number, whether it is done)."""
    for rank, calls in enumerate(rows):
        entries = [entry(at, *call, at) for at, call in enumerate(calls)]
        dump = {"version": "2.4", "pg_config": pg_config(rank, groups), "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


@pytest.mark.parametrize(("behind", "named"), [(1, {3}), (2, set()), (3, set())])
def test_devices_of_most_members_are_not_blamed(tmp_path, behind, named):
    rows = [[("0", s, s < 5 or rank < 4 - behind) for s in range(1, 6)] for rank in range(4)]
    found = finding(tmp_path, rows, {"0": range(4)})
    assert {c.rank for c in found.culprits} == named
    assert {c.kind for c in found.culprits} <= {"device_stalled"}
    if not named:
        assert found.verdict == "inconclusive"
        assert f"{4 - behind} of 4 members" in found.reason
        assert "dump a second time" in found.reason


@pytest.mark.parametrize(("last", "named"), [(5, set()), (6, {1})])
def test_one_call_alone_names_no_device_of_a_pair(tmp_path, last, named):
    """A dead link may leave one call done on one side. A second one shows that the device went on, unseen."""
    rows = [[("1", s, s < 5 or not rank) for s in range(1, last + 1)] for rank in range(2)]
    found = finding(tmp_path, rows, {"1": range(2)})
    assert {c.rank for c in found.culprits} == named
    assert named or (found.verdict, "1 of 2 members" in found.reason) == ("inconclusive", True)


def test_a_lost_dump_may_have_finished(tmp_path):
    rows = [[("0", s, s < 5 or rank < 2) for s in range(1, 7)] for rank in range(4)]
    assert finding(tmp_path, rows, {"0": range(4)}).verdict == "hang"
    (tmp_path / "nccl_trace_rank_0").unlink()
    found = analyse(load_dumps([str(tmp_path)]))
    assert {c.rank: c.kind for c in found.culprits} == {2: "device_stalled", 3: "device_stalled"}


@pytest.mark.parametrize("first", [10, 400])
def test_replicas_may_count_calls_otherwise(tmp_path, first):
    """One pair's dead link keeps it from the call of all ranks, however that pair counts; nobody left a call out."""
    groups = {"0": range(6), "1": (0, 3), "2": (1, 4), "3": (2, 5)}
    rows = []
    for rank in range(6):
        stuck = rank % 3 == 2
        start = first if stuck else 10
        calls = [("0", 1, True), *((str(rank % 3 + 1), start + n, n < 3 or not stuck) for n in range(4))]
        rows.append(calls if stuck else [*calls, ("0", 2, False)])
    found = finding(tmp_path, rows, groups)
    assert found.verdict == "inconclusive"
    assert found.culprits == ()


def test_lags_at_unlike_calls_blame_no_device(tmp_path):
    """Whoever lets its peers finish the later call has done the earlier one: its dump or its status is old."""
    rows = [[("0", s, s < 5 + min(rank, 2)) for s in range(1, 9)] for rank in range(6)]
    found = finding(tmp_path, rows, {"0": range(6)})
    assert (found.verdict, found.culprits) == ("inconclusive", ())
    assert "dump a second time" in found.reason
