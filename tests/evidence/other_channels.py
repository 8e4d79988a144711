"""NCCL's RAS answers in text and JSON, and stacks as py-spy, faulthandler, pystack and gdb print them, of a stuck job.

Written from NVIDIA/nccl src/ras/client_support.cc, benfred/py-spy and CPython's traceback.c,
and from what pystack 1.7 and gdb 13 printed.
"""

import json
from collections import Counter
from collections.abc import Mapping

from tests.evidence.stuck_job import RankState

HEAD = """NCCL version 2.27.3 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
{nodes:7d}  {each:9d}  {one:11d}  {world:9d}  {world:7d}

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def process(rank):
    """Host, process id and GPU of a rank."""
    return f"10.0.0.{1 + rank // 8}", 9000 + rank, rank % 8


def communicators(job: Mapping[int, RankState], spread=lambda _: 0):
    """Members, counts by rank and silent ranks of each group that makes collectives."""
    found = {}
    for state in job.values():
        for group in state.groups:
            key = (group.name, tuple(group.ranks))
            if len(group.ranks) > 1 and (group.counts or (group.open is not None and group.open.message)):
                found.setdefault(key, {})
    for state in job.values():
        for group in state.groups:
            key = (group.name, tuple(group.ranks))
            if key in found:  # messages are not counted: a communicator of these alone shows zeros
                found[key][state.rank] = dict(group.counts)
    return found


def ras_json(job: Mapping[int, RankState], time="2026-11-18 04:00:00", dead=False) -> str:
    """The answer in JSON."""
    made = []
    for number, ((_, ranks), counts) in enumerate(communicators(job).items()):
        rows, missing = [], []
        for place, rank in enumerate(ranks):
            host, pid, gpu = process(rank)
            row = {"rank": place, "host": host, "pid": pid, "cuda_dev": gpu, "nvml_dev": gpu}
            if rank in counts:
                status = {
                    "init_state": 0,
                    "async_error": 0,
                    "finalize_called": False,
                    "destroy_flag": False,
                    "abort_flag": False,
                }
                kinds = {
                    "Broadcast": 0,
                    "Reduce": 0,
                    "AllGather": 0,
                    "ReduceScatter": 0,
                    "AllReduce": 0,
                } | counts[rank]
                rows.append(row | {"status": status, "collective_counts": kinds})
            else:
                missing.append(row | {"status": {"unresponsive": True, "considered_dead": dead}})
        made.append(
            {
                "hash": f"0x{number + 0xAE94423CFBB2:x}",
                "secondary_hash": "0x1:0x2",
                "size": len(ranks),
                "ranks_count": len(rows),
                "missing_ranks_count": len(missing),
                "ranks": rows,
                "missing_ranks": missing,
            }
        )
    whole = {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": time,
        "communicators_count": len(made),
        "communicators": made,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    return json.dumps(whole, indent=2)


def ras_text(job: Mapping[int, RankState], by_kind=True) -> str:
    """The answer as text: of ranks that differ those of small sets, else only how many they are."""
    world = len(job)
    out = [HEAD.format(nodes=-(-world // 8), each=min(world, 8), one=1, world=world)]
    bodies = []
    for number, ((_, ranks), counts) in enumerate(communicators(job).items()):
        gone = [place for place, rank in enumerate(ranks) if rank not in counts]
        body = mismatch(ranks, counts, by_kind)
        status = "INCOMPLETE" if gone else "MISMATCH" if body else "OK"
        out.append(
            f"{number:5d}  {1:8d}  {1:8d}  {len(ranks):8d}  {len(ranks):8d}  {len(ranks):8d}   RUNNING  {status}\n"
        )
        name = f"#{number}-0 ({number + 0xAE94423CFBB2:016x})"
        if gone:
            listed = ", ".join(map(str, gone))
            word = "rank" if len(gone) == 1 else "ranks"
            bodies.append(
                (
                    0,
                    (
                        f"{name} INCOMPLETE\n  Missing communicator data from {len(gone)} {word}\n"
                        f"  The missing {word}: {listed}\n"
                    ),
                )
            )
        if body:
            bodies.append((1, f"{name} MISMATCH\n{body}"))
    out.append("\nErrors\n======\n\n" + "\n".join(b for kind, b in bodies if kind == 0))
    out.append("\nWarnings\n========\n\n" + "\n".join(b for kind, b in bodies if kind == 1) + "\n")
    return "".join(out)


def mismatch(ranks, counts, by_kind) -> str:
    """The lines about ranks whose counts differ."""
    kinds = sorted({k for c in counts.values() for k in c}) if by_kind else ["all"]
    lines = []
    for kind in kinds:
        value = {r: sum(c.values()) if kind == "all" else c.get(kind, 0) for r, c in counts.items()}
        sets = Counter(value.values())
        if len(sets) < 2:
            continue
        word = "collective operation counts" if kind == "all" else f"{kind} operation counts"
        lines.append(f"  Communicator ranks have different {word}")
        for number, many in sorted(sets.items(), key=lambda item: -item[1]):
            own = [r for r in counts if value[r] == number]
            if many > 1:
                lines.append(f"  {many} ranks have launched up to operation {number}")
            if many == 1 or many <= len(ranks) / 4:
                for rank in own:
                    host, pid, gpu = process(rank)
                    told = f" has launched up to operation {number}" if many == 1 else ""
                    lines.append(
                        f"  Rank {ranks.index(rank)}{told} -- GPU {gpu} managed by process {pid} on node {host}"
                    )
    return "\n".join(lines) + "\n" if lines else ""


def frames_of(state: RankState, stands: str):
    """(function, file, line) of a rank's main thread, innermost first."""
    program = [("train_step", "train.py", 130), ("main", "train.py", 12), ("<module>", "train.py", 200)]
    if stands == "collective":
        return [
            ("wait", "torch/distributed/distributed_c10d.py", 2501),
            ("all_reduce", "torch/distributed/distributed_c10d.py", 2810),
            *program,
        ]
    if stands == "device":
        return [("synchronize", "torch/cuda/__init__.py", 890), *program]
    return [("read_shard", "dataset.py", 77), ("__next__", "torch/utils/data/dataloader.py", 631), *program]


