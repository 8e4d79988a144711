"""A live job's dumps lie some milliseconds apart: nobody is blamed for what an older dump lacks."""

import pickle

import pytest

from tests.hang.test_comparable import entry, pg_config
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.plain_pickle import loads_plain

DUMPED_NS = 1_700_000_000_000_900_000


def written(folder, rows, groups, seen=DUMPED_NS, gone=()):
    """The finding on dumps of these calls by rank: (group, number, state); "fresh" is done and not retired."""
    for rank, calls in enumerate(rows):
        entries = []
        for at, (group, seq, state) in enumerate(calls):
            row = entry(at, group, seq, state == "done", at)
            if state == "fresh":
                row |= {"state": "completed", "time_discovered_completed_ns": seen}
            if state == "done":
                row |= {"time_discovered_completed_ns": row["time_created_ns"] + 1000}
            entries.append(row)
        dump = {"version": "2.4", "pg_config": pg_config(rank, groups), "entries": entries}
        if rank not in gone:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def live(lagging, late="fresh"):
    """Four ranks that have done call 4, of which some have not done call 5."""
    first = [("0", s, "done") for s in range(1, 4)] + [("0", 4, late)]
    return [[*first, ("0", 5, "open" if rank < lagging else late), ("0", 6, "open")] for rank in range(4)]


@pytest.mark.parametrize("lagging", [0, 1, 2, 4])
def test_calls_done_and_not_retired_show_a_live_job(tmp_path, lagging):
    found = written(tmp_path, live(lagging), {"0": range(4)})
    assert (found.verdict, found.culprits) == ("none", ())
    assert "4 of 4 ranks" in found.reason


def test_the_same_calls_retired_name_the_device(tmp_path):
    found = written(tmp_path, live(1, "done"), {"0": range(4)})
    assert {c.rank: c.kind for c in found.culprits} == {0: "device_stalled"}


def test_a_live_job_without_all_its_dumps_is_open(tmp_path):
    found = written(tmp_path, live(1), {"0": range(4)}, gone={3})
    assert (found.verdict, found.culprits) == ("inconclusive", ())
    assert "dump again" in found.reason


def test_watchdogs_that_stopped_show_no_live_job(tmp_path):
    """A dump is written ten minutes after the last call: the ends it finds may be as old."""
    found = written(tmp_path, live(1), {"0": range(4)}, seen=DUMPED_NS + 600 * 10**9)
    assert {c.rank for c in found.culprits} == {0}


def test_another_thread_that_goes_on_shows_no_live_job(tmp_path):
    """Rank 0 never makes call 2; a thread of every rank goes on with a group of its own."""
    groups = {"0": range(4), "1": range(4)}
    beats = [("1", s, "fresh") for s in range(1, 4)]
    rows = [[("0", 1, "done"), *([("0", 2, "open")] if rank else []), *beats] for rank in range(4)]
    found = written(tmp_path, rows, groups)
    assert {c.rank: c.kind for c in found.culprits} == {0: "host_stalled"}


def test_unlike_calls_are_named_in_a_live_job_too(tmp_path):
    rows = [[("0", 1, "fresh"), ("0", 2, "open")] for _ in range(4)]
    written(tmp_path, rows, {"0": range(4)})
    path = tmp_path / "nccl_trace_rank_2"
    dump = loads_plain(path.read_bytes())
    dump["entries"][1]["input_sizes"] = [[9]]
    path.write_bytes(pickle.dumps(dump, protocol=2))
    found = analyse(load_dumps([str(tmp_path)]))
    assert {c.rank: c.kind for c in found.culprits} == {2: "mismatched_call"}


def test_devices_that_lag_in_groups_apart_are_not_blamed(tmp_path):
    """Ranks 0 and 4 lack a call that their peers have done, but ranks 8 to 11 wait for nobody of these."""
    groups = {"1": range(4), "2": range(4, 8), "3": range(8, 12)}
    rows = []
    for rank in range(12):
        own = str(rank // 4 + 1)
        rows.append([(own, 1, "done"), (own, 2, "open" if rank in {0, 4} else "done"), (own, 3, "open")])
    found = written(tmp_path, rows, groups)
    assert (found.verdict, found.culprits) == ("inconclusive", ())
    assert "ranks 0, 4 lag" in found.reason
    assert "dump a second time" in found.reason
    assert {c.rank for c in written(tmp_path, rows[:4], {"1": range(4)}, gone=range(4, 12)).culprits} <= {0}


def test_rings_that_lost_calls_show_no_live_job(tmp_path):
    """Rank 0 lacks calls that its peers have done; what ranks 4 and 5 wait for first their rings have lost."""
    groups = {"1": range(4), "2": range(4, 6)}
    rows = [[("1", s, "done" if rank and s < 5 else "open") for s in range(1, 6)] for rank in range(4)]
    rows += [[("2", s, "open") for s in range(1, 8)]] * 2
    assert written(tmp_path, rows, groups).culprits == ()
    for rank in (4, 5):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = loads_plain(path.read_bytes())
        dump["entries"] = dump["entries"][-5:]  # as long as the others
        dump["pg_status"] = {"2": {"last_enqueued_collective": 7, "last_completed_collective": 0}}
        path.write_bytes(pickle.dumps(dump, protocol=2))
    found = analyse(load_dumps([str(tmp_path)]))
    assert {c.rank: c.kind for c in found.culprits} == {0: "device_stalled"}
