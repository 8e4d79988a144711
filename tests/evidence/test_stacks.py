"""Stacks: the thread that runs the program, its rank, and the odd one out."""

import json

import pytest

from tests.evidence.other_channels import faulthandler, py_spy
from tests.evidence.stuck_job import RankState
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.stacks import is_stacks, stacks_in


def stacks(stands, printed=py_spy, samples=2):
    """The stacks of ranks, by where they stand."""
    return tuple(
        stack
        for rank, where in enumerate(stands)
        for stack in stacks_in(f"rank{rank}.txt", printed(RankState(rank, []), where).encode() * samples)
    )


def judged(stands, **more):
    return judge_evidence(Bundle(stacks=stacks(stands, **more)))[0]


@pytest.mark.parametrize("printed", [py_spy, faulthandler])
def test_the_main_thread_is_found(printed):
    (stack,) = stacks(["elsewhere"], printed, samples=1)
    assert stack.rank == 0
    assert stack.frames[0] == "dataset.py:77 read_shard"
    assert stack.activity == "elsewhere"


@pytest.mark.parametrize("printed", [py_spy, faulthandler])
def test_the_rank_outside_a_collective_is_named(printed):
    finding = judged(["collective", "collective", "elsewhere", "collective"], printed=printed)
    assert [(c.rank, c.kind) for c in finding.culprits] == [(2, "host_stalled")]
    assert finding.culprits[0].stack[0] == "dataset.py:77 read_shard"


def test_one_sample_names_nobody():
    """It may be of a job that moves."""
    finding = judged(["collective", "collective", "elsewhere", "collective"], samples=1)
    assert finding.culprits == ()
    assert finding.candidates == (2,)
    assert "twice" in finding.to_decide


@pytest.mark.parametrize(
    "stands",
    [
        ["collective"] * 4,
        ["collective", "device", "collective", "collective"],
        ["collective", "elsewhere"],
        ["elsewhere", "elsewhere", "collective", "collective"],
        ["elsewhere"] * 4,
    ],
)
def test_others_are_left_open(stands):
    assert judged(stands).culprits == ()


def test_two_odd_ranks_are_candidates():
    finding = judged(["collective"] * 10 + ["elsewhere"] * 2)
    assert finding.culprits == ()
    assert finding.candidates == (10, 11)


def test_many_processes_in_one_file():
    text = "".join(f"== rank {rank} ==\n{py_spy(RankState(rank, []), 'collective')}\n" for rank in range(5))
    assert is_stacks(text.encode())
    assert [stack.rank for stack in stacks_in("all", text.encode())] == [0, 1, 2, 3, 4]


def test_processes_of_unknown_rank_name_nobody():
    text = "".join(py_spy(RankState(r, []), "elsewhere" if r == 2 else "collective") for r in range(4))
    found = tuple(stacks_in("all", text.encode()))
    assert [stack.rank for stack in found] == [None] * 4
    assert judge_evidence(Bundle(stacks=found))[0].culprits == ()


def test_a_moving_rank_is_not_odd():
    """Two samples of it differ: it is busy."""
    busy = py_spy(RankState(2, []), "elsewhere") + py_spy(RankState(2, []), "elsewhere").replace("77", "90")
    parts = [s for s in stacks(["collective"] * 4, samples=2) if s.rank != 2] + stacks_in(
        "rank2.txt", busy.encode()
    )
    assert judge_evidence(Bundle(stacks=tuple(parts)))[0].culprits == ()


def test_json_of_py_spy_is_read():
    frames = [
        {"name": "read_shard", "filename": "dataset.py", "line": 77},
        {"name": "<module>", "filename": "t.py", "line": 2},
    ]
    threads = [
        {"pid": 9, "thread_id": 1, "thread_name": "pin", "active": False, "frames": [{"name": "wait"}]},
        {"pid": 9, "thread_id": 2, "thread_name": "MainThread", "active": True, "frames": frames},
    ]
    text = json.dumps(threads).encode()
    assert is_stacks(text)
    (stack,) = stacks_in("rank3.json", text)
    assert (stack.rank, stack.frames[0]) == (3, "dataset.py:77 read_shard")


def test_a_log_with_a_traceback_is_no_stack_file():
    assert not is_stacks(b"[rank0]: step 5 loss 3\n" * 50 + b'  File "a.py", line 3, in f\n')


