"""Ranks that never joined are named where lines name ranks, and none is named where lines only count."""

import pytest

from tests.evidence.judged import of_text, ranks


def test_a_monitored_barrier_names_the_absent(tmp_path):
    text = "[rank0]: RuntimeError: Rank 2 failed to pass monitoredBarrier in 60000 ms\n Original exception:\n x\n"
    finding = of_text(tmp_path, text)
    assert ranks(finding) == [2]
    assert finding.culprits[0].kind == "never_joined"


def test_a_barrier_blames_no_rank_that_waits(tmp_path):
    text = "[rank0]: RuntimeError: Rank 2 failed to pass monitoredBarrier in 60000 ms\n"
    gloo = (
        "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete"
    )
    text += f"[rank2]: RuntimeError: {gloo}\n"
    assert ranks(of_text(tmp_path, text)) == []


HEARD = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."


def test_only_the_first_rank_knows_who_is_absent(tmp_path):
    """It is a candidate: it may have stopped, or its log names another rank."""
    text = "".join(f"[rank{r}]: RuntimeError: Rank {r} {HEARD} Please check rank 0 logs.\n" for r in (1, 3))
    finding = of_text(tmp_path, text)
    assert (ranks(finding), finding.candidates) == ([], (0,))
    first = "[rank0]: RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms\n"
    assert ranks(of_text(tmp_path, text, first)) == [2]
    (tmp_path / "late").mkdir()
    assert ranks(of_text(tmp_path / "late", text.replace("3", "2") + first)) == []


WAITED = "RuntimeError: [Rank 0]: {} failed to pass monitoredBarrier in 1800000 ms\n"
WRAPPED = (
    "RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running collective: X. Error: \n"
)


def heard(*ranks, shift=0):
    """Lines of ranks that came, by their places in the group."""
    return "".join(f"[rank{r}]: RuntimeError: Rank {r - shift} {HEARD} Please check\n" for r in ranks)


@pytest.mark.parametrize(
    ("text", "named", "candidates"),
    [
        ("[rank0]: " + WAITED.format("Rank 1"), [], (1,)),  # of others it shows nothing
        ("[rank0]: " + WAITED.format("Rank 1") + heard(2, 3), [1], ()),
        ("[rank0]: " + WAITED.format("Rank 2"), [2], ()),  # it asks them in order: rank 1 came
        ("[rank0]: " + WAITED.format("Ranks 1"), [1], ()),
        ("[rank4]: " + WAITED.format("Ranks 2"), [], ()),  # of a group that begins with rank 4
        ("[rank0]: " + WAITED.format("Ranks 2") + heard(8, shift=7), [], ()),
        ("[rank0]: " + WRAPPED + "[rank0]: " + WAITED.format("Ranks 2"), [], ()),  # of any group
        ("[rank0]: " + WRAPPED + "[rank0]: " + WAITED.format("Ranks 2") + heard(1, 3), [2], ()),
        ("[rank0]: " + WRAPPED + "[rank0]: " + WAITED.format("Ranks 2") + heard(1), [], ()),
        ("[rank0]: RuntimeError: Rank 0 timed out in monitoredBarrier after 10 ms.\n", [], ()),
    ],
)
def test_places_in_a_monitored_barrier(text, named, candidates, tmp_path):
    finding = of_text(tmp_path, text)
    assert (ranks(finding), finding.candidates) == (named, candidates), finding.reason
    assert "barrier" in finding.reason


TASK = "/job:jax_worker/replica:0/task:{}\n"
JAX = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in step\njax.errors.JaxRuntimeError: '


def by_tasks(error, ranks_=(0, 1, 2)):
    return "".join(f"{rank}: {line}\n" for rank in ranks_ for line in (JAX + error).splitlines())


@pytest.mark.parametrize(
    "error",
    [
        "DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: sync0. Timed out task names:\n" + TASK.format(3),
        "DEADLINE_EXCEEDED: Barrier timed out. Id: sync::0. This usually happens\n# of tasks that reached the barrier: "
        "3/4.\nThe first task at the barrier: x. Some timed out task names:\n"
        + TASK.format(3)
        + "\nAdditional GRPC\n",
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
        + TASK.format(3)
        + "The tasks\n",
    ],
)
def test_the_coordinator_of_jax_names_processes(error, tmp_path):
    assert ranks(of_text(tmp_path, by_tasks(error))) == [3]


