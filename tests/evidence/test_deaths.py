"""The first rank that died by itself is named; what followed from it is not."""

import pytest

from tests.evidence.judged import answer, of_text, ranks

STATE = (
    "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: "
    "last enqueued work: {seq}, last completed work: {done}"
)
FAILED = (
    "E1118 04:00:06.1 70 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {}) local_rank: 2 "
    "(pid: 9) of binary: python\n"
)


def line(rank, second, text):
    return f"[rank{rank}]:[E1118 04:{second // 60:02}:{second % 60:02}.5 ProcessGroupNCCL.cpp:1] {text}\n"


def timed_out(rank, second=700, seq=9):
    work = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
        "NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600005 milliseconds before timing out."
    )
    return line(rank, second, work) + line(rank, second, STATE.format(rank=rank, seq=seq, done=seq - 1))


def traceback(rank, error, prefix="[rank{}]: "):
    rows = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 41, in step',
        "    loss.backward()",
        error,
    ]
    return "".join(prefix.format(rank) + row + "\n" for row in rows)


MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
STARTED = "2026-11-18 04:00:05,100 [INFO] step 8\n"
OTHERS = "".join(timed_out(rank) for rank in (0, 1, 3))


@pytest.mark.parametrize(
    "report",
    [
        traceback(2, MEMORY),
        traceback(2, "ValueError: bad sample"),
        "srun: error: node1: task 2: Out Of Memory\n",
        "reftrain: rank 2 (process 77) was killed by SIGKILL\n",
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL\n",
        line(2, 6, MEMORY),
        "[rank2]: Fatal Python error: Segmentation fault\n",
        (
            "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-18_04:00:06\n  host      : n1\n"
            "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 12)\n"
        ),
    ],
)
def test_a_rank_that_dies_first_is_named(tmp_path, report):
    finding = of_text(tmp_path, STARTED + report + OTHERS)
    assert ranks(finding) == [2], finding.reason
    assert finding.culprits[0].kind == "died"
    assert finding.verdict == "hang"


def test_exceptions_after_the_time_out_follow_from_it(tmp_path):
    finding = of_text(
        tmp_path, OTHERS + traceback(2, "ValueError: bad sample") + traceback(0, "RuntimeError: x")
    )
    assert all(c.kind != "died" for c in finding.culprits)


def test_the_first_by_time_is_named_not_the_last(tmp_path):
    early = "2026-11-18 04:00:05,100 [INFO] step\n" + traceback(1, "KeyError: 'input_ids'")
    late = "2026-11-18 04:03:05,100 [INFO] step\n" + traceback(2, "ValueError: bad sample")
    assert ranks(of_text(tmp_path, late, early + timed_out(0))) == [1]


def test_ranks_that_die_of_one_cause_are_all_named(tmp_path):
    raised = STARTED + "".join(traceback(r, MEMORY) for r in range(4))
    assert ranks(of_text(tmp_path, raised + FAILED.format(1))) == [0, 1, 2, 3]


def test_an_exception_alone_is_no_death(tmp_path):
    """The program may have caught it and gone on."""
    finding = of_text(tmp_path, STARTED + traceback(0, "ImportError: no module named flash_attn"))
    assert ranks(finding) == []
    assert finding.candidates == (0,)


def test_a_rank_that_went_on_is_not_dead(tmp_path):
    went_on = line(2, 705, STATE.format(rank=2, seq=9, done=8).replace("failure detected", "x"))
    finding = of_text(
        tmp_path, STARTED + traceback(2, "ImportError: no module") + OTHERS + timed_out(2) + went_on
    )
    assert ranks(finding) == []


def test_a_signal_to_all_ranks_blames_nobody(tmp_path):
    finding = of_text(tmp_path, STARTED + "srun: error: node1: tasks 0-7: Killed\n", expected=8)
    assert ranks(finding) == []
    assert "no rank is to blame" in finding.reason


