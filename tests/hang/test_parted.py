"""One rank alone saves, evaluates or logs: its call pairs with another of its peers', and a later one hangs."""

import pickle

import pytest

from tests.hang.parted import BEGIN_NS, END, EVALUATE, SAVE, STEP, steps, write
from tracekit.dumps.load import load_dumps
from tracekit.errors import InputError
from tracekit.report.hang import hang_document, hang_text

SAVED = [*steps(5), (6, "barrier", SAVE, "done"), (7, "barrier", END, "open")]
ENDED = [*steps(5), (6, "barrier", END, "done")]


def named(finding):
    return {c.rank: c.kind for c in finding.culprits}


def test_extra_barrier_names_the_rank_that_saves(tmp_path):
    finding = write(tmp_path, [SAVED, ENDED, ENDED, ENDED])
    assert named(finding) == {0: "mismatched_call"}
    assert finding.culprits[0].collective.seq == 6
    text = hang_text(finding)
    assert "rank 0: barrier in [[1]] out [[1]] ['Float'], at /job/train.py:40 save_checkpoint" in text
    assert "ranks 1-3: barrier in [[1]] out [[1]] ['Float'], at /job/train.py:60 finalize" in text


def test_second_barrier_of_a_save_names_it_too(tmp_path):
    saved = [*steps(5), (6, "barrier", SAVE, "done"), (7, "barrier", ("save_end", 45), "open")]
    assert named(write(tmp_path, [ENDED, ENDED, saved, ENDED])) == {2: "mismatched_call"}


def test_extra_call_several_steps_earlier(tmp_path):
    """It pairs with a step's, and so do the steps behind it, until the barrier meets the last step."""
    later = [(s, "all_reduce", STEP, "done" if s < 8 else "open") for s in range(5, 9)]
    extra = [*steps(3), (4, "all_reduce", EVALUATE, "done"), *later]
    usual = [*steps(7), (8, "barrier", END, "open")]
    finding = write(tmp_path, [usual, usual, extra, usual])
    assert named(finding) == {2: "mismatched_call"}
    assert finding.culprits[0].collective.seq == 4


def test_evaluation_one_batch_longer_on_one_rank(tmp_path):
    def job(batches, last):
        ends = 3 + batches
        evaluated = [(s, "all_reduce", EVALUATE, "done") for s in range(4, ends + 1)]
        return [*steps(3), *evaluated, (ends + 1, "all_reduce", STEP, last)]

    finding = write(tmp_path, [job(4, "done"), job(5, "open"), job(4, "done"), job(4, "done")])
    assert named(finding) == {1: "mismatched_call"}
    assert finding.culprits[0].collective.seq == 8


def test_two_ranks_alone_leave_both_open_with_calls(tmp_path):
    finding = write(tmp_path, [SAVED, ENDED])
    assert (finding.verdict, finding.candidates) == ("inconclusive", (0, 1))
    (call,) = hang_document(finding)["open_calls"]
    assert [side["ranks"] for side in call["sides"]] == [[0], [1]]
    assert "save_checkpoint" in hang_text(finding)
    assert "finalize" in hang_text(finding)


def test_two_rank_mismatch_shows_both_calls(tmp_path):
    rows = [[*steps(5), (6, "all_gather", SAVE, "open")], [*steps(5), (6, "barrier", END, "open")]]
    text = hang_text(write(tmp_path, rows))
    assert "rank 0: all_gather" in text
    assert "rank 1: barrier" in text


def test_branch_call_is_not_the_next_one(tmp_path):
    both = [
        row for s in (1, 3, 5) for row in [(s, "all_reduce", STEP, "done"), (s + 1, "barrier", END, "done")]
    ]
    odd = [*both, (7, "barrier", ("if_nan", 50), "open")]
    finding = write(tmp_path, [odd, *[[*both, (7, "all_reduce", STEP, "open")]] * 3])
    assert named(finding) == {0: "mismatched_call"}


@pytest.mark.parametrize("stacks", [True, False])
def test_few_ahead_of_many_accuse_nobody(tmp_path, stacks):
    saving = [*steps(5), (6, "barrier", SAVE, "open")]
    finding = write(tmp_path, [saving, *[steps(5)] * 3], stacks=stacks)
    assert (finding.verdict, finding.culprits) == ("inconclusive", ())
    assert finding.candidates == (0, 1, 2, 3)


