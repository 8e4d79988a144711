"""What one rank's lines tell of its peers: desync reports, fingerprints of calls, Gloo's sizes, stacks of calls."""

from collections import Counter

import pytest

from tests.evidence.judged import of_text, ranks, record
from tests.evidence.share import outcomes
from tests.evidence.test_deaths import timed_out
from tests.evidence.watchdog import Spelling
from tests.hang import simulate
from tests.marks import quick_first
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.gather import find_everything, gather
from tracekit.evidence.logs import read_log
from tracekit.files.source import Source

MESH = {"tp": 2, "cp": 2, "pp": 1, "dp": 4}
PRINT = (
    "CollectiveFingerPrint(SequenceNumber={1}, OpType={2}, TensorShape=[{3}], TensorDtypes=Float, TensorDeviceTypes="
    "TensorOptions(dtype=float (default), device=cpu))"
)


def judged(folder, mesh=None):
    found = gather(find_everything([str(folder)]).sources)
    return judge_evidence(found.bundle(), mesh)[0]


def written(folder, case, spelling):
    return record(folder, case.write(folder / "fr"), spelling)["log"]


def unlike(own, other):
    sides = [f"ank {side[0]} is running collective: {PRINT.format(*side)}" for side in (own, other)]
    return (
        f"[rank{own[0]}]: Traceback (most recent call last):\n[rank{own[0]}]: RuntimeError: Detected mismatch between "
        f"collectives on ranks. R{sides[0]}, but R{sides[1]}.Collectives differ in the following aspects: \n"
    )


@pytest.mark.parametrize("seed", quick_first(1, range(6)))
def test_a_report_tells_the_device_that_began_nothing(tmp_path, seed):
    case = simulate.make(seed, "device_unstarted", "dp", MESH, timed=True)
    assert ranks(judged(written(tmp_path / "bare", case, Spelling("2.5")))) == []
    assert ranks(judged(written(tmp_path / "told", case, Spelling("2.5", desync=True)))) == [case.culprit]


def test_started_calls_tell_the_same(tmp_path):
    case = simulate.make(3, "device_unstarted", "dp", MESH, timed=True)
    log = written(tmp_path, case, Spelling("2.13", desync=True)) / "job.out"
    kept = [line for line in log.read_text().splitlines() if not line.startswith("\t")]
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "job.out").write_text("\n".join(kept) + "\n")
    assert ranks(judged(tmp_path / "again")) == [case.culprit]


def test_members_that_never_joined_are_late(tmp_path):
    report = (
        "[rank1]:[E1118 04:00:00.5 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] \n\t - [1] Timeout "
        "at collective: ALLREDUCE, #1\n\t - To our best knowledge, ranks [2] are the lagging ranks that caused this "
        "timeout. They never joined any collectives\n"
    )
    finding = of_text(tmp_path, timed_out(0, seq=1) + timed_out(1, seq=1) + report, expected=3)
    assert ranks(finding) == [2]
    assert finding.culprits[0].kind == "host_stalled"


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "ray"])
def test_reports_behind_launchers(tmp_path, launcher):
    case = simulate.make(1, "device_unstarted", "dp", MESH, timed=True)
    log = written(tmp_path, case, Spelling("2.8", launcher, desync=True)) / "job.out"
    found = read_log(Source(str(log), str(log), log.stat().st_size))
    assert found.reports
    assert all(rank in found.marks for rank, _, _ in found.reports)


def test_the_mesh_names_members(tmp_path):
    """Lines name one rank of a pair; the description of its group and the mesh tell the other one."""
    case = simulate.make(41, timed=True)
    log = written(tmp_path, case, Spelling("2.8", desync=True))
    assert (case.fault, case.axis) == ("device_unseen", "cp")
    assert ranks(judged(log)) == []
    assert ranks(judged(log, case.sizes)) == [case.culprit]


def test_fingerprints_name_the_minority(tmp_path):
    right, wrong = ("ALLREDUCE", "8"), ("BROADCAST", "3")
    text = "".join(unlike((r, 5, *right), (2, 5, *wrong)) for r in (0, 1, 3)) + unlike(
        (2, 5, *wrong), (0, 5, *right)
    )
    finding = of_text(tmp_path, text, expected=4)
    assert finding.verdict == "mismatch"
    assert ranks(finding) == [2]


