"""Logs, stacks and RAS answers of small jobs that hang, as their authors would have pasted them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.evidence.other_channels import py_spy, ras_text
from tests.evidence.stuck_job import Call, GroupState, RankState
from tests.evidence.watchdog import Spelling, log
from tests.reports.report import MISLEADING, RIGHT, WRONG, Answer, Report, accuses_none, named

TRIAGE = ("tracekit", "triage", "{}")


def waiting(
    world: int,
    seq: int,
    op: str = "ALLREDUCE",
    size: int = 1,
    ahead: int = 0,
    odd: Mapping[int, tuple[str, int]] | None = None,
    late: Sequence[int] = (),
    silent: Sequence[int] = (),
) -> dict[int, RankState]:
    """A data-parallel job that waits in one call of the group of all ranks.

    ahead: calls issued behind it. odd: ranks with another operation and size. late: ranks that have not made the call.
    silent: ranks that print nothing.
    """
    job = {}
    for rank in range(world):
        name, count = (odd or {}).get(rank, (op, size))
        made = None if rank in late else Call(seq, name, count, count, False, rank, [])
        enqueued = seq - 1 if rank in late else seq + ahead
        group = GroupState("0", "default_pg", list(range(world)), 0, rank, enqueued, seq - 1, made)
        job[rank] = RankState(rank, [group])
    return {rank: state for rank, state in job.items() if rank not in silent}


def written(folder: Path, text: str, name: str = "job.log") -> None:
    """Put a text into a file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


Judge = Callable[[Answer], str]


def in_answer(judge: Judge) -> Judge:
    """A judge of `tracekit triage`, which is given the answer inside."""

    def inner(answer: Answer) -> str:
        document = answer.document.get("answer") or {"verdict": answer.document.get("verdict", "refused")}
        assert isinstance(document, dict)
        return judge(Answer(answer.text, document, answer.code))

    return inner


def pasted(
    source: str,
    input_: str,
    expected: str,
    make: Callable[[Path], None],
    judge: Judge,
    *,
    quick: bool = False,
) -> Report:
    """A report of which a log, stacks or an answer of RAS were pasted."""
    return Report(source, "stuck", input_, expected, make, TRIAGE, in_answer(judge), quick)


def uneven(folder: Path) -> None:
    """Rank 0 of four has fewer batches and has ended."""
    written(folder, log(waiting(4, 19, silent=(0,)), Spelling("2.3")))


def preprocessing(folder: Path) -> None:
    """Rank 0 prepares the data while the others set up their first communicator."""
    lines = [
        f"RuntimeError: [{rank}] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0\n"
        for rank in range(1, 4)
    ]
    written(folder, "".join(lines))


def loader(folder: Path) -> None:
    """Rank 0 of eight stands in its loader, all others in a collective."""
    for rank in range(8):
        printed = py_spy(RankState(rank, []), "collective" if rank else "elsewhere")
        written(folder, printed * 2, f"rank_{rank}.txt")


def ahead(folder: Path) -> None:
    """30 ranks are one call behind two; the answer lists the two."""
    job = {}
    for rank in range(32):
        counts = {"AllGather": 641 if rank in (12, 13) else 640}
        group = GroupState("0", "default_pg", list(range(32)), 0, rank, 640, 640, None, counts)
        job[rank] = RankState(rank, [group])
    written(folder, ras_text(job), "ras.txt")


def one_of_many(folder: Path) -> None:
    """One rank of 256 has left its lines, beside an answer of RAS that is sound."""
    written(folder, log({118: waiting(256, 2_398_459, size=8_652_160, ahead=119)[118]}, Spelling("2.8")))


def all_wait(folder: Path) -> None:
    """All three ranks wait in the same bucket."""
    written(folder, log(waiting(3, 808, size=9_801_523, ahead=3), Spelling("2.5")))


def unlike(folder: Path) -> None:
    """Rank 2 of four gathers where the others reduce."""
    job = waiting(4, 652, size=9_984_512, odd={2: ("ALLGATHER", 59_205_120)})
    written(folder, log(job, Spelling("2.4")))


def barrier(folder: Path) -> None:
    """The second half of the ranks did not reach a monitored barrier."""
    written(
        folder, "RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms\n"
    )