def test_most_processes_of_jax_are_left_open(tmp_path):
    error = "DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: c. Timed out task names:\n"
    error += "".join(TASK.format(task) for task in range(1, 8))
    finding = of_text(tmp_path, by_tasks(error, (0,)))
    assert (ranks(finding), finding.candidates) == ([], tuple(range(1, 8)))


def start(rank, size=8, stage="START"):
    return (
        f"node{rank // 4}:{50 + rank}:99 [{rank % 4}] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks {size} "
        f"cudaDev {rank % 4} nvmlDev {rank % 4} busId 7000 commId 0xabc123 - Init {stage}\n"
    )


def test_the_rank_that_began_no_communicator_is_named(tmp_path):
    finding = of_text(tmp_path, "".join(start(rank) for rank in range(8) if rank != 5))
    assert ranks(finding) == [5]
    assert finding.culprits[0].kind == "never_joined"


def pair_of_groups(pid, places, name, stages=("START",)):
    return [
        start(p, 4, stage).replace(f":{50 + p}:", f":{pid + p}:").replace("abc123", name)
        for p in places
        for stage in stages
    ]


@pytest.mark.parametrize("files", [False, True])
def test_places_in_two_communicators_are_no_ranks(tmp_path, files):
    """Ranks 0 to 3 have joined; of ranks 4 to 7, which count from 0 as well, one has not begun."""
    lines = pair_of_groups(100, range(4), "aa", ("START", "COMPLETE")) + pair_of_groups(200, (0, 1, 3), "bb")
    finding = of_text(tmp_path, *lines) if files else of_text(tmp_path, "".join(lines))
    assert ranks(finding) == []
    assert "one of several communicators" in finding.reason


def test_the_first_of_a_group_is_not_rank_zero(tmp_path):
    words = "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0:1'"
    text = "".join(f"[rank{4 + p}]: torch.distributed.DistBackendError: [{p}] {words}\n" for p in (1, 2, 3))
    finding = of_text(tmp_path, text)
    assert (ranks(finding), finding.candidates) == ([], ())
    assert "ranks 5-7 wait" in finding.reason


def test_all_began_and_none_joined_is_open(tmp_path):
    finding = of_text(tmp_path, "".join(start(rank) for rank in range(8)))
    assert finding.verdict == "inconclusive"
    assert "network" in finding.reason


def test_a_joined_communicator_is_no_hang(tmp_path):
    both = "".join(start(rank) + start(rank, stage="COMPLETE") for rank in range(8))
    assert ranks(of_text(tmp_path, both)) == []


def test_the_store_barrier_names_the_absent(tmp_path):
    text = "".join(
        f"[rank{r}]: INFO: Waiting in store based barrier to initialize process group for rank: {r}, key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=7, timeout=0:30:00)\n"
        for r in range(7)
    )
    assert ranks(of_text(tmp_path, text)) == [7]


WAITS = "Waiting in store based barrier to initialize process group for "
OLD = WAITS + "rank: {}, key: {} (world_size={}, worker_count={}, x)"
NEW = WAITS + "10.0 secondsrank: {}, key: {} (world_size={}, "
NEW += "num_workers_joined={}, timeout=0:30:00 error=wait timeout after 10000ms, keys: /1/{}:last_worker)"
LATE = "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank {}, "
LATE += "for key: {} (world_size={}, num_workers_joined={}, timeout=0:30:00 error=x)"


def stored(words, reached, key="1", size=4, joined=None):
    """What ranks print that wait in a barrier of the store."""
    key, count = f"store_based_barrier_key:{key}", len(reached) if joined is None else joined
    return "".join(f"[rank{rank}]: {words.format(rank, key, size, count, key)}\n" for rank in reached)


@pytest.mark.parametrize("words", [OLD, NEW, LATE])
def test_the_store_barrier_is_read_in_all_spellings(tmp_path, words):
    assert ranks(of_text(tmp_path, stored(words, (0, 1, 3)))) == [2]