def py_spy(state: RankState, stands: str) -> str:
    """What py-spy dump prints of one rank."""
    places = frames_of(state, stands)
    frames = "\n".join(f"    {name} ({file}:{line})" for name, file, line in places)
    return (
        f"Process {9000 + state.rank}: python -u train.py --local-rank {state.rank % 8}\n"
        "Python v3.11.9 (/usr/bin/python3.11)\n\n"
        f'Thread {9000 + state.rank} (active): "MainThread"\n{frames}\n'
        f'Thread {9100 + state.rank} (idle): "Thread-1 (_pin_memory_loop)"\n    wait (threading.py:324)\n'
        "    run (threading.py:982)\n"
    )


def faulthandler(state: RankState, stands: str) -> str:
    """What faulthandler prints of one rank on a signal."""
    frames = "\n".join(
        f'  File "{file}", line {line} in {name}' for name, file, line in frames_of(state, stands)
    )
    return (
        '\nThread 0x00007f2b3c5fe700 (most recent call first):\n  File "threading.py", line 324 in wait\n'
        '  File "threading.py", line 1002 in _bootstrap\n\n'
        f"Current thread 0x00007f2c44b2d740 (most recent call first):\n{frames}\n"
    )


def pystack(state: RankState, stands: str) -> str:
    """What `pystack remote` prints of one rank: outermost first, each frame with its source."""
    places = "".join(
        f'    (Python) File "{file}", line {line}, in {name}\n        {name}(batch)\n'
        for name, file, line in reversed(frames_of(state, stands))
    )
    return (
        f"Traceback for thread {9100 + state.rank} (python) [] (most recent call last):\n"
        '    (Python) File "threading.py", line 1002, in _bootstrap\n        self._bootstrap_inner()\n'
        '    (Python) File "threading.py", line 324, in wait\n        waiter.acquire()\n\n'
        f"Traceback for thread {9000 + state.rank} (python) [Has the GIL] (most recent call last):\n{places}\n"
    )


NATIVE = {
    "collective": ["?? () from /lib/libc.so.6", "ncclGroupEnd () from /opt/lib/libnccl.so.2"],
    "device": ["?? () from /lib/libcuda.so.1", "cudaStreamSynchronize () from /opt/lib/libcudart.so.12"],
    "elsewhere": ["__GI___libc_read (fd=7, nbytes=4096) at ../sysdeps/unix/sysv/linux/read.c:26"],
}


def gdb(state: RankState, stands: str) -> str:
    """What `gdb -p PID -batch -ex "thread apply all bt" -ex "thread apply 1 py-bt"` prints of one rank."""
    pid = 9000 + state.rank
    head = f'Thread 1 (Thread 0x7f27addffb80 (LWP {pid}) "python"):\n'
    native = "".join(f"#{n}  0x00007f27{n:08x} in {text}\n" for n, text in enumerate(NATIVE[stands]))
    python = "".join(
        f'  File "{file}", line {line}, in {name}\n    {name}(batch)\n'
        for name, file, line in frames_of(state, stands)
    )
    return (
        f"[New LWP {9100 + state.rank}]\n[Thread debugging using libthread_db enabled]\n\n"
        f'Thread 2 (Thread 0x7f27ad09c6c0 (LWP {9100 + state.rank}) "python"):\n'
        "#0  0x00007f27ad6ed545 in __futex_abstimed_wait_common64 () at ./nptl/futex-internal.c:57\n\n"
        f"{head}{native}#9  0x00007f27ada508e4 in _PyEval_EvalFrameDefault () at Python/ceval.c:5376\n\n"
        f"{head}Traceback (most recent call first):\n{python}[Inferior 1 (process {pid}) detached]\n"
    )