def memory_behind(folder: Path) -> None:
    """All time out, and one rank reports absurd memory behind that."""
    memory = "[rank1]: Traceback (most recent call last):\n[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory. "
    memory += "Tried to allocate more than 1EB memory.\n"
    written(folder, log(waiting(4, 77, "BROADCAST", 4096), Spelling("2.2")) + memory)


def memory_first(folder: Path) -> None:
    """The process of rank 1 is killed for memory, and torchrun says so."""
    text = (
        "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 14447) of "
        "binary: python\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-06-15_10:00:00\n"
        "  host      : gpu1\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 14447)\n"
    )
    written(folder, text)


def old_inference(folder: Path) -> None:
    """One rank of a server that ran for days, in the words of torch 2.1 behind Ray's prefix."""
    written(folder, log({3: waiting(4, 4_967_570, size=73_728)[3]}, Spelling("2.1", "ray")))


def after_fit(folder: Path) -> None:
    """Training has ended; rank 3 never comes to the last barrier of the other three."""
    written(folder, log(waiting(4, 5, late=(3,)), Spelling("2.8")))


def uneven_2_1(folder: Path) -> None:
    """Three of four ranks wait in one bucket, in the words of torch 2.1; rank 0 printed nothing."""
    written(folder, log(waiting(4, 1_132_079, size=304_640, silent=(0,)), Spelling("2.1", "srun")))


def buffers_behind(folder: Path) -> None:
    """Rank 7 of ten broadcasts buffers of the next forward pass where the others reduce a bucket."""
    job = waiting(10, 80_078, size=2_106_881, odd={7: ("BROADCAST", 5_056)})
    written(folder, log(job, Spelling("2.4")))


def longer_sequence(folder: Path) -> None:
    """Rank 6 of eight gathers more elements than the others: its sequence is longer."""
    job = waiting(8, 610, "COALESCED", 56_320, ahead=6, odd={6: ("COALESCED", 76_800)})
    written(folder, log(job, Spelling("2.5")))


def some_of_sixteen(folder: Path) -> None:
    """Ranks 0, 3 and 6 of 16 left their lines; all are in one gather, whose elements show 16 members."""
    job = waiting(16, 36, "_ALLGATHER_BASE", 787_264, ahead=1)
    written(folder, log({rank: job[rank] for rank in (0, 3, 6)}, Spelling("2.4")))


def blocking(folder: Path) -> None:
    """All eight ranks time out in one bucket."""
    written(folder, log(waiting(8, 2_521, size=160_672_064), Spelling("2.8")))


def last_host(folder: Path) -> None:
    """Rank 14 of 16 alone left its lines, in the words of torch 2.3."""
    written(folder, log({14: waiting(16, 15_734, size=220_084_533, ahead=1)[14]}, Spelling("2.3")))


def wrapped_lines(folder: Path) -> None:
    """Lines of rank 1 of eight, which a terminal broke after 76 characters."""
    text = log({1: waiting(8, 778_778)[1]}, Spelling("2.1"), noise=0)
    lines = (line[at : at + 76] for line in text.splitlines() for at in range(0, len(line), 76))
    written(folder, "\n".join(lines) + "\n")


def no_blame_of(*ranks: int) -> object:
    """Right where nobody is named; wrong where any of these is."""

    def judge(answer: Answer) -> str:
        found = answer.ranks("culprits")
        if set(found) & set(ranks) or found:
            return WRONG
        return RIGHT if answer.verdict == "inconclusive" else MISLEADING

    return judge


