"""What misleads a reader of watchdog lines: unset fields, ghost calls, group ranks, silent ranks, unknown sizes."""

from tests.evidence.judged import of_text, ranks
from tests.evidence.test_deaths import line, timed_out

SIGNAL = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a collective timeout from  rank 0 and we "
    "will try our best to dump the debug info. Last enqueued NCCL work: {1}, last completed NCCL work: {2}.This is"
)


def answered(rank, enqueued, completed=None, second=705):
    return line(rank, second, SIGNAL.format(rank, enqueued, enqueued if completed is None else completed))


def test_the_lower_number_never_came(tmp_path):
    text = "".join(timed_out(rank) for rank in (0, 1, 2)) + answered(3, 8)
    finding = of_text(tmp_path, text)
    assert ranks(finding) == [3]
    assert any("py-spy" in note for note in finding.notes)


def test_minus_one_on_all_ranks_accuses_nobody(tmp_path):
    assert ranks(of_text(tmp_path, "".join(answered(rank, -1) for rank in range(4)))) == []


def test_an_unset_completed_number_is_not_believed(tmp_path):
    told = "last enqueued NCCL work: 1, last completed NCCL work: 7628075023578."
    state = f"[PG 0 Rank {{0}}] Timeout at NCCL work: 1, {told}"
    text = "".join(timed_out(r, seq=1) + line(r, 700, state.format(r)) for r in range(3))
    finding = of_text(tmp_path, text)
    assert ranks(finding) == []
    assert finding.verdict == "inconclusive"


def test_two_of_many_ranks_decide_nothing(tmp_path):
    """Rank 0 may have made one call too many, and the others left no line."""
    finding = of_text(tmp_path, timed_out(0, seq=11) + answered(9, 10), expected=16)
    assert ranks(finding) == []
    assert {0, 9} <= {0, *finding.candidates}


def test_a_ghost_call_is_open(tmp_path):
    text = timed_out(0, seq=11) + "".join(answered(rank, 10) for rank in range(1, 8))
    finding = of_text(tmp_path, text, expected=8)
    assert ranks(finding) == []
    assert 0 in finding.candidates


def test_unlike_calls_under_one_number_are_a_mismatch(tmp_path):
    odd = timed_out(2).replace(
        "OpType=ALLREDUCE, NumelIn=8, NumelOut=8", "OpType=BROADCAST, NumelIn=3, NumelOut=3"
    )
    finding = of_text(tmp_path, "".join(timed_out(rank) for rank in (0, 1, 3)) + odd)
    assert finding.verdict == "mismatch"
    assert ranks(finding) == [2]


def test_all_wait_and_nobody_tells_the_size(tmp_path):
    finding = of_text(tmp_path, "".join(timed_out(rank) for rank in range(4)))
    assert ranks(finding) == []
    assert "no evidence shows how many ranks" in finding.reason


def test_all_wait_and_the_size_is_told(tmp_path):
    finding = of_text(tmp_path, "".join(timed_out(rank) for rank in range(4)), expected=4)
    assert "none has finished it" in finding.reason
    assert finding.candidates == (0, 1, 2, 3)


def test_a_silent_rank_is_named_where_sizes_are_told(tmp_path):
    text = "".join(timed_out(rank) for rank in (0, 1, 3))
    assert ranks(of_text(tmp_path, text)) == []
    (tmp_path / "again").mkdir()
    assert ranks(of_text(tmp_path / "again", text, expected=4)) == [2]


def test_the_rank_in_a_group_is_not_the_rank(tmp_path):
    """Ranks 4 to 7 are 0 to 3 of their group; 6 left no line, and the elements tell the size."""
    text = "".join(
        timed_out(rank)
        .replace("[PG ID 0 PG GUID 0(default_pg) Rank", "[PG ID 1 PG GUID 3(tp) Rank")
        .replace(f"tp) Rank {rank}]", f"tp) Rank {rank - 4}]")
        .replace("ALLREDUCE, NumelIn=8, NumelOut=8", "_ALLGATHER_BASE, NumelIn=8, NumelOut=32")
        for rank in (4, 5, 7)
    )
    assert ranks(of_text(tmp_path, text)) == [6]
