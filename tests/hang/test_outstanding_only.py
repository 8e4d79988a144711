"""Dumps of outstanding calls alone: parts of batches that are done, rings that only look full, ranks without a call."""

import pickle

import pytest

from tests.hang import simulate
from tests.hang.simulate import Case, make
from tests.hang.test_comparable import entry, pg_config
from tests.hang.test_shapes import MESH, coalesced
from tracekit.analysis.hang.analyse import analyse
from tracekit.analysis.hang.scene import build_scene
from tracekit.dumps.load import load_dumps


def outstanding(case):
    """The case as recorders write it that are asked for outstanding calls alone."""
    dumps = {}
    for rank, dump in case.dumps.items():
        kept = [row for row in dump["entries"] if row["state"] != "completed"]
        dumps[rank] = {**dump, "entries": kept}
    return Case(case.sizes, case.fault, case.axis, case.culprit, case.timed, dumps)


def test_parts_of_done_batches_are_no_outstanding_calls(judge):
    case = coalesced(make(0, "host_stall", "tp", MESH, timed=False))
    finding = judge(outstanding(case))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(case.culprit, "host_stalled")], finding.reason


def written(folder, rows, groups, first=7):
    """Dumps of these outstanding calls by rank, whose ids begin at `first`; the calls before them are done."""
    for rank, calls in enumerate(rows):
        entries = [entry(first + at, *call, False, at) for at, call in enumerate(calls)]
        dump = {"version": "2.4", "pg_config": pg_config(rank, groups), "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return load_dumps([str(folder)])


def test_full_rings_are_as_long_as_the_longest(tmp_path):
    groups = {"0": range(4)}
    short = written(tmp_path, [[("0", s) for s in range(5, 6 + rank)] for rank in range(4)], groups)
    assert not any(dump.cut for dump in short.dumps.values())
    full = written(tmp_path, [[("0", s) for s in range(5, 8)] for _ in range(4)], groups)
    assert all(dump.cut for dump in full.dumps.values())


def test_a_rank_without_a_call_stopped(tmp_path):
    """No dump holds a finished call, so that an empty one is no recorder that was off."""
    groups = {"0": range(4)}
    rows = [[("0", s) for s in range(5, 6 + rank)] if rank else [] for rank in range(4)]
    found = analyse(written(tmp_path, rows, groups))
    assert {c.rank: c.kind for c in found.culprits} == {0: "host_stalled"}


def test_unlike_oldest_calls_show_a_job_that_moves(tmp_path):
    """What precedes the oldest call of a ring that is not full is done: rank 3 did 29, ranks 2 and 4 lack 7."""
    rows = [[], range(28, 31), range(5, 7), range(30, 34), range(5, 7)]
    found = analyse(written(tmp_path, [[("0", s) for s in seqs] for seqs in rows], {"0": range(5)}))
    assert (found.verdict, found.culprits) == ("none", ())
    assert "the job was moving" in found.reason


def test_a_full_ring_may_begin_with_a_done_batch(judge):
    """Parts of a batch read as outstanding for ever: a ring that begins with one has lost nothing for that."""
    case = coalesced(make(1, "host_stall", "tp", MESH, timed=False))
    dumps = {}
    for rank, dump in case.dumps.items():
        rows = dump["entries"]
        first = next(at for at, row in enumerate(rows) if at > 4 and row["state"] == "scheduled")
        dumps[rank] = {**dump, "entries": rows[first:]}
    finding = judge(Case(case.sizes, case.fault, case.axis, case.culprit, False, dumps))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(case.culprit, "host_stalled")], finding.reason
    loaded = simulate.make(1, "host_stall", "tp", MESH, timed=False)
    assert loaded.culprit == case.culprit


def test_calls_that_were_left_out_are_unknown(tmp_path):
    """The first entry of all is kept, and others are not: of a group without an entry nothing is known."""
    groups = {"0": range(2), "1": (0, 1)}
    for rank in range(2):
        entries = [entry(at, "0", 1 + at, False, at) for at in (0, 5)]
        dump = {"version": "2.4", "pg_config": pg_config(rank, groups), "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    scene = build_scene(load_dumps([str(tmp_path)]))
    assert {f.enqueued for group in scene.groups if group.name == "1" for f in group.frontiers.values()} == {
        -1
    }


def test_no_outstanding_message_is_lost(tmp_path):
    """The status tells of more messages than the dump holds: those left out are done."""
    case = make(0, "host_stall", "pp", MESH, timed=False)
    folder = outstanding(case).write(tmp_path / "dumps")
    scene = build_scene(load_dumps([str(folder)]))
    assert scene.graph.pairs
    assert not scene.graph.busy


@pytest.mark.parametrize(("seen", "verdict"), [((5, 6, 7, 8), "none"), ((8, 8, 8, 8), "inconclusive")])
def test_watchdogs_that_saw_unlike_ends_show_life(tmp_path, seen, verdict):
    """Dumps leave out what ended since the watchdog looked: the calls between its last one and the ring are done."""
    for rank, last in enumerate(seen):
        entries = [entry(40 + at, "0", 9 + at, False, at) for at in range(3)]
        status = {
            "last_enqueued_collective": 11,
            "last_started_collective": -1,
            "last_completed_collective": last,
        }
        dump = {"version": "2.4", "pg_config": pg_config(rank, {"0": range(4)}), "entries": entries}
        dump["pg_status"] = {"0": status}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    found = analyse(load_dumps([str(tmp_path)]))
    assert (found.verdict, found.culprits) == (verdict, ())
