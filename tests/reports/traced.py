"""Stacks of gdb, py-spy and faulthandler, fingerprints, and words of libraries other than NCCL, as pasted."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.reports.endings import candidate, raised
from tests.reports.launched import says
from tests.reports.logs import no_blame_of, pasted, written
from tests.reports.printed import PRINT
from tests.reports.report import named

START = "#9  0x0000 in start_thread () from /lib64/libpthread.so.0\n#10 0x0000 in clone () from /lib64/libc.so.6\n\n"
NCCL = (
    "#0  0x0000 in ?? () from /lib/libcuda.so\n#1  0x0000 in __cudart803 () from /lib/libnccl.so.2\n"
    "#2  0x0000 in ncclLaunchKernel (comm=0x5, plan=0x5) at enqueue.cc:1092\n#3  0x0000 in main () at glm.cc:40\n"
)
GATHER = "#0  0x0000 in sched_yield () from /lib64/libc.so.6\n#1  0x0000 in ncclGroupEnd () from /lib/libnccl.so.2\n"
SYNC = (
    "#0  0x0000 in clock_gettime () from /lib64/libc.so.6\n#1  0x0000 in ?? () from /lib64/libcuda.so.1\n"
    "#2  0x0000 in cudaStreamSynchronize () from /lib64/libcudart.so.12\n"
)
INIT = (
    "#0  0x0000 in clock_nanosleep () from /lib/libc.so.6\n#1  0x0000 in ?? ()\n   from /lib/libnccl.so.2\n"
    "#2  0x0000 in pncclCommInitRankConfig () from /lib/libnccl.so.2\n"
)
MPI = "#4  0x0000 in PyEval_EvalFrameEx () from /usr/bin/python\n"


def of_gdb(stacks: Mapping[int, str]) -> Callable[[Path], None]:
    """What gdb printed of each rank, in a file of its own."""

    def make(folder: Path) -> None:
        for rank, main in stacks.items():
            proxy = f"Thread 2 (Thread 0x7f32 (LWP {40 + rank})):\n#0  0x0000 in poll () from /lib64/libc.so.6\n{START}"
            text = f"Attaching to process {20 + rank}\n{proxy}Thread 1 (Thread 0x7f3a (LWP {20 + rank})):\n{main}"
            written(folder, text, f"rank{rank}.txt")

    return make


def py_spy(pid: int, title: str, *frames: str, prefix: str = "") -> str:
    """What py-spy prints of one process."""
    lines = [
        f"Process {pid}: {title}",
        "Python v3.12.3 (/usr/bin/python3.12)",
        "",
        f'Thread {pid} (idle): "MainThread"',
    ]
    lines += [f"    {frame}" for frame in frames] + [
        'Thread 99 (idle): "tqdm"',
        "    wait (threading.py:359)",
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


LOOP = ("event_loop (managers/scheduler.py:900)", "<module> (<string>:1)")
RECEIVES = (
    "pthread_cond_timedwait (libc.so.6)",
    "c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)",
    "recv_object (pipeline.py:30)",
)
REDUCES = ("all_reduce (torch/distributed/distributed_c10d.py:2810)", "forward (model.py:4)")


def pipeline_server(folder: Path) -> None:
    """A server's watchdog asks py-spy for eight processes of a pipeline: one builds a batch, the others wait."""
    text = "[2026-01-29 13:12:30] INFO: POST /generate 200 OK\n" * 40
    for number in range(8):
        stage, shard = divmod(number, 2)
        frames = ("pack (batch.py:61)", *LOOP) if number == 3 else (*RECEIVES, *LOOP)
        text += f"[2026-01-29 13:12:37 PP{stage} TP{shard}] Pyspy dump for PID {88690 + number}:\n"
        text += py_spy(88690 + number, f"sglang::scheduler_PP{stage}_TP{shard}", *frames) + "\n"
    written(folder, text)


def penalties(folder: Path) -> None:
    """The same of eight shards behind Docker Compose's prefix; shard 6 computes penalties."""
    text = ""
    for shard in range(8):
        frames = ("_apply (penaltylib/min_new_tokens.py:78)", *LOOP) if shard == 6 else (*REDUCES, *LOOP)
        text += py_spy(303 + shard, f"sglang::scheduler_TP{shard}", *frames, prefix="sglang-1  | ")
    written(folder, text)


def traced_by_srun(folder: Path) -> None:
    """py-spy by `srun --label`, twice: rank 5 waits in its loader's queue, the others reduce the validation loss."""
    text = ""
    for _ in range(2):
        for rank in range(16):
            reads = ("get (multiprocessing/queues.py:103)", "__next__ (torch/utils/data/dataloader.py:521)")
            frames = reads if rank == 5 else REDUCES
            text += py_spy(
                700 + rank, "python pretrain.py", *frames, "<module> (pretrain.py:9)", prefix=f"{rank:>2}: "
            )
    written(folder, text)