def test_a_barrier_that_is_over_hides_no_later_one(tmp_path):
    text = stored(OLD, range(4))
    text += "".join(
        f"Rank {r}: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.\n"
        for r in range(4)
    )
    (tmp_path / "over").mkdir()
    assert "store" not in of_text(tmp_path / "over", text).reason
    assert ranks(of_text(tmp_path, text + stored(OLD, range(3), "2"))) == [3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (stored(OLD, (0, 2), size=2, joined=3), "another job"),
        (stored(NEW, (4, 5, 6), "6f1ed002ab5595859014ebf0951522d9"), "ranks 4-6 wait"),
        (stored(NEW, (0, 1, 2, 3, 4), size=7, joined=6), "5 of 7 ranks"),
    ],
)
def test_a_store_barrier_that_shows_no_members_names_nobody(tmp_path, text, said):
    """Of another job's ranks too, of a group of some ranks, and where one of two silent ranks has joined."""
    finding = of_text(tmp_path, text)
    assert ranks(finding) == []
    assert said in finding.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 5/8 clients joined.\n",
            "5 of 8",
        ),
        (
            "[c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.9, 29500).\n",
            "10.0.0.9:29500",
        ),
    ],
)
def test_counts_name_nobody(tmp_path, text, said):
    finding = of_text(tmp_path, text)
    assert finding.verdict == "inconclusive"
    assert said in finding.reason
    assert finding.to_decide


def unique(rank):
    return (
        f"[rank{rank}]: torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after "
        "600000ms, keys: /default_pg/0//cuda//0\n"
    )


def test_all_wait_for_the_first_rank(tmp_path):
    assert ranks(of_text(tmp_path, "".join(unique(r) for r in range(1, 4)), expected=4)) == [0]


def test_some_wait_for_the_first_of_their_group(tmp_path):
    finding = of_text(tmp_path, unique(1) + unique(3), expected=8)
    assert ranks(finding) == []
    assert finding.candidates == (0,)


def stuck(rank):
    return (
        f"[rank{rank}]:[F1118 04:00:00.5 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"
    )


def test_all_stood_at_once_blames_nobody(tmp_path):
    finding = of_text(tmp_path, "".join(stuck(rank) for rank in range(4)))
    assert finding.verdict == "inconclusive"
    assert "no rank is to blame" in finding.reason


def test_a_controller_that_waits_accuses_no_rank(tmp_path):
    """Ray's controller warns while it waits: the ranks may be late."""
    line = "waiting for 60.10 s for the following ranks to join the `ray.train.report` call: [{}].\n"
    finding = of_text(tmp_path, line.format("1, 2") + line.format("2"))
    assert (finding.verdict, ranks(finding), finding.candidates) == ("inconclusive", [], (2,))


@pytest.mark.parametrize(("lost", "candidates"), [((1, 2, 3), (0,)), ((0, 1), ()), ((1,), None)])
def test_a_lost_store_accuses_no_rank(tmp_path, lost, candidates):
    text = "".join(
        f"[rank{rank}]:[W729 10:15:18.584991368 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0 Rank {rank}] Failed to "
        'check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: '
        "Broken pipe\n"
        for rank in lost
    )
    finding = of_text(tmp_path, text)
    assert (finding.verdict, ranks(finding)) == ("inconclusive", [])
    assert ("lost the store" in finding.reason) == (candidates is not None)
    assert finding.candidates == (candidates or ())


def test_time_outs_without_numbers_are_shown(tmp_path):
    """torch 1.9 to 1.12: no line shows whether two ranks wait in one call."""
    words = "[E ProcessGroupNCCL.cpp:587] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(OpType={}, "
    words += "Timeout(ms)=1800000) ran for 1804582 milliseconds before timing out.\n"
    text = words.format(0, "ALLREDUCE") + words.format(1, "BROADCAST") + words.format(3, "ALLREDUCE")
    finding = of_text(tmp_path, text)
    assert finding.verdict == "inconclusive"
    assert "all_reduce on ranks 0, 3; broadcast on rank 1" in finding.reason
