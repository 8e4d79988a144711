"""Rank and host: from content first, then from names in use, never from dates, process ids or local ranks."""

import json

import pytest

import tracekit
from tracekit.ingest.identify import device_of, host_of, rank_of_content, rank_of_name, world_size_of


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_3.json", 3),
        ("rank-3.json.gz", 3),
        ("rank3.json", 3),
        ("Rank03.json", 3),
        ("trace_8_rank_1.json", 1),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("worker0_step_12.1694128201545.pt.trace.json", 0),
        ("worker7.json", 7),
        ("r3.json", 3),
        ("kineto_r12.json.gz", 12),
        ("step5-r3.json", 3),
        ("rank_3_of_8.json", 3),
        ("globalrank5.json", 5),
        ("local_rank0_rank9.json", 9),
        ("trace_20240715.json", None),
        ("host1_4242.1694128201545.pt.trace.json", None),
        ("job-worker-3_4242.1694128201545.pt.trace.json", None),
        ("1074.json", None),
        ("local_rank3.json", None),
        ("dp_rank0_tp_rank1.json", None),
        ("rank1_rank2.json", None),
        ("frank3.json", None),
        ("server3.json", None),
        ("trace.json", None),
    ],
)
def test_rank_of_name(name, rank):
    found, why = rank_of_name(name)
    assert found == rank
    assert bool(why) == (rank is None)


def test_rank_of_folder_name_comes_after_the_file_name():
    assert rank_of_name("trace.json", ["rank_4"])[0] == 4
    assert rank_of_name("rank2.json", ["rank_4"])[0] == 2


@pytest.mark.parametrize(
    ("info", "rank"),
    [
        ({"rank": 3}, 3),
        ({"rank": "3"}, 3),
        ({"rank": -1}, None),
        ({"rank": True}, None),
        ({}, None),
        (7, None),
    ],
)
def test_rank_of_content(info, rank):
    assert rank_of_content({"distributedInfo": info}) == rank


def test_host_and_world_size():
    assert host_of({"host_name": "a.b"}, "x_1.1694128201545.pt.trace.json") == "a.b"
    assert host_of({}, "node-12_4242.1694128201545.pt.trace.json.gz") == "node-12"
    assert host_of({}, "worker0_step_12.1694128201545.pt.trace.json.gz") is None
    assert host_of({}, "rank_3.json") is None
    assert world_size_of({"distributedInfo": {"world_size": 8}}) == 8
    assert world_size_of({"distributedInfo": {"world_size": "8"}}) is None


@pytest.mark.parametrize(
    ("listed", "device"),
    [
        ([{"name": "NVIDIA H100 80GB HBM3"}], "NVIDIA H100 80GB HBM3"),
        ([{"name": "NVIDIA H200"}] * 8, "NVIDIA H200"),
        ([{"name": "NVIDIA H200"}, {"name": "NVIDIA L4"}], ""),
        ([{"name": 7}], ""),
        ([{"id": 0}], ""),
        ([], ""),
        ("NVIDIA H200", ""),
        ([{"name": "H\x1b[2J"}], "H\ufffd[2J"),
        ([{"name": "H" * 300}], "H" * 128),
    ],
)
def test_name_of_the_devices(listed, device):
    assert device_of({"deviceProperties": listed}) == device


@pytest.mark.parametrize(
    ("used", "device"), [({0}, "NVIDIA H200"), ({1}, "NVIDIA L4"), ({0, 1}, ""), ({7}, "")]
)
def test_name_of_the_device_that_was_used(used, device):
    listed = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA L4"}]
    assert device_of({"deviceProperties": listed}, used) == device


def test_a_kept_run_knows_its_devices(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "pid": 0, "tid": 7}
    trace = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"rank": 0, "world_size": 1},
        "traceEvents": [kernel | {"args": {"device": 0, "stream": 7}}],
    }
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    tracekit.load(str(tmp_path / "rank0.json"), out=tmp_path / "run")
    assert [r.device for r in tracekit.load(str(tmp_path / "run")).ranks] == ["NVIDIA H200"]
