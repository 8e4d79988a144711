"""One place of the program that calls two groups accuses no side, nor does a wait for processes of another job."""

import pickle

import pytest

from tests.hang.parted import END, STEP, entry
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

CAPTURE = ("capture_model", 90)
TENSOR = ((0, 1), (2, 3))


def job(folder, programs, groups, stacks=True):
    """The finding on ranks that made these calls, (group, operation, place, state); `groups` are listed as given."""
    for rank, calls in enumerate(programs):
        counts, entries = dict.fromkeys(groups, 0), []
        for place, (name, op, where, state) in enumerate(calls):
            counts[name] += 1
            row = (counts[name], op, where, state)
            entries.append(entry(place, row, stacks=stacks, group=name, desc=f"group_{name}"))
        config = {
            name: {"name": name, "desc": f"group_{name}", "ranks": str(list(ranks))}
            for name, ranks in groups.items()
            if counts[name] or (rank in ranks and name != "9")
        }
        dump = {"version": "2.9", "pg_config": config, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def captured(first, second, place=CAPTURE):
    """Two pairs of ranks that reduce in their own group; then each pair makes `first` or `second` as its last calls."""
    programs = []
    for rank in range(4):
        own = str(rank // 2 + 1)
        usual = [("0", "barrier", END, "done"), *[(own, "all_reduce", STEP, "done")] * 3]
        last = first if rank < 2 else second
        programs.append(
            [*usual, *((own if name == "own" else name, op, place, state) for name, op, state in last)]
        )
    return programs


GROUPS = {"0": range(4), "1": TENSOR[0], "2": TENSOR[1]}
IN_OWN, IN_ALL = [("own", "all_reduce", "done")] * 2, [("0", "all_reduce", "open")]


def test_a_call_in_two_groups_accuses_no_side(tmp_path):
    finding = job(tmp_path, captured(IN_OWN, IN_ALL), GROUPS)
    assert (finding.verdict, finding.culprits, finding.candidates) == ("inconclusive", (), (0, 1, 2, 3))
    assert "wrong group" in finding.reason
    assert "group that each side passes" in finding.to_decide


def test_a_loop_over_groups_is_no_wrong_group(tmp_path):
    finding = job(tmp_path, captured(IN_OWN, [*IN_OWN, *IN_ALL]), GROUPS)
    assert finding.culprits == ()
    assert "wrong group" not in finding.reason


def test_half_that_stops_before_a_usual_call_is_named(tmp_path):
    usual = [("0", "all_reduce", "done")] * 2
    finding = job(tmp_path, captured(usual, [*usual, *IN_ALL]), GROUPS)
    assert {c.rank: c.kind for c in finding.culprits} == {0: "host_stalled", 1: "host_stalled"}


@pytest.mark.parametrize("members", [(), (0, 1, 2)])
def test_a_wait_for_an_engine_accuses_no_trainer(tmp_path, members):
    """Rank 0 sends each weight to an engine, whose group its dump numbers from 0, or does not list."""
    rounds = 3
    sends, gathers = [], []
    for number in range(rounds):
        gather = ("0", "all_gather", STEP, "done")
        sends += [gather, ("9", "broadcast", CAPTURE, "done" if number < rounds - 1 else "open")]
        gathers.append(gather)
    waiting = [*gathers, ("0", "all_gather", STEP, "open")]
    finding = job(tmp_path, [sends, waiting, waiting, waiting], {"0": range(4), "9": members})
    assert (finding.verdict, finding.culprits, finding.candidates) == ("inconclusive", (), ())
    assert "rank 0 waits in broadcast 3 of group 9, at /job/train.py:90 capture_model" in finding.reason