def test_deaths_without_an_order_are_open(tmp_path):
    parts = traceback(1, "KeyError: 'a'"), traceback(2, "ValueError: bad sample")
    finding = of_text(tmp_path, *parts, FAILED.format(1))
    assert finding.verdict == "inconclusive"
    assert finding.candidates == (1, 2)


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or a network error",
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:8594",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
        "KeyboardInterrupt",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_consequences_name_nobody(tmp_path, error):
    finding = of_text(tmp_path, STARTED + traceback(2, error) + "".join(timed_out(r) for r in range(4)))
    assert ranks(finding) == []


def test_a_caught_memory_error_is_no_death(tmp_path):
    """The rank went on and waited in a call of its own."""
    finding = of_text(tmp_path, STARTED + traceback(2, MEMORY) + "".join(timed_out(r) for r in range(4)))
    assert all(c.kind != "died" for c in finding.culprits)


def test_interleaved_lines_keep_their_ranks(tmp_path):
    rows = zip(
        traceback(2, "ValueError: bad").splitlines(), traceback(5, "EOFError").splitlines(), strict=True
    )
    finding = of_text(tmp_path, STARTED + "\n".join(row for pair in rows for row in pair) + "\n" + OTHERS)
    assert ranks(finding) == [2]
    assert finding.culprits[0].stack == ("/w/train.py:41 step",)


def test_a_process_of_unknown_rank_is_the_silent_one(tmp_path):
    killed = FAILED.format(-9)
    assert ranks(of_text(tmp_path, STARTED + killed + OTHERS)) == [2]
    (tmp_path / "b").mkdir()
    named = of_text(tmp_path / "b", STARTED + killed + timed_out(0) + timed_out(5))
    assert ranks(named) == []


def test_an_abort_by_the_watchdog_is_no_death(tmp_path):
    finding = of_text(tmp_path, "".join(timed_out(r) for r in range(4)) + FAILED.format(-6))
    assert ranks(finding) == []


def test_control_codes_of_a_log_are_not_obeyed(tmp_path):
    from tracekit.report.hang import hang_text

    text = hang_text(
        of_text(tmp_path, STARTED + traceback(2, "ValueError: \x1b]0;x\x07\x9b31m\x08evil") + OTHERS)
    )
    assert not [c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]


BLOCK = "=   BAD TERMINATION OF ONE\n=   RANK {} PID 77 RUNNING AT n1\n=   KILLED BY SIGNAL: {}\n"
DEEPSPEED = (
    "[2026-11-18 04:00:06,885] [ERROR] [launch.py:434:sigkill_handler] ['python', 'a.py', '--local_rank=7'] "
)
DEEPSPEED += "exits with return code = {}\n"
OPEN_MPI = "mpirun noticed that process rank 2 with PID 414 on node n1 exited on signal {}.\n"
CHILD = "[rank: 2] Child process with PID 414 terminated with code {}. Forcefully terminating all other processes\n"


@pytest.mark.parametrize(
    "report", [OPEN_MPI.format("9 (Killed)"), BLOCK.format(2, "11 (Segmentation fault)")]
)
def test_a_launcher_of_mpi_names_the_rank_that_ended(tmp_path, report):
    finding = of_text(tmp_path, report)
    assert [(culprit.rank, culprit.host) for culprit in finding.culprits] == [(2, "n1")], finding.reason


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (DEEPSPEED.format(-9), "killed by SIGKILL"),
        (CHILD.format(-9), "process 414"),
        (BLOCK.format(3, "9 (Killed)"), "process 77"),
        ("srun: error: Node failure on n7\n", "on n7"),
    ],
)
def test_launchers_that_show_no_rank_name_nobody(tmp_path, report, said):
    """DeepSpeed prints the command of the last rank, whichever ended; MPICH ends what is left by SIGKILL."""
    named = line(0, 1, "[PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier")
    finding = of_text(tmp_path, named + report)
    assert (ranks(finding), finding.candidates) == ([], ())
    assert said in finding.reason
    (tmp_path / "waits").mkdir()
    assert ranks(of_text(tmp_path / "waits", STARTED + report + OTHERS, expected=4)) == [2]