REPORTS = [
    pasted(
        "pytorch/pytorch#141069",
        "the log of ranks 1 to 3 of a job of torch 2.3; rank 0 had fewer batches and printed nothing",
        "rank 0, or open with rank 0 as a candidate",
        uneven,
        named("culprits", (0,)),
        quick=True,
    ),
    pasted(
        "NVIDIA/nccl#708",
        "three ranks wait for rank 0's id of a communicator; rank 0 prepares data",
        "rank 0, or open with rank 0 as a candidate",
        preprocessing,
        named("culprits", (0,)),
    ),
    pasted(
        "pytorch/pytorch#87995",
        "py-spy dumps of 8 ranks, two samples: rank 0 in its data loader, the others in an all-reduce",
        "rank 0, in its loader",
        loader,
        named("culprits", (0,), "dataset.py"),
    ),
    pasted(
        "NVIDIA/nccl#1911",
        "one answer of ncclras: 30 ranks at operation 640, ranks 12 and 13 at 641",
        "open, or the 30 that are behind; never 12 and 13",
        ahead,
        no_blame_of(12, 13),
    ),
    pasted(
        "NVIDIA/nccl#1730",
        "the watchdog lines of rank 118 of 256 alone",
        "open: the other ranks are needed",
        one_of_many,
        no_blame_of(118),
    ),
    pasted(
        "XPixelGroup/BasicSR#737",
        "the log of three ranks that all wait in one bucket",
        "no rank; a link, a device, or a rank that left no line",
        all_wait,
        no_blame_of(0, 1, 2),
    ),
    pasted(
        "ROCm/rccl#429",
        "the log of four ranks: rank 2 gathers under the number under which the others reduce",
        "rank 2, with both calls",
        unlike,
        named("culprits", (2,), "all_gather"),
    ),
    pasted(
        "NVIDIA/nccl#849",
        "one line: ranks 4 to 7 failed to pass a monitored barrier",
        "ranks 4 to 7",
        barrier,
        named("culprits", (4, 5, 6, 7)),
    ),
    pasted(
        "NVIDIA/nccl#1284",
        "four ranks time out in a broadcast; rank 1 reports absurd memory behind that",
        "not the memory of rank 1, which follows from the time-out",
        memory_behind,
        accuses_none("culprits"),
    ),
    pasted(
        "AkariAsai/self-rag#83",
        "torchrun's report: exit code -9 of one rank",
        "rank 1, killed (memory)",
        memory_first,
        named("culprits", (1,), "sigkill"),
    ),
    pasted(
        "vllm-project/vllm#3071",
        "one line of rank 3 of a server, in the words of torch 2.1 behind Ray's prefix",
        "open: the other ranks are needed",
        old_inference,
        no_blame_of(3),
    ),
    pasted(
        "alan-turing-institute/autocast#381",
        "three of four ranks wait in a barrier behind the training, rank 3 answered the dump signal",
        "rank 3",
        after_fit,
        named("culprits", (3,)),
    ),
    pasted(
        "ai2cm/ace#348",
        "the log of ranks 1 to 3 of four, in the words of torch 2.1 behind srun's prefix; rank 0 printed nothing",
        "rank 0, or open with rank 0 as a candidate",
        uneven_2_1,
        named("culprits", (0,)),
    ),
    pasted(
        "NVIDIA/nccl#1409",
        "the log of ten ranks: under one number rank 7 broadcasts 5056 elements where the others reduce a bucket",
        "rank 7, with both calls",
        buffers_behind,
        named("culprits", (7,), "broadcast"),
    ),
    pasted(
        "modelscope/DiffSynth-Studio#458",
        "the log of eight ranks in a coalesced gather: rank 6 gives 76800 elements, the others 56320",
        "rank 6, with both sizes",
        longer_sequence,
        named("culprits", (6,), "76800"),
    ),
    pasted(
        "NovaSearch-Team/RAG-Retrieval#112",
        "lines of ranks 0, 3 and 6, all in one gather, and its elements show 16 members",
        "open: the other 13 ranks are needed",
        some_of_sixteen,
        no_blame_of(0, 3, 6),
    ),
    pasted(
        "huggingface/diffusers#12422",
        "the log of eight ranks that all time out in one bucket",
        "no rank",
        blocking,
        no_blame_of(*range(8)),
    ),
    pasted(
        "modelscope/FunASR#2006",
        "the lines of rank 14 of 16 alone, in the words of torch 2.3",
        "open: the other ranks are needed",
        last_host,
        no_blame_of(14),
    ),
    pasted(
        "HKUDS/GraphGPT#44",
        "the lines of rank 1 alone, in the words of torch 2.1, broken by a terminal after 76 characters",
        "open: the other ranks are needed",
        wrapped_lines,
        no_blame_of(1),
    ),
]
