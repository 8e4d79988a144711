"""Logs in which a process raised, ended or was awaited elsewhere than in a collective, as pasted."""

from pathlib import Path

from tests.evidence.other_channels import ras_text
from tests.evidence.stuck_job import Call, GroupState, RankState
from tests.evidence.watchdog import Spelling, log
from tests.reports.dumps import Writer, hung
from tests.reports.logs import no_blame_of, pasted, waiting, written
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.stuck import backward, logged

FRAMES = '  File "/job/train.py", line 212, in <module>\n  File "/job/{}.py", line {}, in {}\n'


def raised(rank: int, error: str, where: tuple[str, int, str], prefix: str = "[rank{}]: ") -> str:
    """The traceback of a rank, each line behind its prefix."""
    lines = ["Traceback (most recent call last):", *FRAMES.format(*where).splitlines(), error]
    return "".join(f"{prefix.format(rank)}{line}\n" for line in lines)


def other_replica(folder: Path) -> None:
    """Two replicas of 4: a broadcast has a source outside of the second one's group, whose ranks raise; others wait."""
    error = "ValueError: Global rank 0 is not part of group <torch.distributed.ProcessGroup object at 0x7f>"
    text = "".join(raised(rank, error, ("rollout", 88, "sync_inputs")) for rank in range(4, 8))
    written(folder, text + log(waiting(8, 41, silent=range(4, 8)), Spelling("2.8")))


def absurd_size(folder: Path) -> None:
    """Rank 2 of four raises in an object's gather, since the size that it received is absurd; the others time out."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."
    text = raised(2, error, ("checkpoint", 61, "all_gather_object"))
    written(folder, text + log(waiting(4, 19, "ALLGATHER", 4096, silent=(2,)), Spelling("2.5")))


def saw_signal(folder: Path) -> None:
    """Four ranks validate; ranks 1 to 3 time out, and rank 0 says only that it saw the signal to dump."""
    seen = (
        "[rank0]:[E1128 21:11:49.041188078 ProcessGroupNCCL.cpp:1806] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "Observed flight recorder dump signal from another rank via TCPStore.\n"
    )
    written(folder, log(waiting(4, 22, "ALLGATHER", 64, silent=(0,)), Spelling("2.8")) + seen)


STORE = (
    "[rank{0}]:[W729 10:15:{1:02}.584991368 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=97, "
    "addr=[node0]:50{0}28, remote=[node0]:45903): Broken pipe\n"
    "[rank{0}]:[W729 10:15:{1:02}.584991400 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Failed "
    'to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: '
    "Broken pipe\n"
)


def store_gone(folder: Path) -> None:
    """Seven of eight ranks lost the store, which rank 0 holds; rank 0 wrote nothing."""
    written(folder, "".join(STORE.format(rank, 10 + second) for second in range(3) for rank in range(1, 8)))


def three_calls(folder: Path) -> None:
    """Four ranks of DDP: under one number ranks 1 and 3 broadcast 64 elements and rank 2 a bucket; rank 0 is ahead."""
    job = waiting(4, 7219, "BROADCAST", 64, ahead=1, odd={2: ("BROADCAST", 24_084_544)}, silent=(0,))
    job[2].groups[0].enqueued = 7219
    late = Call(7221, "ALLREDUCE", 593_920, 593_920, False, 0, [])
    job[0] = RankState(0, [GroupState("0", "default_pg", list(range(4)), 0, 0, 7221, 7220, late)])
    written(folder, log(dict(sorted(job.items())), Spelling("2.8")))


def timed_out_in_gloo(folder: Path) -> None:
    """Two of many workers time out in a receive of Gloo, behind their launcher's prefix."""
    line = (
        "[trainer{}|{}]:RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
        "operation to complete\n"
    )
    written(folder, line.format(22, 6) + line.format(3, 1))


def closed(folder: Path) -> None:
    """One line: Gloo's connection was closed by a peer, without any rank."""
    written(
        folder,
        "Traceback (most recent call last):\n"
        '  File "train.py", line 636, in <module>\n    main()\n'
        '  File "train.py", line 489, in train_and_evaluate\n    scaler.scale(loss_gen_all).backward()\n'
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[127.0.0.1]:10895\n",
    )