def lagging(folder: Path) -> None:
    """JAX on eight processes: seven read a value of their device, one is behind in its loop."""
    for rank in range(8):
        frames = (
            ("_value (jax/_src/array.py:642)", "main (repro.py:392)")
            if rank != 3
            else ("main (repro.py:389)",)
        )
        written(folder, py_spy(1, "python -u run.py", *frames, "<module> (run.py:40)"), f"task_{rank}.txt")


def timed_out_test(folder: Path) -> None:
    """A test's parent prints what faulthandler wrote of its process 3."""
    text = (
        "Process 3 timed out with traceback:\n\nCurrent thread 0x00007ff3363ff700 (most recent call first):\n"
        '  File "testing/common.py", line 373 in _event_listener\n  File "threading.py", line 890 in _bootstrap\n\n'
        'Thread 0x00007ff406132180 (most recent call first):\n  File "torch/distributed/distributed_c10d.py", line 9 '
        'in barrier\n  File "rpc_test.py", line 838 in test_reinit\n  File "<string>", line 1 in <module>\n'
    )
    written(folder, text)


def idle_workers(folder: Path) -> None:
    """`ray stack` of four idle workers."""
    frames = (
        "pthread_cond_wait (libpthread.so)",
        "run_task_loop (ray/_raylet.so)",
        "main_loop (ray/worker.py:382)",
    )
    worker = "Stack dump for ubuntu   {0}  2.0  0.1 14248876 69280 ?      Sl   10:34   0:01 ray::IDLE\n"
    text = "".join(worker.format(pid) + py_spy(pid, "ray::IDLE", *frames) for pid in range(4))
    written(folder, text)


def prints(pairs: list[tuple[tuple[int, int, str, str], tuple[int, int, str, str]]], prefix: str) -> str:
    """Exceptions of torch's DETAIL mode: (rank, number, operation, shape) of the writer and of another member."""
    text = ""
    for one, other in pairs:
        first, second = (PRINT.format(seq, op, shape, "BFloat16") for _, seq, op, shape in (one, other))
        text += prefix.format(one[0]) + (
            f"RuntimeError: Detected mismatch between collectives on ranks. Rank {one[0]} is running collective: "
            f"{first}, but Rank {other[0]} is running collective: {second}.Collectives differ in the following: x\n"
        )
    return text