def test_two_fingerprints_are_both_candidates(tmp_path):
    finding = of_text(tmp_path, unlike((0, 5, "ALLREDUCE", "8"), (2, 5, "ALLREDUCE", "9")), expected=4)
    assert ranks(finding) == []
    assert {0, 2} <= set(finding.candidates)
    assert [side.ranks for side in finding.open_calls[0].sides] == [(0,), (2,)]


def test_a_majority_of_unknown_size_leaves_a_candidate(tmp_path):
    """Nothing shows the size of the group."""
    right, wrong = ("ALLREDUCE", "8"), ("BROADCAST", "3")
    text = "".join(unlike((r, 5, *right), (2, 5, *wrong)) for r in (0, 1, 3))
    finding = of_text(tmp_path, text)
    assert (ranks(finding), finding.candidates) == ([], (2,))
    assert "0, 1, 3 all_reduce [8] and 2 broadcast [3]" in finding.reason


def test_prints_of_one_rank_each_are_read(tmp_path):
    """Torch up to 1.12 does not print the other call."""
    line = (
        "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running inconsistent "
        "collective: CollectiveFingerPrint(OpType={1}, TensorShape=[8], TensorDtypes=Float, TensorDeviceTypes=x)\n"
    )
    text = "".join(line.format(rank, "BROADCAST" if rank == 2 else "ALLREDUCE") for rank in range(4))
    finding = of_text(tmp_path, text)
    assert (ranks(finding), finding.candidates) == ([], (2,))


@pytest.mark.parametrize("expected", [None, 4])
def test_one_call_under_two_numbers_names_no_rank(tmp_path, expected):
    """Groups of Gloo up to torch 2.0 count from any number."""
    text = "".join(
        unlike((r, 683_057_617, "BROADCAST", "1"), (1, 513_876_813, "BROADCAST", "1")) for r in (0, 2, 3)
    )
    finding = of_text(tmp_path, text, expected=expected)
    assert ranks(finding) == []
    assert finding.verdict == "inconclusive"


def test_a_longer_message_is_a_mismatch_without_a_name(tmp_path):
    line = (
        "[rank1]: RuntimeError: [enforce fail at gloo/pair.cc:456] op.preamble.length <= op.nbytes. 64 vs 4\n"
    )
    finding = of_text(tmp_path, "[rank1]: Traceback (most recent call last):\n" + line)
    assert finding.verdict == "inconclusive"
    assert finding.candidates == (1,)
    assert "64 bytes" in finding.reason
    assert "DETAIL" in finding.to_decide


def test_the_stack_of_the_call_is_kept(tmp_path):
    stack = "[rank0]:[E1118 04:00:00.6 ProcessGroupNCCL.cpp:801] Stack trace of the failed collective: \n"
    stack += "#0 all_reduce from torch/distributed/distributed_c10d.py:3174\n#1 step from train.py:20\n"
    path = tmp_path / "log"
    path.write_text(timed_out(0) + stack)
    mark = read_log(Source(str(path), str(path), path.stat().st_size)).marks[0]["0", "default_pg"]
    assert mark.stack == ("torch/distributed/distributed_c10d.py:3174 all_reduce", "train.py:20 step")


def test_a_time_out_shows_that_nothing_moves(tmp_path):
    finding = of_text(tmp_path, "".join(timed_out(rank) for rank in range(4)), expected=4)
    assert "none has finished it" in finding.reason
    assert "moves" not in finding.reason


@pytest.mark.parametrize("fault", ["wrong_size", "wrong_op"])
def test_three_members_outvote_the_odd_call(tmp_path, fault):
    case = simulate.make(4, fault, "dp", MESH)
    assert ranks(judged(written(tmp_path, case, Spelling("2.8")))) == [case.culprit]


def test_shares_blame_no_innocent():
    found = Counter(how for _, _, how in outcomes(range(2000, 2002), ("desync, --mesh", "calls")))
    assert found["wrong"] == 0
    assert found["right"] >= found.total() // 2