AS_MODULE = '  File "<frozen runpy>", line 88 in _run_code\n  File "<frozen runpy>", line 198 in _run_module_as_main\n'


def by_a_thread(where, begun=""):
    """What faulthandler prints where a thread of the program asks for the dump, twice."""
    place = {"collective": "/lib/torch/distributed/distributed_c10d.py", "elsewhere": "/job/dataset.py"}[
        where
    ]
    function = {"collective": "all_reduce", "elsewhere": "read_shard"}[where]
    dump = (
        "Current thread 0x00007f00be7fc6c0 (most recent call first):\n"
        '  File "/job/watch.py", line 27 in dump\n'
        '  File "/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
        "Thread 0x00007f00ec848b80 (most recent call first):\n"
        f'  File "{place}", line 40 in {function}\n  File "/job/train.py", line 74 in <module>\n{begun}'
    )
    return dump.encode() * 2


@pytest.mark.parametrize("begun", ["", AS_MODULE])
def test_a_dump_by_another_thread_shows_the_main_one(begun):
    found = [
        stack
        for rank in range(4)
        for stack in stacks_in(
            f"rank{rank}.txt", by_a_thread("elsewhere" if rank == 2 else "collective", begun)
        )
    ]
    assert [(stack.rank, stack.sample) for stack in found] == [(r, n) for r in range(4) for n in range(2)]
    finding = judge_evidence(Bundle(stacks=tuple(found)))[0]
    assert [(c.rank, c.kind) for c in finding.culprits] == [(2, "host_stalled")]


TRAINS = ["train_step (train.py:130)", "<module> (train.py:200)"]
REDUCES = ["all_reduce (torch/distributed/distributed_c10d.py:2810)", *TRAINS]
READS = [
    "poll (libc.so.6)",
    "select (selectors.py:415)",
    "_get_data (torch/utils/data/dataloader.py:1284)",
    *TRAINS,
]
RUNS_BACKWARD = [
    "_engine_run_backward (torch/autograd/graph.py:823)",
    "backward (torch/_tensor.py:581)",
    *TRAINS,
]
GATHERS = [
    "all_gather_into_tensor (torch/distributed/distributed_c10d.py:3709)",
    "backward (torch/autograd/function.py:307)",
]
DRIVER = ["clock_gettime (libc.so.6)", *(f"0x7fe9{number:03x} (libcuda.so.1)" for number in range(14))]
ITEM = [*DRIVER, "cudaStreamSynchronize (libcudart.so.12)", "THPVariable_item (libtorch_python.so)", *TRAINS]


def process(main, *others):
    """What py-spy prints of one process, twice: its main thread, and threads that no module of Python began."""
    threads = [('Thread 9 (idle): "MainThread"', main), *(("Thread 10 (idle)", frames) for frames in others)]
    text = "".join(head + "\n" + "".join(f"    {frame}\n" for frame in frames) for head, frames in threads)
    return f"Process 9: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\n{text}".encode() * 2


def judged_processes(*printed):
    found = [stack for rank, text in enumerate(printed) for stack in stacks_in(f"rank{rank}.txt", text)]
    return judge_evidence(Bundle(stacks=tuple(found)))[0]


@pytest.mark.parametrize(
    "waits",
    [
        process(RUNS_BACKWARD, GATHERS),
        process(RUNS_BACKWARD),
        process(["backward (torch/autograd/__init__.py:200)", *TRAINS]),
        process(ITEM),
        process([*DRIVER, "cudaStreamSynchronize (libcudart.so.12)", *REDUCES]),
    ],
)
def test_a_backward_pass_and_its_device_wait_for_others(waits):
    """The rank that stopped left no stacks, or is seen in its loader: the waiting one is never the odd one."""
    others = [process(REDUCES)] * 6
    assert judged_processes(waits, *others).culprits == ()
    finding = judged_processes(waits, *others, process(READS))
    assert [culprit.rank for culprit in finding.culprits] == [7], finding.reason


def test_a_backward_pass_that_reads_is_odd():
    """Its engine's thread recomputes a layer that reads a file."""
    reads = ["load (offload.py:12)", "backward (torch/utils/checkpoint.py:300)"]
    finding = judged_processes(process(RUNS_BACKWARD, reads), *[process(REDUCES)] * 6)
    assert [culprit.rank for culprit in finding.culprits] == [0], finding.reason
    assert finding.culprits[0].stack[0] == "offload.py:12 load"
