"""An exception about a connection is a rank's own, unless the connection was to another rank."""

import pytest

from tests.evidence.judged import of_text, ranks
from tests.evidence.test_deaths import FAILED, OTHERS, SIZED, STARTED, timed_out

PACKAGES = "/usr/lib/python3.12/site-packages/"


def raised(rank: int, error: str, *files: str, before: str = "", prefix: str = "[rank{}]: ") -> str:
    """A traceback of a rank through these files."""
    rows = ["Traceback (most recent call last):", '  File "/w/train.py", line 41, in step', "    go()"]
    rows += [row for file in files for row in (f'  File "{file}", line 7, in call', "    return self._do()")]
    rows = [before, *rows, error] if before else [*rows, error]
    return "".join(prefix.format(rank) + row + "\n" for row in rows)


WEB = (f"{PACKAGES}huggingface_hub/file_download.py", f"{PACKAGES}requests/adapters.py")
RESET = (
    "requests.exceptions.ConnectionError: ('aborted.', ConnectionResetError(104, 'Connection reset by peer'))"
)
OWN = [
    ("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub', port=443): Read timed out.", WEB),
    (RESET, WEB),
    ("TimeoutError: The read operation timed out", (*WEB, "/usr/lib/python3.12/ssl.py")),
    ("RuntimeError: DataLoader timed out after 120 seconds", (f"{PACKAGES}torch/utils/data/dataloader.py",)),
    ("EOFError: Ran out of input", (f"{PACKAGES}torch/serialization.py",)),
    ("TimeoutError: [Errno 110] Connection timed out: '/mnt/shared/step_100'", ()),
    ("BrokenPipeError: [Errno 32] Broken pipe", (f"{PACKAGES}torch/utils/data/_utils/worker.py",)),
]
OF_A_RANK = [
    ("ConnectionRefusedError: [Errno 111] Connection refused: 'tcp://10.0.0.1:29500'", ()),
    ("TimeoutError: The client socket has timed out after 60s", (f"{PACKAGES}torch/distributed/rendezvous.py",)),
    ("RuntimeError: Socket Timeout", (f"{PACKAGES}torch/distributed/distributed_c10d.py",)),
    ("RuntimeError: Connection reset by peer", (f"{PACKAGES}megatron/core/pipeline_parallel/schedules.py",)),
    ("EOFError", (f"{PACKAGES}vllm/executor.py", "/usr/lib/python3.12/multiprocessing/connection.py")),
    ("ray.exceptions.GetTimeoutError: Get timed out: not ready.", (f"{PACKAGES}ray/_private/worker.py",)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "files"), OWN)
def test_other_connections_are_a_ranks_own(tmp_path, error, files):
    finding = of_text(tmp_path, STARTED + raised(2, error, *files) + OTHERS)
    assert ranks(finding) == [2], finding.reason
    assert finding.culprits[0].kind == "died"


@pytest.mark.parametrize(("error", "files"), OF_A_RANK)
def test_connections_of_ranks_are_a_peers_end(tmp_path, error, files):
    text = STARTED + raised(2, error, *files) + "".join(timed_out(rank) for rank in (0, 1))
    assert all(culprit.kind != "died" for culprit in of_text(tmp_path, text).culprits)


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1727, {}, NCCL version 2.19.3\n"
    "[rank2]: nccl{}: This usually reflects invalid usage.\n[rank2]: Last error:\n[rank2]: {}"
)
TWO_ON_ONE = "Duplicate GPU detected : rank 2 and rank 0 both on CUDA device f000"


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (NCCL.format("invalid usage", "InvalidUsage", TWO_ON_ONE), True),
        (NCCL.format("invalid usage", "InvalidUsage", "Message truncated : received 64 bytes"), False),
        (NCCL.format("remote process exited", "RemoteError", "connection closed by peer"), False),
    ],
)
def test_what_nccl_refuses_is_a_ranks_own(tmp_path, error, own):
    finding = of_text(tmp_path, STARTED + raised(2, error) + OTHERS)
    died = [culprit.rank for culprit in finding.culprits if culprit.kind == "died"]
    assert died == ([2] if own else []), finding.reason
    assert (TWO_ON_ONE in finding.reason) == own


