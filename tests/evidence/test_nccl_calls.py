"""NCCL's lines of calls name the rank whose calls differ from its peers'; damaged or partial ones name no innocent."""

import random

import pytest

from tests.evidence import nccl_lines
from tests.evidence.judged import answer, of_text, ranks, record
from tests.evidence.watchdog import Spelling
from tests.hang import simulate
from tracekit.evidence.gather import find_everything, gather
from tracekit.evidence.nccl_calls import NcclCalls
from tracekit.findings.hang import HangFinding

PRINTED = (
    "{before}h03:{pid}:{pid} [{rank}] NCCL INFO {kind}: opCount {number:x} sendbuff 0x7f5d recvbuff 0x7f5d "
    "count {count} datatype 7 op 0 root {root} comm 0x55bef02013{rank} [nranks={size}] stream 0x55bef0208bd0\n"
)


def printed(rank, number, kind="AllReduce", count=1024, size=4, before="", root=0):
    return PRINTED.format(
        rank=rank,
        number=number,
        kind=kind,
        count=count,
        size=size,
        before=before,
        pid=45006 + rank,
        root=root,
    )


def steps(rank, first, last, **changed):
    """Calls of a rank that gathers every third time."""
    return "".join(
        printed(rank, n, "AllGather" if n % 3 == 2 else "AllReduce", 512 * (1 + n % 3), **changed)
        for n in range(first, last)
    )


@pytest.mark.parametrize(("seed", "version"), [(1, "2.18"), (3, "2.21"), (9, "2.18")])
def test_a_mismatch_is_named(tmp_path, seed, version):
    """By the log alone it was narrowed to two ranks, or open."""
    case = simulate.make(seed, timed=False)
    places = record(tmp_path, case.write(tmp_path / "fr"), Spelling())
    assert ranks(answer(places, ("log",))) == []
    (places["log"] / "nccl.out").write_text(nccl_lines.one_log(tmp_path / "fr", version))
    finding = answer(places, ("log",))
    assert ranks(finding) == [case.culprit], finding.reason


def test_calls_without_the_watchdog(tmp_path):
    """No line of torch, no initialisation: four processes of one host, by their devices."""
    text = "".join(steps(rank, 0, 40) for rank in (0, 1, 3))
    text += steps(2, 0, 40) + printed(2, 40, "AllGather", 5920)
    text += "".join(printed(rank, 40, "AllReduce", 99) for rank in (0, 1, 3))
    finding = of_text(tmp_path, text)
    assert (finding.verdict, ranks(finding)) == ("mismatch", [2]), finding.reason


@pytest.mark.parametrize(
    "before", ["[default{0}]:", "{0}: ", "(RayTrainWorker pid=6{0}, ip=10.7.7.6) ", "trainer-{0}  | "]
)
def test_launchers_prefixes(tmp_path, before):
    text = "".join(steps(rank, 0, 9, before=before.format(rank)) for rank in range(4))
    text += "".join(
        printed(rank, 9, "AllGather" if rank == 1 else "AllReduce", 7, before=before.format(rank))
        for rank in range(4)
    )
    assert ranks(of_text(tmp_path, text)) == [1]


def test_a_rank_behind_may_be_of_a_moving_job(tmp_path):
    """No time-out is logged, and the end of the log may be missing."""
    finding = of_text(tmp_path, "".join(steps(rank, 0, 30 if rank == 3 else 31) for rank in range(4)))
    assert ranks(finding) == []
    assert 3 in finding.candidates


def test_ranks_that_run_ahead_alike_do_not_wait(tmp_path):
    finding = of_text(tmp_path, "".join(steps(rank, 0, 30) for rank in range(4)))
    assert ranks(finding) == []


