"""Start times tell whose device never began: of a call, of a message, also of a rank that has begun nothing."""

import pickle

import pytest

from tests.hang.test_comparable import entry, pg_config
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

STATES = {"s": "scheduled", "b": "started", "d": "completed"}


def found(folder, rows, groups):
    """The finding on calls by rank: (group, number, state), and for messages the name as a fourth."""
    for rank, calls in enumerate(rows):
        entries = []
        for at, (group, seq, state, *name) in enumerate(calls):
            row = entry(at, group, seq, state == "d", at)
            row["state"] = STATES[state]
            row["time_discovered_started_ns"] = None if state == "s" else row["time_created_ns"] + 5
            if name:
                row |= {
                    "profiling_name": f"nccl:{name[0]}",
                    "is_p2p": True,
                    "collective_seq_id": 0,
                    "p2p_seq_id": seq,
                }
            entries.append(row)
        dump = {"version": "2.4", "pg_config": pg_config(rank, groups), "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


@pytest.mark.parametrize("before", [[("0", 1, "d")], []])
def test_a_rank_that_has_begun_nothing_is_timed_too(tmp_path, before):
    """The environment switches start times on for all ranks: without a begun call a dump does not show it."""
    first = 2 if before else 1
    rows = [[*before, ("0", first, "s" if rank == 3 else "b")] for rank in range(4)]
    finding = found(tmp_path, rows, {"0": range(4)})
    assert {c.rank: c.kind for c in finding.culprits} == {3: "device_stalled"}


def test_most_ranks_that_have_not_begun_are_not_blamed(tmp_path):
    rows = [[("0", 1, "d"), ("0", 2, "b" if rank == 3 else "s")] for rank in range(4)]
    assert found(tmp_path, rows, {"0": range(4)}).culprits == ()


@pytest.mark.parametrize(("state", "named"), [("s", {1}), ("b", set())])
def test_a_message_that_a_device_never_began(tmp_path, state, named):
    groups = {"0": range(2)}
    sends = [("0", s, "b" if s == 3 else "d", "send 0->1") for s in (1, 2, 3)]
    receives = [("0", s, state if s == 3 else "d", "recv 1<-0") for s in (1, 2, 3)]
    finding = found(tmp_path, [sends, receives], groups)
    assert {c.rank for c in finding.culprits} == named
    assert {c.collective.op for c in finding.culprits} <= {"recv 1<-0"}