def test_an_exit_code_alone_points_to_its_rank(tmp_path):
    block = "  rank      : 2 (local_rank: 2)\n  exitcode  : {} (pid: 12)\n"
    finding = of_text(tmp_path, block.format(1))
    assert (ranks(finding), finding.candidates) == ([], (2,))
    assert of_text(tmp_path, block.format(-6)).candidates == ()
    mpi = "The first process to do so was:\n\n  Process name: [[31322,1],3]\n  Exit code:    1\n"
    assert of_text(tmp_path, mpi).candidates == (3,)


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21416. This is typically "
LOST += "caused by a remote worker crashing."
STORE = "torch.distributed.DistNetworkError: Connection reset by peer"
GLOO = "[PG ID 0 PG GUID 0(default_pg) Rank {0}] ProcessGroupGloo initialization options: size: 4, global rank: {0}"
SIZED = "".join(line(rank, 1, GLOO.format(rank)) for rank in range(4))


def test_peers_that_lost_a_rank_prove_its_end(tmp_path):
    """An exception may have been caught; one with closed connections after it was not."""
    raised = STARTED + traceback(2, "ValueError: bad sample")
    finding = of_text(tmp_path, raised + "".join(traceback(r, LOST) for r in (0, 1, 3)))
    assert ranks(finding) == [2], finding.reason
    assert finding.culprits[0].kind == "died"
    assert ranks(of_text(tmp_path, raised + "".join(traceback(r, STORE) for r in (0, 1, 3)))) == []


def test_a_rank_that_lost_a_peer_had_gone_on(tmp_path):
    """Its exception was caught; the rank whose log ends without an error ended first."""
    caught = traceback(2, "ImportError: no module named flash_attn")
    finding = of_text(tmp_path, SIZED + caught + "".join(traceback(r, LOST) for r in (0, 1, 2)))
    assert ranks(finding) == [3], finding.reason


@pytest.mark.parametrize(
    ("lost", "named"), [((0, 1, 3), [2]), ((1, 2, 3), [0]), ((0, 3), []), ((0, 1, 2, 3), []), ((), [])]
)
def test_the_only_rank_without_an_error_ended_first(tmp_path, lost, named):
    """A launcher ends ranks without an error too, so that one of two such ranks is not named."""
    finding = of_text(tmp_path, SIZED + "".join(traceback(r, LOST) for r in lost))
    assert ranks(finding) == named, finding.reason


def test_a_rank_without_a_log_is_a_candidate(tmp_path):
    """A network that failed closes the connections of all ranks, and the log of one of them may be lost."""
    text = line(0, 1, GLOO.format(0)) + "".join(traceback(r, LOST) for r in (0, 1, 3))
    finding = of_text(tmp_path, text)
    assert (ranks(finding), finding.candidates) == ([], (2,))
    assert "give the log of rank 2" in finding.to_decide


def test_without_a_size_an_unseen_rank_may_have_ended(tmp_path):
    text = line(2, 1, "step 8") + "".join(traceback(r, LOST) for r in (0, 1, 3))
    assert ranks(of_text(tmp_path, text)) == []


LONGER = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
LONGER += "gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 6144 vs 2048. Received data size doesn't "
LONGER += "match expected size. Is there a distributed collective mismatch in your code?\n"


def test_the_rank_that_noticed_a_longer_message_is_innocent(tmp_path):
    """It ended for it, and all others lost their connection to it."""
    whole = SIZED + LONGER + "".join(traceback(r, LOST) for r in (0, 1, 3))
    (tmp_path / "one").mkdir()
    assert ranks(of_text(tmp_path / "one", whole)) == []
    logs = tmp_path / "by_rank"
    logs.mkdir()
    for rank in range(4):
        end = LONGER if rank == 2 else traceback(rank, LOST)
        (logs / f"rank_{rank}.log").write_text(line(rank, 1, GLOO.format(rank)) + end)
    finding = answer({"log": logs}, ("log",))
    assert (ranks(finding), finding.candidates) == ([], (0, 1, 2, 3)), finding.reason