def test_lost_lines_name_no_innocent(tmp_path):
    """Lines torn by others, or a head that was cut, shift a count and not the calls."""
    case = simulate.make(1, timed=False)
    places = record(tmp_path, case.write(tmp_path / "fr"), Spelling())
    whole = nccl_lines.one_log(tmp_path / "fr").splitlines(keepends=True)
    for seed in range(6):
        rng = random.Random(seed)
        kept = [line for line in whole if "Init" in line or rng.random() > 0.02]
        kept = kept[len(kept) // 3 :] if seed % 2 else kept
        (places["log"] / "nccl.out").write_text("".join(kept))
        assert set(ranks(answer(places, ("log",)))) <= {case.culprit}


def test_an_all_to_all_is_one_call(tmp_path):
    """A group of messages with one to oneself; a member that makes another call there differs."""
    text = "".join(steps(rank, 0, 3) for rank in range(3))
    for rank in range(3):
        if rank != 1:
            text += "".join(
                printed(rank, 3, kind, 5, root=peer) for peer in range(3) for kind in ("Send", "Recv")
            )
    text = text.replace("nranks=4", "nranks=3") + steps(1, 3, 4)
    finding = of_text(tmp_path, text.replace("nranks=4", "nranks=3"))
    assert ranks(finding) == [1], finding.reason


def test_unlike_messages_of_a_pair_leave_both_ends(tmp_path):
    text = printed(0, 0, "Send", 4096, size=2, root=1) + printed(1, 0, "Recv", 2048, size=2, root=0)
    init = "h03:{0}:{0} [{1}] NCCL INFO ncclCommInitRank comm 0x55bef02013{1} rank {1} nranks 2 cudaDev {1} commId 0x7 "
    init = f"{init}- Init START\n{init}- Init COMPLETE\n"
    finding = of_text(tmp_path, "".join(init.format(45006 + r, r) for r in range(2)) + text)
    assert (ranks(finding), finding.candidates) == ([], (0, 1)), finding.reason


def test_a_restart_begins_anew(tmp_path):
    again = (
        "2026-11-18 04:00:05,100 [INFO] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    )
    text = (
        "".join(steps(rank, 0, 9) for rank in range(4)) + printed(2, 9, "AllGather") + printed(1, 9) + again
    )
    text += "".join(steps(rank, 0, 12).replace("h03:450", "h03:550") for rank in range(4))
    assert ranks(of_text(tmp_path, text)) == []


def test_memory_of_calls_is_bounded():
    calls = NcclCalls(lambda _: ("file", 0))
    text = "".join(printed(0, n) for n in range(5000)).encode()
    calls.take_calls(text, 0, len(text), 0)
    (process,) = calls.processes.values()
    (one,) = process.communicators.values()
    assert (one.count, one.last, len(one.calls)) == (5000, 4999, 512)


def test_absurd_sizes_are_no_communicators():
    calls = NcclCalls(lambda _: ("file", 0))
    line = (
        "n0:7:8 [0] NCCL INFO ncclCommInitRank comm 0x5a rank 0 nranks {} cudaDev 0 commId 0x9 - Init START"
    )
    for size in (8, 9_999_999, 10**22):
        calls.take_initialisations(line.format(size).encode())
    (process,) = calls.processes.values()
    assert [one.size for one in process.communicators.values()] == [8]


def test_a_file_of_calls_is_a_log(tmp_path):
    (tmp_path / "nccl.h03.45006").write_text(steps(0, 0, 3))
    found = gather(find_everything([str(tmp_path)]).sources)
    assert not found.unknown
    assert found.files[0].detail == "calls of 1 process"


def stopped(finding: HangFinding) -> bool:
    return finding.verdict in {"hang", "mismatch"}


def test_captured_calls_of_one_number_name_nobody(tmp_path):
    """Calls that a CUDA graph captures are printed with one opCount and replayed without a line."""
    text = "".join(printed(rank, 0) for rank in range(4) for _ in range(5 + (rank == 2)))
    assert not stopped(of_text(tmp_path, text))


def test_launched_calls_do_not_show_that_a_job_moves(tmp_path):
    finding = of_text(tmp_path, "".join(steps(rank, 0, 30) for rank in range(4)))
    assert (finding.verdict, finding.ranks.read) == ("inconclusive", 4)
    assert "do not show whether these end" in finding.reason


def test_a_lost_line_under_a_constant_number_names_nobody(tmp_path):
    """Within one node opCount stays 0 from NCCL 2.27 on, so that a line that is lost looks like a call left out."""
    init = "h03:{0}:{0} [{1}] NCCL INFO ncclCommInitRank comm 0x55bef02013{1} rank {1} nranks 4 cudaDev {1} commId 0x7 "
    text = "".join(init.format(45006 + r, r) + "- Init COMPLETE\n" for r in range(4))
    for rank in range(4):
        own = [
            printed(rank, 0, "AllGather" if n % 3 == 2 else "AllReduce", 512 * (1 + n % 3)) for n in range(30)
        ]
        text += "".join(line for n, line in enumerate(own) if (rank, n) != (2, 11))
    finding = of_text(tmp_path, text)
    assert ranks(finding) == []
