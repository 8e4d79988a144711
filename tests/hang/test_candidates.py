"""An open answer lists the ranks that may be the culprit, as few as the dumps allow, and what would tell."""

import pickle

from tests.hang.test_comparable import entry, finding
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.report.hang import hang_document, hang_text

PAIRS = {"0": range(4), "1": (0, 1), "2": (2, 3)}


def test_an_unfinished_call_lists_its_members(tmp_path):
    """Ranks 0 and 1 never finish a call of their pair; the others wait for them in the next call of all."""
    rows = [[("0", 1, True), ("1", 1, False), ("0", 2, False)] for _ in range(2)]
    rows += [[("0", 1, True), ("2", 1, True), ("0", 2, False)] for _ in range(2)]
    found = finding(tmp_path, rows, PAIRS)
    assert (found.verdict, found.culprits, found.candidates) == ("inconclusive", (), (0, 1))
    assert "TORCH_NCCL_ENABLE_TIMING=1" in found.to_decide
    assert hang_document(found)["candidates"] == [0, 1]
    assert "  candidates: ranks 0, 1" in hang_text(found).splitlines()
    assert "to decide" not in hang_text(found)  # the reason says it


def test_a_host_without_dumps_lists_its_ranks(tmp_path):
    rows = [[("0", 1, True), ("0", 2, False)] for _ in range(8)]
    finding(tmp_path, rows, {"0": range(8)})
    for rank in range(4, 8):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    found = finding(tmp_path, rows[:4], {"0": range(8)})
    assert (found.verdict, found.candidates) == ("inconclusive", (4, 5, 6, 7))
    assert "add the dumps of the candidates" in found.to_decide
    assert "a device of another rank" in found.to_decide
    assert "  to decide: add the dumps" in hang_text(found)


def test_a_decided_answer_lists_none(tmp_path):
    rows = [[("0", 1, True), *([("0", 2, False)] if rank else [])] for rank in range(4)]
    found = finding(tmp_path, rows, {"0": range(4)})
    assert {c.rank for c in found.culprits} == {0}
    assert (found.candidates, found.to_decide) == ((), None)


def messages(folder, rows):
    """The finding on ranks of one pipeline whose batches, by rank lists of names, never end; then all make a call."""
    groups = {"1": {"name": "1", "desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": str([*range(len(rows))])}}
    groups["0"] = groups["1"] | {"name": "0", "desc": "default_pg"}
    for rank, names in enumerate(rows):
        entries = [entry(at, "1", 0, False, at) for at in range(len(names))]
        for row, name in zip(entries, names, strict=True):
            row |= {"profiling_name": f"nccl:{name}", "is_p2p": True, "p2p_seq_id": 1}
        entries.append(entry(len(names), "0", 1, False, len(names)))
        dump = {"version": "2.4", "pg_config": groups, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def test_any_message_may_hold_up_its_batch(tmp_path):
    found = messages(tmp_path, [["send 0->1"], ["send 1->2", "recv 1<-0"], ["recv 2<-1"]])
    assert (found.verdict, found.culprits, found.candidates) == ("inconclusive", (), (0, 1, 2))


def test_messages_that_wait_for_each_other_come_first(tmp_path):
    """Both receive before they send: the call of all that they issued next is not what is stuck."""
    found = messages(tmp_path, [["recv 0<-1"], ["recv 1<-0"]])
    assert found.reason.startswith("ranks 0, 1 each wait first in a receive from the other")
    assert "py-spy" in found.to_decide


def test_ranks_without_a_dump_may_wait_for_idle_ones(tmp_path):
    rows = [[("0", 1, True)] for _ in range(4)]
    assert finding(tmp_path, rows, {"0": range(4)}).verdict == "none"
    for rank in range(1, 4):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    found = finding(tmp_path, rows[:1], {"0": range(4)})
    assert (found.verdict, found.culprits) == ("inconclusive", ())
    assert "3 ranks left no dump" in found.reason


def test_a_message_without_its_other_end_is_said(tmp_path):
    found = messages(tmp_path, [["send 0->1"], []])
    assert (found.verdict, found.culprits, found.candidates) == ("inconclusive", (), (0, 1))
    assert "rank 1 waits in another call and has not joined a message of rank 0" in found.reason