def not_reported(folder: Path) -> None:
    """Ray's controller says which of four workers have not come to its own barrier."""
    line = (
        "(SynchronizationActor pid=8812) `ray.train.report` has not been called by all 4 workers in the group.\n"
        "(SynchronizationActor pid=8812) The workers have been waiting for {}.10 s for the following ranks to join "
        "the `ray.train.report` call: [2].\n"
    )
    written(folder, line.format(60) + line.format(120))


def behind_by_ras(folder: Path) -> None:
    """One answer of ncclras on two hosts: rank 1 has enqueued one gather more than rank 0 has."""
    job = {}
    for rank in range(2):
        counts = {"AllGather": 288_685 + rank}
        group = GroupState("0", "default_pg", [0, 1], 0, rank, 288_685 + rank, 288_685, None, counts)
        job[rank] = RankState(rank, [group])
    written(folder, ras_text(job), "ras.txt")


def raised_beside_dump(folder: Path) -> None:
    """Rank 0 of two raised and is stuck in the group's end, so that it leaves no dump; the log has its traceback."""

    def program(writer: Writer) -> None:
        for number in range(3):
            backward(writer)
            if writer.rank == 0 and number == 2:
                writer.stop()
            logged(writer)

    hung(folder, 2, program, gone=(0,))
    text = raised(
        0, "RuntimeError: shape '[4, 512]' is invalid for input of size 1024", ("model", 40, "forward")
    )
    written(folder, text)


def candidate(*ranks: int) -> object:
    """Right where none is named and these are the candidates; open where there are none."""

    def judge(answer: Answer) -> str:
        if answer.ranks("culprits"):
            return WRONG
        if answer.verdict != "inconclusive" or "no file here holds evidence" in answer.text:
            return MISLEADING
        return RIGHT if answer.ranks("candidates") == ranks else OPEN

    return judge


REPORTS: list[Report] = [
    pasted(
        "verl-project/verl#5701",
        "the log of two replicas of 4: ranks 4 to 7 raise, as a broadcast's source is not in their group; 0 to 3 wait",
        "ranks 4 to 7, with their exception",
        other_replica,
        named("culprits", (4, 5, 6, 7), "not part of group"),
    ),
    pasted(
        "pytorch/pytorch#145965",
        "the log of 4 ranks: rank 2 raises in an object's gather for absurd memory, then the others time out",
        "rank 2, with its exception",
        absurd_size,
        named("culprits", (2,), "1eb"),
    ),
    pasted(
        "huggingface/accelerate#3861",
        "the log of 4 ranks: 1 to 3 time out, rank 0 only saw the signal to dump",
        "rank 0, or open with rank 0 as a candidate",
        saw_signal,
        named("culprits", (0,)),
    ),
    pasted(
        "tdrussell/diffusion-pipe#333",
        "the log of 8 ranks: 1 to 7 lost the store, and rank 0 wrote nothing",
        "open with rank 0 as a candidate: it or its launcher held the store",
        store_gone,
        candidate(0),
    ),
    pasted(
        "modelscope/ms-swift#10183",
        "the log of 4 ranks: under one number 1 and 3 broadcast 64 elements, rank 2 24084544; rank 0 is ahead",
        "rank 2, with both sizes",
        three_calls,
        named("culprits", (2,), "24084544"),
    ),
    pasted(
        "pytorch/gloo#511",
        "two workers of many time out in a receive of Gloo, behind a launcher's prefix",
        "open: the other logs are needed",
        timed_out_in_gloo,
        no_blame_of(),
    ),
    pasted(
        "RVC-Project/Retrieval-based-Voice-Conversion-WebUI#1882",
        "one traceback without a rank: a peer closed a connection of Gloo",
        "open: the other logs are needed",
        closed,
        no_blame_of(),
    ),
    pasted(
        "ray-project/ray#58229",
        "two warnings of Ray's controller: rank 2 of 4 has not come to its barrier",
        "open with rank 2 as a candidate",
        not_reported,
        candidate(2),
        quick=True,
    ),
    pasted(
        "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#117",
        "one answer of ncclras about two ranks: rank 0 is one gather behind",
        "open with rank 0 as a candidate",
        behind_by_ras,
        candidate(0),
    ),
    pasted(
        "pytorch/pytorch#196968",
        "the dump of rank 1 and the traceback of rank 0, which is stuck in the end of its group and leaves no dump",
        "rank 0, with its exception",
        raised_beside_dump,
        named("culprits", (0,), "is invalid for input"),
    ),
]
