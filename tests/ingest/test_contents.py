"""Files that PyTorch's profiler did not write for one rank: merged ones, of other profilers, of several devices."""

import json

import pytest

import tracekit
from tracekit.errors import InputError

KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "pid": 0, "tid": 7}


def mark(number, ts, pid, cat="user_annotation"):
    return {
        "ph": "X",
        "cat": cat,
        "name": f"ProfilerStep#{number}",
        "ts": ts,
        "dur": 50,
        "pid": pid,
        "tid": pid,
    }


def on(device):
    return KERNEL | {"args": {"device": device, "stream": 7}}


def read(folder, events):
    trace = {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(trace))
    return tracekit.load(str(folder / "rank0.json"), out=folder / "run")


@pytest.mark.parametrize("pids", [(11, 12), ("[TP00] 11", "[TP01] 11")])
def test_a_merged_trace_is_refused(tmp_path, pids):
    with pytest.raises(InputError, match="mark step 4 at the same time"):
        read(tmp_path, [on(0), mark(4, 100, pids[0]), mark(4, 110, pids[1])])


@pytest.mark.parametrize(
    "others",
    [
        [mark(4, 200, 11)],  # the same number later, as of a loop that began again
        [mark(5, 110, 12)],
        [mark(4, 110, 0, "gpu_user_annotation")],
        [mark(4, 100, 11, "cpu_op")],  # earlier versions wrote a mark in two categories
    ],
)
def test_marks_of_one_process_are_read(tmp_path, others):
    assert read(tmp_path, [on(0), mark(4, 100, 11), *others]).ranks


def test_a_trace_of_torch_npu_is_refused(tmp_path):
    task = {"ph": "X", "name": "hcom_allReduce__905_0_1", "ts": 5, "dur": 2, "pid": 3, "tid": 1, "args": {}}
    with pytest.raises(InputError, match="trace of torch_npu"):
        read(tmp_path, [mark(4, 1, 11), task])


@pytest.mark.parametrize(("devices", "count"), [((0, 0), None), ((0, 3), 2), ((0, 1, 2, 3), 4)])
def test_several_devices_of_a_process_are_counted(tmp_path, devices, count):
    copy = KERNEL | {"cat": "gpu_memcpy", "name": "Memcpy PtoP", "args": {"device": 9, "stream": 7}}
    run = read(tmp_path, [*map(on, devices), copy])
    found = [q.count for q in run.quality if q.kind == "several_devices"]
    assert found == ([count] if count else [])


@pytest.mark.parametrize(("devices", "read"), [((0,), False), ((0, 1), True)])
def test_a_process_with_several_devices_needs_no_rank(tmp_path, devices, read):
    events = [
        event | {"name": name} for event in map(on, devices) for name in ("gemm", "ncclDevKernel_Reduce")
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [mark(4, 1, 11), *events]}))
    if read:
        assert [r.rank for r in tracekit.load(str(tmp_path / "trace.json"), out=tmp_path / "run").ranks] == [
            0
        ]
    else:
        with pytest.raises(InputError, match="its rank is unknown"):
            tracekit.load(str(tmp_path / "trace.json"), out=tmp_path / "run")