def of_prints(*pairs: tuple[tuple[int, int, str, str], tuple[int, int, str, str]]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        written(folder, prints(list(pairs), "[rank{}]: "))

    return make


def one_sided(folder: Path) -> None:
    """Torch 1.11 prints the call of each of four ranks alone."""
    line = (
        "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running inconsistent "
        "collective: CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[{1}], TensorDtypes=Float, TensorDevice=x)\n"
    )
    written(folder, "".join(line.format(rank, 34112 if rank == 0 else 512) for rank in range(4)))


def of_tasks(world: int, absent: tuple[int, ...], writers: tuple[int, ...]) -> Callable[[Path], None]:
    """JAX's coordinator about the processes that did not come, as each process that came prints it."""

    def make(folder: Path) -> None:
        tasks = "".join(f"\n/job:jax_worker/replica:0/task:{task}" for task in absent)
        error = f"DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: sync0. Timed out task names:{tasks}\n\nAdditional"
        where = ("train", 75, "multihost_broadcast_sync")
        text = "".join(
            raised(rank, f"jaxlib.xla_extension.XlaRuntimeError: {error}", where, prefix="")
            for rank in writers
        )
        written(folder, text)

    assert max(absent) < world
    return make


def of_ascend(
    error: str, code: str, writers: tuple[int, ...], prefix: str = "[rank{}]: "
) -> Callable[[Path], None]:
    """Exceptions of torch_npu on some ranks, with the words of HCCL behind them, and a launcher that saw an end."""

    def make(folder: Path) -> None:
        more = (
            "\n[ERROR] 2025-06-25-10:45:23 (PID:13075, Device:0, RankID:{0}) ERR00100 PTA call acl api failed\n"
            + code
        )
        text = "".join(raised(r, error + more.format(r), ("engine", 856, "forward"), prefix) for r in writers)
        text += (
            "E0103 03:11:09.1 70 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 99) of binary: python\n"
        )
        written(folder, text)

    return make


NOTIFY = "EI0002: The wait execution of the Notify register times out. Reason: no Notify record from remote rank [1]."
SOCKET = "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time."

REPORTS = [
    pasted(
        "NVIDIA/TensorRT-LLM#2560",
        "gdb on four ranks: 0 to 2 in a gather of NCCL, 3 in a wait for its stream",
        "no rank: rank 3 waits for its device, which waits for others",
        of_gdb({rank: SYNC if rank == 3 else GATHER for rank in range(4)}),
        says("rank 3 in a wait for the device"),
    ),
    pasted(
        "NVIDIA/nccl#901",
        "gdb on four ranks that all launch a kernel of NCCL",
        "no rank",
        of_gdb(dict.fromkeys(range(4), NCCL)),
        no_blame_of(0, 1, 2, 3),
    ),
    pasted(
        "NVIDIA/nccl#1774",
        "cuda-gdb on two ranks: one sets up a communicator, the other waits for its device",
        "open: of two ranks either may be the one that is late",
        of_gdb({0: INIT, 1: SYNC}),
        no_blame_of(0, 1),
    ),
    pasted(
        "NVIDIA/nccl#429",
        "gdb on four ranks without symbols: three in NCCL, one where no frame has a name",
        "open with rank 1 as a candidate",
        of_gdb({rank: f"#0  0x0000 in ?? ()\n{MPI}" if rank == 1 else GATHER for rank in range(4)}),
        candidate(1),
    ),
    pasted(
        "sgl-project/sglang#17941",
        "a server's log with py-spy on eight processes: one builds a batch, the others wait in a receive",
        "open: no line names a rank; the process and its place",
        pipeline_server,
        says("process 88693 at batch.py:61"),
    ),
    pasted(
        "sgl-project/sglang#12076",
        "the same behind Docker Compose's prefix: shard 6 computes penalties while seven reduce",
        "open: no line names a rank; the process and its place",
        penalties,
        says("min_new_tokens.py:78"),
        quick=True,
    ),
    pasted(
        "bigscience-workshop/Megatron-DeepSpeed#282",
        "py-spy by `srun --label` on 16 ranks, twice: rank 5 in its loader, the others in a reduction",
        "rank 5, in its loader",
        traced_by_srun,
        named("culprits", (5,), "queues.py"),
    ),
    pasted(
        "marin-community/marin#7344",
        "py-spy on eight processes of JAX: seven read a value of their device, one is in its loop",
        "open: stacks of JAX show no collective",
        lagging,
        no_blame_of(*range(8)),
    ),
    pasted(
        "pytorch/pytorch#54818",
        "what faulthandler printed of process 3 of a test, in a barrier",
        "open: the other processes are needed",
        timed_out_test,
        no_blame_of(3),
    ),
    pasted(
        "ray-project/ray#15879",
        "`ray stack` of four idle workers",
        "no rank: none of them runs a task",
        idle_workers,
        no_blame_of(0, 1, 2, 3),
    ),
    pasted(
        "pytorch/pytorch#148976",
        "an exception of torch's DETAIL mode: rank 1 is at its second barrier, rank 2 at its first",
        "open: the numbers differ by one; old Gloo groups count from anything",
        of_prints(((1, 1, "BARRIER", ""), (2, 0, "BARRIER", ""))),
        says("numbers that differ by 1"),
    ),
    pasted(
        "pytorch/pytorch#100207",
        "the same where Gloo's numbers were random: ranks 26 and 1 make one broadcast",
        "no rank",
        of_prints(((26, 683_057_617, "BROADCAST", "1"), (1, 513_876_813, "BROADCAST", "1"))),
        no_blame_of(1, 26),
    ),
    pasted(
        "EchoseChen/SPA-VL-RLHF#2",
        "exceptions of ranks 0, 1 and 3: they broadcast 33554432 elements, rank 2 38838272",
        "open with rank 2 as a candidate: nothing shows the size of the group",
        of_prints(*(((r, 14370, "BROADCAST", "33554432"), (2, 14370, "BROADCAST", "38838272")) for r in (0, 1, 3))),
        candidate(2),
    ),
    pasted(
        "modelscope/ms-swift#9443",
        "an exception of two ranks: 195812480 and 51123456 elements in one bucket",
        "open: both calls",
        of_prints(((1, 3104, "ALLREDUCE", "195812480"), (0, 3104, "ALLREDUCE", "51123456"))),
        says("195812480"),
    ),
    pasted(
        "pytorch/pytorch#78022",
        "exceptions of torch 1.11 on four ranks, each with its own call alone: rank 0 broadcasts more",
        "open with rank 0 as a candidate: nothing shows the size of the group",
        one_sided,
        candidate(0),
    ),
    pasted(
        "marin-community/marin#1933",
        "JAX's coordinator: processes 0 and 3 of four did not come to a barrier",
        "processes 0 and 3",
        of_tasks(4, (3, 0), (1, 2)),
        named("culprits", (0, 3)),
    ),
    pasted(
        "ayaka14732/llama-2-jax#20",
        "JAX's coordinator: seven of eight processes did not connect, as the script gives each the number 0",
        "open: they are most",
        of_tasks(8, tuple(range(1, 8)), (0,)),
        candidate(*range(1, 8)),
    ),
    pasted(
        "vllm-project/vllm-ascend#486",
        "ranks 0, 1 and 3 of four raise as HCCL got no socket in time",
        "no rank: these waited",
        of_ascend("RuntimeError: OPS function error: HcclAllreduce, error code is 6", SOCKET, (0, 1, 3)),
        says("timed out in hccl"),
    ),
    pasted(
        "vllm-project/vllm-ascend#1443",
        "workers of Ray raise as their device timed out in HCCL, with an unknown remote rank",
        "no rank: these waited",
        of_ascend(
            "RuntimeError: NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507048",
            NOTIFY,
            (0, 1),
            "(train pid=846{}) ",
        ),
        says("timed out in hccl"),
    ),
]  # fmt: skip
