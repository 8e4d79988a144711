"""Stacks of several programs, behind several launchers' prefixes, in files of their own and in logs."""

from itertools import zip_longest

import pytest

from tests.evidence.other_channels import faulthandler, gdb, py_spy, pystack
from tests.evidence.stuck_job import RankState
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.gather import load_evidence
from tracekit.evidence.stacks import is_stacks, stacks_in

PROGRAMS = [py_spy, faulthandler, pystack, gdb]
RANKED = {
    "srun": "{}: ",
    "srun of many tasks": "{:3d}: ",
    "torch": "[rank{}]:",
    "a container's time": "2026-01-01T10:00:0{}.123456Z [rank{}]: ",
}
UNRANKED = {
    "torchrun": "[default{}]:",
    "kubectl": "[pod/train-worker-{}/pytorch] ",
    "stern": "train-worker-{} pytorch ",
    "Ray": "(RayTrainWorker pid=8{}, ip=10.0.0.1) ",
    "Docker Compose": "worker-{}  | ",
}


def mixed(printed, prefix, ranks=8, odd=2):
    """The lines of all ranks in turn, twice, rank `odd` elsewhere."""
    own = []
    for rank in range(ranks):
        text = printed(RankState(rank, []), "elsewhere" if rank == odd else "collective") * 2
        own.append([prefix.format(rank, rank) + line + "\n" for line in text.splitlines()])
    return "".join(line for lines in zip_longest(*own) for line in lines if line)