def test_lost_web_servers_are_no_lost_peers(tmp_path):
    """Rank 3 read from its cache: it is not the one with an end that the others met."""
    finding = of_text(tmp_path, SIZED + "".join(raised(rank, RESET, *WEB) for rank in range(3)))
    assert ranks(finding) == []
    assert 3 not in finding.candidates


def test_a_store_that_cannot_listen_is_its_ranks(tmp_path):
    store = f"{PACKAGES}torch/distributed/rendezvous.py"
    text = raised(0, "torch.distributed.DistNetworkError: failed to listen, name: EADDRINUSE", store)
    late = "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
    text += "".join(raised(rank, f"torch.distributed.{late}(10.0.0.1, 29500).", store) for rank in (1, 2, 3))
    assert ranks(of_text(tmp_path, text)) == [0]


CHECKPOINT = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])"
FULL = "OSError: [Errno 28] No space left on device"


def saved(rank: int, prefix: str = "[rank{}]: ") -> str:
    """What each rank prints where rank 2 of four cannot write its part of a checkpoint."""
    files = (f"{PACKAGES}torch/distributed/checkpoint/utils.py",)
    rows = [
        "Traceback (most recent call last): (RANK 2)",
        f'  File "{files[0]}", line 192, in all_reduce',
        FULL,
    ]
    return raised(rank, CHECKPOINT, *files, prefix=prefix) + "".join(
        prefix.format(rank) + r + "\n" for r in rows
    )


def test_a_checkpoint_fails_by_the_rank_it_names(tmp_path):
    """All ranks raise, and the text says for which rank."""
    text = STARTED + "".join(saved(rank) for rank in range(4)) + FAILED.format(1)
    finding = of_text(tmp_path, text)
    assert ranks(finding) == [2], finding.reason
    assert "No space left" in finding.culprits[0].how


def test_a_member_of_a_group_is_no_global_rank(tmp_path):
    """Ranks 8 to 11 save together: rank 2 of their group is rank 10, and not global rank 2."""
    finding = of_text(tmp_path, STARTED + "".join(saved(rank) for rank in range(8, 12)) + FAILED.format(1))
    assert ranks(finding) == []
    assert "rank 2 of its group" in finding.reason


def test_inputs_that_end_early_are_of_one_rank(tmp_path):
    alike = "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks."
    text = "".join(raised(rank, alike) for rank in (0, 1, 3)) + raised(
        2, "RuntimeError: Rank 2 exhausted all inputs."
    )
    assert ranks(of_text(tmp_path, STARTED + text + FAILED.format(1))) == [2]
    assert ranks(of_text(tmp_path, STARTED + text.replace("Rank 2 exhausted all inputs.", alike[14:]))) == []


def differ(*counts: int) -> str:
    """What ranks print that built models of so many parameters: each names the first with another number."""
    text = ""
    for rank, count in enumerate(counts):
        other = next(peer for peer, many in enumerate(counts) if many != count)
        words = f"Rank {rank} has {count} params, while rank {other} has inconsistent {counts[other]} params."
        files = (f"{PACKAGES}torch/distributed/utils.py",)
        text += raised(rank, f"RuntimeError: DDP expects same model across all ranks, but {words}", *files)
    return STARTED + text + FAILED.format(1)


@pytest.mark.parametrize(("counts", "odd"), [((6, 4, 4, 4), 0), ((4, 4, 6, 4), 2)])
def test_the_rank_with_another_model_is_named(tmp_path, counts, odd):
    """All ranks raise, as each sees another number somewhere."""
    finding = of_text(tmp_path, SIZED + differ(*counts))
    assert ranks(finding) == [odd], finding.reason
    (tmp_path / "unsized").mkdir()
    unsized = of_text(tmp_path / "unsized", differ(*counts))
    assert (ranks(unsized), unsized.candidates) == ([], (odd,))


