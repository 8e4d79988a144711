"""Logs of launchers, of exceptions that all ranks raise, and stacks of a backward pass, as pasted."""

from pathlib import Path

from tests.evidence.watchdog import Spelling, log
from tests.reports.endings import candidate, raised
from tests.reports.logs import pasted, waiting, written
from tests.reports.report import MISLEADING, RIGHT, WRONG, Answer, Report, named

REPORT = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([{}])"
PLACE = ("checkpoint", 77, "save")


def deepspeed(folder: Path) -> None:
    """One of eight processes is killed; the launcher prints the command of the last one."""
    text = "".join(
        f"[2026-01-03 08:11:27,{rank}00] [INFO] [launch.py:315:sigkill_handler] Killing subprocess {700 + rank}\n"
        for rank in range(8)
    )
    command = "['/usr/bin/python', '-u', 'train.py', '--local_rank=7', '--deepspeed', 'zero3.json']"
    text += f"[2026-01-03 08:11:31,885] [ERROR] [launch.py:321:sigkill_handler] {command} exits with return code = -9\n"
    written(folder, text)


def open_mpi(folder: Path) -> None:
    """The process of rank 1 is killed, and mpirun says so."""
    line = "mpirun noticed that process rank 1 with PID 41422 on node gpu7 exited on signal 9 (Killed).\n"
    written(
        folder, f"Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n{line}"
    )


def checkpoint(folder: Path) -> None:
    """Rank 2 of four cannot write; all raise, behind the prefix of a logger."""
    text = ""
    for rank in range(4):
        prefix = f"2026-01-03 03:11:02,47{rank} - Trainer - INFO - [rank{rank}]: "
        text += raised(rank, REPORT.format(2), PLACE, prefix)
        text += f'{prefix}Traceback (most recent call last): (RANK 2)\n{prefix}  File "/job/a.py", line 9, in put\n'
        text += f"{prefix}OSError: [Errno 28] No space left on device\n"
    text += "E0103 03:11:09.1 70 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 99) of binary: python\n"
    written(folder, text)


def two_jobs(folder: Path) -> None:
    """Ranks 0 and 2 wait in a barrier of two ranks to which three processes came."""
    line = (
        "2026-01-03 05:38:33 | INFO | torch.distributed | Waiting in store based barrier to initialize "
        "process group for rank: {}, key: store_based_barrier_key:1 (world_size=2, worker_count=3, timeout=0:30:00)\n"
    )
    written(folder, line.format(0) + line.format(2))


def monitored(folder: Path) -> None:
    """Ranks 1 and 2 came to a monitored barrier and lost its first rank."""
    words = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please"
    place = ("train", 40, "main")
    text = "".join(raised(r, f"RuntimeError: Rank {r} {words} check rank 0 logs.", place) for r in (1, 2))
    written(folder, text)


def no_prefix(folder: Path) -> None:
    """Rank 2 of four has not come; no line bears `[rankN]:`, as torch built with glog writes them."""
    text = log(waiting(4, 70_426, late=(2,)), Spelling("2.4"))
    for rank in range(4):
        text = text.replace(f"[rank{rank}]:", "")
    written(folder, text)


def unnumbered(folder: Path) -> None:
    """Two ranks time out, in the words of torch 1.9."""
    line = (
        "[E ProcessGroupNCCL:566] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
        "Timeout(ms)=1800000) ran for 1804582 milliseconds before timing out.\n"
    )
    written(folder, line.format(0) + line.format(1))


def models(folder: Path) -> None:
    """Ranks 1 to 3 of four read no parameters of rank 0."""
    error = "RuntimeError: DDP expects same model across all ranks, but Rank {} has 2247 params, while rank 0 has "
    place = ("train", 525, "main")
    text = "".join(raised(r, f"{error.format(r)}inconsistent 0 params.", place) for r in (1, 2, 3))
    written(folder, text)


def backward(folder: Path) -> None:
    """Two samples of eight ranks: 0 in its loader, 5 in its backward pass, whose engine gathers; the others reduce."""
    program = "    step (train.py:410)\n    <module> (train.py:587)\n"
    main = 'Thread {} (idle): "MainThread"\n'
    reduces = "    all_reduce (torch/distributed/distributed_c10d.py:2501)\n"
    waits = "    backward (torch/autograd/__init__.py:266)\n    backward (torch/_tensor.py:522)\n"
    gathers = (
        "    all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)\n    _pre (zero/stage3.py:12)\n"
        "    backward (torch/autograd/function.py:301)\n"
    )
    reads = "    read (streaming.py:77)\n    __next__ (torch/utils/data/dataloader.py:630)\n"
    for rank in range(8):
        own = {0: reads, 5: waits}.get(rank, reduces)
        text = (
            f"Process {39 + rank}: python train.py\nPython v3.10.12 (python3.10)\n\n{main.format(39 + rank)}"
        )
        text += own + program + ("Thread 4076 (idle)\nThread 4079 (active)\n" + gathers if rank == 5 else "")
        written(folder, text * 2, f"rank_{rank}.txt")


def says(*words: str) -> object:
    """Right where no rank is named and one of the words is said."""

    def judge(answer: Answer) -> str:
        if answer.ranks("culprits"):
            return WRONG
        return RIGHT if answer.verdict == "inconclusive" and answer.says(*words) else MISLEADING

    return judge


REPORTS: list[Report] = [
    pasted(
        "deepspeedai/DeepSpeed#4890",
        "DeepSpeed's launcher about one of eight processes: code -9, behind the command of the last one",
        "open: killed, and no rank; never rank 7",
        deepspeed,
        says("killed by sigkill"),
        quick=True,
    ),
    pasted(
        "Kay1794/Aware-of-the-history#2",
        "mpirun about rank 1",
        "rank 1, killed",
        open_mpi,
        named("culprits", (1,), "sigkill"),
    ),
    pasted(
        "bghira/SimpleTuner#1880",
        "four ranks raise behind a logger's prefix, as the checkpoint of one failed: rank 2 has no space left",
        "rank 2, with its exception",
        checkpoint,
        named("culprits", (2,), "no space left"),
    ),
    pasted(
        "facebookresearch/metaseq#52",
        "ranks 0 and 2 wait in a barrier of the store for two ranks, to which three came",
        "no rank; another job on the same store",
        two_jobs,
        says("another job"),
    ),
    pasted(
        "pytorch/pytorch#121606",
        "ranks 1 and 2 reached a monitored barrier and lost rank 0",
        "open with rank 0 as a candidate",
        monitored,
        candidate(0),
    ),
    pasted(
        "Lightning-AI/litData#340",
        "the log of four ranks without `[rankN]:`; rank 2 has not come",
        "rank 2",
        no_prefix,
        named("culprits", (2,)),
    ),
    pasted(
        "huggingface/accelerate#157",
        "two ranks time out in the words of torch 1.9, which number no call",
        "open: the calls without numbers are shown",
        unnumbered,
        says("do not number them"),
    ),
    pasted(
        "NJU-PCALab/STAR#44",
        "ranks 1 to 3 read 0 parameters of rank 0 where models are compared",
        "open: the exchange failed; rank 0 may be elsewhere",
        models,
        says("cannot be true"),
    ),
    pasted(
        "huggingface/accelerate#3104",
        "py-spy dumps of 8 ranks: 0 in its loader, 5 in a backward pass with a gather in the engine's thread",
        "rank 0, in its loader; not rank 5",
        backward,
        named("culprits", (0,), "streaming.py"),
    ),
]  # fmt: skip