def answer(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return judge_evidence(load_evidence([str(tmp_path)]))[0]


@pytest.mark.parametrize("printed", PROGRAMS)
@pytest.mark.parametrize("prefix", RANKED.values(), ids=RANKED)
def test_prefixes_of_ranks_part_mixed_stacks(printed, prefix, tmp_path):
    finding = answer(tmp_path, {"all.txt": mixed(printed, prefix)})
    assert [c.rank for c in finding.culprits] == [2], finding.reason
    assert finding.culprits[0].stack[0] == "dataset.py:77 read_shard"


@pytest.mark.quick(12)
@pytest.mark.parametrize("printed", PROGRAMS)
@pytest.mark.parametrize("prefix", [*RANKED.values(), *UNRANKED.values()], ids=[*RANKED, *UNRANKED])
def test_stacks_in_a_log_are_read(printed, prefix, tmp_path):
    steps = "".join(prefix.format(n % 8, n % 8) + f"step {n} loss 3.1\n" for n in range(400))
    finding = answer(tmp_path, {"job.log": steps + mixed(printed, prefix) + steps})
    ranked = prefix in RANKED.values()
    assert [c.rank for c in finding.culprits] == [2] * ranked, finding.reason
    assert ranked or "dataset.py:77 read_shard" in finding.reason


@pytest.mark.parametrize("printed", PROGRAMS)
def test_processes_without_ranks_are_shown(printed, tmp_path):
    files = {
        f"pid{r}.txt": printed(RankState(r, []), "elsewhere" if r == 2 else "collective") for r in range(8)
    }
    finding = answer(tmp_path, files)
    assert (finding.verdict, finding.culprits, finding.candidates) == ("inconclusive", (), ())
    assert "read_shard" in finding.reason
    assert "rank_3.txt" in finding.to_decide


def test_a_task_of_several_processes_is_no_rank(tmp_path):
    """`srun --label torchrun`: the label is the host's."""
    text = "".join(
        f"{rank // 4}: {line}\n"
        for rank in range(16)
        for line in (py_spy(RankState(rank, []), "elsewhere" if rank > 11 else "collective") * 2).splitlines()
    )
    finding = answer(tmp_path, {"job.log": text})
    assert finding.culprits == ()
    assert finding.candidates == ()


def one(text, name="rank_3.txt"):
    (stack,) = stacks_in(name, text.encode())
    return stack


def test_pystack_of_a_core_is_read():
    head = (
        "Using executable found in the core file: /usr/bin/python3\n\nCore file information:\nstate: t zombie: True\n"
        "pid: 9003 ppid: 1 sid: 1\nThe process died due receiving signal SIGSTOP\n"
    )
    stack = one(head + pystack(RankState(3, []), "elsewhere"))
    assert (stack.kind, stack.rank, stack.pid) == ("pystack", 3, 9003)
    assert stack.frames[0] == "dataset.py:77 read_shard"
    assert stack.frames[-1] == "train.py:200 <module>"


def test_a_line_of_source_shows_the_device():
    text = (
        "Traceback for thread 9 (python) [] (most recent call last):\n"
        '    (Python) File "/job/train.py", line 200, in <module>\n        main()\n'
        '    (Python) File "/job/train.py", line 12, in main\n        total += loss.item()\n'
    )
    assert one(text).activity == "device"


NO_NAMES = (
    "#0  0x00007f05daa8fe8b in ?? () from /lib/libpthread.so.0\n#1  0x00007f in ?? () from /opt/libfoo.so\n"
)
LOCKED = "#0  0x00007f05 in __futex_abstimed_wait_common64 () at ./nptl/futex-internal.c:57\n#1  main () at a.c:3\n"
WRAPPED = "#0  0x00007f0 in poll () from /lib/libc.so.6\n#1  0x00007f1 in ?? ()\n   from /lib/libnccl.so.2\n#2  m ()\n"
GROUP = "#0  0x0 in poll () at poll.c:29\n#1  0x1 in c10d::ProcessGroupGloo::RecvWork::wait(long) () from /libt.so\n"
DRIVER = "#0  0x0 in clock_gettime () from /l/libc.so.6\n#1  0x1 in ?? () from /l/libcuda.so.1\n#2  0x2 in main ()\n"
READS = "#0  __GI___libc_read () at read.c:26\n#1  0x1 in Loader::next() () at loader.cc:80\n#2  main () at a.cc:3\n"


@pytest.mark.parametrize(
    ("frames", "activity"),
    [
        (NO_NAMES, "unknown"),
        (LOCKED, "unknown"),
        (WRAPPED, "collective"),
        (GROUP, "collective"),
        (DRIVER, "device"),
        (READS, "elsewhere"),
    ],
)
@pytest.mark.parametrize("head", ["", 'Thread 1 (Thread 0x7f05 (LWP 135332) "train"):\n'])
def test_native_frames_alone(frames, activity, head):
    assert one(head + frames).activity == activity


def test_waves_of_a_gpu_are_left_out():
    wave = (
        "Thread 5 (AMDGPU Wave 1:1:1:1 (0,0,0)/0):\n#0  0x0 in ncclDevKernel_Generic () from file:///a.co\n\n"
    )
    assert one(wave + f"Thread 1 (Thread 0x7f05 (LWP 9)):\n{READS}").activity == "elsewhere"


def test_unreadable_stacks_are_candidates_and_not_named():
    """Rank 5 shows no names, and may be what rank 2 waits for."""
    found = [
        stack
        for rank in range(8)
        for stack in stacks_in(
            f"rank_{rank}.txt",
            (NO_NAMES if rank == 5 else py_spy(RankState(rank, []), "collective")).encode() * 2,
        )
    ]
    finding = judge_evidence(Bundle(stacks=tuple(found)))[0]
    assert (finding.culprits, finding.candidates) == ((), (5,))


@pytest.mark.parametrize("first", [gdb, py_spy])
def test_two_programs_show_one_moment(first):
    """A live job must not be named by one dump of each program."""
    found = [
        stack
        for rank in range(8)
        for printed in (first, pystack)
        for stack in stacks_in(
            f"rank_{rank}.{printed.__name__}",
            printed(RankState(rank, []), "elsewhere" if rank == 2 else "collective").encode(),
        )
    ]
    finding = judge_evidence(Bundle(stacks=tuple(found)))[0]
    assert (finding.culprits, finding.candidates) == ((), (2,))


def test_names_with_classes_wait_too():
    """py-spy shows the class of a method from Python 3.11 on."""
    text = 'Process 9: python t.py\n\nThread 9 (idle): "MainThread"\n    Stage.wait_for_batch (stage.py:7)\n'
    assert one(text + "    <module> (t.py:3)\n").activity == "waiting"


def test_helpers_of_a_rank_are_left_out():
    worker = (
        'Process 10: python t.py\nParent Process 9: python t.py\n\nThread 10 (idle): "MainThread"\n'
        "    get (data.py:4)\n    _worker_loop (torch/utils/data/_utils/worker.py:374)\n    <module> (t.py:3)\n"
    )
    stack = one(py_spy(RankState(3, []), "collective") + "-" * 80 + "\n" + worker)
    assert (stack.rank, stack.activity) == (3, "collective")


def test_local_variables_are_no_frames():
    text = (
        'Process 9: python t.py\nPython v3.11.7 (/usr/bin/python3)\n\nThread 9 (idle): "MainThread"\n'
        '    read (data.py:4)\n        Arguments:\n            shape: Size (2, 3)\n            path: "a (b:1)"\n'
        "    <module> (t.py:3)\n"
    )
    assert one(text).frames == ("data.py:4 read", "t.py:3 <module>")


PAGE = "<!doctype html>\n<head>\n<style>\nbody { margin: 0 }\n</style>\n</head>\n<h1>py-spy</h1>\n"


def test_pages_of_a_debug_server_are_read():
    pages = [py_spy(RankState(rank, []), "collective") for rank in range(4)]
    ranks = [
        f"    <h2>Rank {n}: node:25{n}</h2>\n        <pre>{page}</pre>\n" for n, page in enumerate(pages)
    ]
    text = (PAGE + "".join(ranks)).encode()
    assert is_stacks(text)
    assert [(s.rank, s.activity) for s in stacks_in("page", text)] == [(r, "collective") for r in range(4)]


def test_a_stack_without_a_thread_state_is_read():
    text = 'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "/job/a.py", line 9 in abort\n'
    assert one(text).frames == ("/job/a.py:9 abort",)