@pytest.mark.parametrize(("odd", "candidates"), [((4, 0), (0,)), ((4, 77), (0,)), ((None, 0), ())])
def test_a_number_read_of_a_peer_is_no_proof(tmp_path, odd, candidates):
    """Where the exchange fails ranks read 0, or anything; rank 0 may hold the same model, or be elsewhere."""
    own, read = odd
    text = differ(*[read or 1, 4, 4, 4]).replace("inconsistent 1 params", f"inconsistent {read} params")
    text = "".join(
        row for row in text.splitlines(keepends=True) if own is None or not row.startswith("[rank0]")
    )
    finding = of_text(tmp_path, SIZED + text)
    assert (ranks(finding), finding.candidates) == ([], candidates), finding.reason


def test_two_models_of_two_ranks_are_open(tmp_path):
    finding = of_text(tmp_path, SIZED + differ(4, 4, 6, 6))
    assert (ranks(finding), finding.candidates) == ([], (0, 1, 2, 3))


def test_peers_unlike_rank_zero_point_to_it(tmp_path):
    """Shapes are compared with rank 0 alone: where all others raise, it is the odd one."""
    words = "params[0] in this process with sizes [4, 4] appears not to match sizes of the same param in process 0."
    text = "".join(raised(rank, f"RuntimeError: [{rank}]: {words}") for rank in (1, 2, 3))
    assert ranks(of_text(tmp_path, STARTED + SIZED + text + FAILED.format(1))) == [0]


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-18 04:00:03,477 - Trainer - INFO - [rank{}]: ",
        "[2026-11-18T04:00:03.106313Z] fa88a9df || [rank{}]: ",
        "vit-giant.node3 [stderr] [rank{}]: ",
        "trainer-1  | [rank{}]: ",
    ],
)
def test_a_traceback_behind_a_loggers_prefix_is_read(tmp_path, prefix):
    finding = of_text(tmp_path, raised(2, "ValueError: bad sample", *WEB, prefix=prefix) + OTHERS)
    assert ranks(finding) == [2], finding.reason
    assert finding.culprits[0].kind == "died"


def test_a_child_is_named_by_its_parents_words(tmp_path):
    """`torch.multiprocessing.spawn` prints the number of the process, and no line of it bears a rank."""
    parent = raised(0, "torch.multiprocessing.spawn.ProcessRaisedException: ", prefix="")
    child = "\n-- Process 2 terminated with the following error:\n" + raised(
        0, "ValueError: bad sample", prefix=""
    )
    finding = of_text(tmp_path, parent + child)
    assert ranks(finding) == [2], finding.reason


@pytest.mark.parametrize(
    "words", ["Exception ignored in: <function Loader.__del__>", "Exception in thread Thread-3:"]
)
def test_a_process_outlives_its_threads_and_destructors(tmp_path, words):
    text = raised(2, "AssertionError: can only test a child process", before=words)
    finding = of_text(tmp_path, STARTED + text + FAILED.format(1))
    assert (ranks(finding), finding.candidates) == ([], ())


ENDED = "E0103 03:11:09.1 70 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 99) of binary: python\n"


@pytest.mark.parametrize(
    ("error", "library"),
    [
        ("RuntimeError: OPS function error: HcclAllreduce, error code is 6", "HCCL"),
        ("RuntimeError: NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048", "HCCL"),
        ("RuntimeError: nrt_execute status=5 (NRT_TIMEOUT)", "Neuron"),
        ("RuntimeError: oneCCL: timed out in ccl_atl", "oneCCL"),
    ],
)
def test_libraries_that_time_out_name_no_rank(tmp_path, error, library):
    """The late rank is one without an exception."""
    finding = of_text(tmp_path, "".join(raised(rank, error) for rank in (0, 1, 3)) + ENDED)
    assert ranks(finding) == []
    assert f"ranks 0, 1, 3 timed out in {library}" in finding.reason


def test_aborts_of_torchcomms_are_of_waiting_ranks(tmp_path):
    line = "[rank{0}]: E0103 03:11:09.1 7 Utils.cpp:9] [TC] Aborting process due to timeout on rank {0} - watchdog\n"
    finding = of_text(tmp_path, "".join(line.format(rank) for rank in (0, 2)) + ENDED)
    assert ranks(finding) == []
    assert "ranks 0, 2 timed out in TorchComms" in finding.reason