def test_many_hosts_that_stop_before_a_usual_call(tmp_path):
    ahead = [*steps(5), (6, "all_reduce", STEP, "open")]
    finding = write(tmp_path, [ahead, *[steps(5)] * 3])
    assert named(finding) == dict.fromkeys((1, 2, 3), "host_stalled")


def test_places_that_met_before_accuse_nobody(tmp_path):
    source = ("send_from_first", 11)
    mine = [(s, "all_reduce", source, "done") for s in range(1, 5)]
    finding = write(tmp_path, [[*mine, (5, "all_reduce", source, "open")], *[steps(4)] * 3])
    assert not {c.rank for c in finding.culprits if c.kind == "mismatched_call"}


def test_one_dump_leaves_its_own_rank_a_candidate(tmp_path):
    finding = write(tmp_path, {0: [*steps(5), (6, "barrier", SAVE, "open")]}, world=2)
    assert (finding.verdict, finding.candidates) == ("inconclusive", (0, 1))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_calls_ended_by_a_time_out_are_outstanding(tmp_path, before):
    """So many ranks wrote their dumps before the abort."""
    states = ["open"] * before + ["late"] * (3 - before)
    rows = [[*steps(5), (6, "barrier", STEP, state)] for state in states]
    assert named(write(tmp_path, [*rows, steps(5)])) == {3: "host_stalled"}


def test_late_end_seen_in_time_by_peers(tmp_path):
    stopped = [*steps(4), (5, "all_reduce", STEP, "late")]
    waiting = [*steps(5), (6, "all_reduce", STEP, "open")]
    assert named(write(tmp_path, [stopped, waiting, waiting])) == {0: "host_stalled"}


def test_thirty_culprits_are_one_line(tmp_path):
    ahead = [*steps(5), (6, "all_reduce", STEP, "open")]
    finding = write(tmp_path, [*[steps(5)] * 30, *[ahead] * 34], host=lambda rank: f"node{rank // 8}")
    lines = [line for line in hang_text(finding).split("\n") if "host_stalled" in line]
    assert len(lines) == 1
    assert lines[0].startswith("  ranks 0-29 on 4 hosts: host_stalled")
    assert "0-7 of node0" in finding.reason
    assert len(hang_document(finding)["culprits"]) == 30


def bare(row, place):
    seq, op, _, state = row
    return {
        "pg_id": 0, "seq_id": seq, "profiling_name": f"nccl:{op}",
        "time_created_us": BEGIN_NS // 1000 + place, "input_sizes": [[8]], "output_sizes": [[8]],
        "state": "completed" if state == "done" else "started", "retired": state == "done", "frames": [],
    }  # fmt: skip


def test_bare_lists_of_early_versions_are_read(tmp_path):
    from tracekit.analysis.hang.analyse import analyse

    for rank, rows in enumerate([steps(5), *[[*steps(5), (6, "all_reduce", STEP, "open")]] * 2]):
        entries = [bare(row, place) for place, row in enumerate(rows)]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries, protocol=2))
    assert named(analyse(load_dumps([str(tmp_path)]))) == {0: "host_stalled"}


@pytest.mark.parametrize(("kept", "candidates"), [((0, 1, 3), (2,)), ((0, 1, 2), (0, 1, 2))])
def test_bare_lists_promise_no_whole_group(tmp_path, kept, candidates):
    """They list no members, so that the rank without a dump is a candidate, or unknown where it is the last."""
    from tracekit.analysis.hang.analyse import analyse

    for rank in kept:
        entries = [bare(row, place) for place, row in enumerate([*steps(5), (6, "all_reduce", STEP, "open")])]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries, protocol=2))
    found = analyse(load_dumps([str(tmp_path)]))
    assert (found.verdict, found.culprits, found.candidates) == ("inconclusive", (), candidates)
    assert "these dumps list no members" in found.reason
    assert "all 3 members" not in found.reason


@pytest.mark.parametrize("name", ["train.log", "slurm-12.out", "stderr"])
def test_log_without_a_dump_says_how_to_record(tmp_path, name):
    (tmp_path / name).write_text("[rank0]: Watchdog caught collective operation timeout\n")
    with pytest.raises(InputError, match=r"looks like a log.*TORCH_NCCL_DUMP_ON_TIMEOUT"):
        load_dumps([str(tmp_path)])
