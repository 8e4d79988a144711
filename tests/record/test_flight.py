import datetime as dt
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from reftrain.record import flight
from reftrain.record.flight import FlightRecorder, enable
from reftrain.record.flight_dump import complete, oldest_pending_s
from tests.ranks.patience import patience
from tests.record.alone import run_ranks, wait_for

STUCK = 4  # the call that rank 1 does not come to


def _hang(rank, folder):
    """Tensor pairs (0 1)(2 3), pipelines (0 2)(1 3); rank 1 stays away."""
    limit_s = patience(2)
    limit = dt.timedelta(seconds=limit_s)  # of the calls; meeting may take longer on a busy machine
    pipe = [dist.new_group(m, limit, group_desc="mesh_pp") for m in ([0, 2], [1, 3])][rank % 2]
    pair = [dist.new_group(m, limit, group_desc="mesh_tp") for m in ([0, 1], [2, 3])][rank // 2]
    dist.barrier()
    recorder = FlightRecorder(folder / "fr", limit_s, every_s=0.2)
    recorder.start()
    tensor = torch.ones(10, 3)
    try:
        for call in range(STUCK + 2):
            if rank == 1 and call == STUCK:
                wait_for(folder / "seen")
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(tensor, group=pair)
            if rank < 2:
                dist.send(tensor, rank + 2, group=pipe)
            else:
                dist.recv(tensor, rank - 2, group=pipe)
    except RuntimeError:
        (folder / "seen").touch()
        recorder.stop()
        raise


@pytest.fixture(scope="module")
def hang(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hang")
    enable(folder / "fr")
    ended = run_ranks(ranks, _hang, 4, folder)
    assert [done.returncode for done in ended] == [1, -signal.SIGKILL, 1, 1], ended
    return folder / "fr"


def _dump(folder: Path, rank: int):
    return pickle.loads((folder / f"rank_{rank}").read_bytes())


def test_torchfrtrace_names_who_is_missing(hang):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(hang)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "missing ranks: {1}" in said
    assert "recv 1<-0" in said  # the stuck pipeline shows, which Gloo's own recorder leaves out


def test_the_hang_stays_in_the_file_after_the_timeout(hang):
    last = _dump(hang, 0)["entries"][-1]
    assert last["profiling_name"] == "gloo:all_reduce"
    assert last["collective_seq_id"] == STUCK + 1
    assert not last["retired"]
    pending = [e for e in _dump(hang, 2)["entries"] if e["is_p2p"] and not e["retired"]]
    assert [(e["profiling_name"], e["p2p_seq_id"]) for e in pending] == [("gloo:recv 1<-0", STUCK + 1)]


def test_a_killed_rank_leaves_its_last_state(hang):
    entries = _dump(hang, 1)["entries"]
    assert [e["p2p_seq_id"] for e in entries if e["is_p2p"]] == list(range(1, STUCK + 1))
    assert all(e["retired"] for e in entries)
    frame = next(frame for frame in entries[-1]["frames"] if frame["name"] == "_hang")
    assert frame["filename"] == "tests/record/test_flight.py"


def test_groups_are_filled_in(hang):
    groups = {g["ranks"]: g["desc"] for g in _dump(hang, 3)["pg_config"].values()}
    assert groups == {"[0, 1, 2, 3]": "default_pg", "[1, 3]": "mesh_pp", "[2, 3]": "mesh_tp"}


def _entry(seq, *, retired, p2p=False, created=0, group="1"):
    return {
        "process_group": (group, "d"),
        "pg_id": 4,
        "collective_seq_id": seq,
        "retired": retired,
        "is_p2p": p2p,
        "state": "scheduled",
        "time_created_ns": created,
    }


def test_pending_calls_have_no_later_call_in_group():
    second = 1_000_000_000
    dropped = [_entry(1, retired=False, created=second), _entry(2, retired=True, created=2 * second)]
    assert oldest_pending_s(dropped, 9 * second) == 0.0
    stuck = [*dropped, _entry(3, retired=False, created=5 * second)]
    assert oldest_pending_s(stuck, 9 * second) == pytest.approx(4.0)
    assert oldest_pending_s([], 9 * second) == 0.0


def test_complete_orders_and_numbers_all_calls():
    native = {"version": "2.10", "entries": [_entry(1, retired=True, created=5)], "pg_status": {}}
    groups = [{"pg_name": "1", "pg_desc": "mesh_tp", "ranks": [0, 1]}]
    dump = complete(native, [_entry(0, retired=False, p2p=True, created=3)], groups)
    assert [(e["record_id"], e["is_p2p"], e["pg_id"]) for e in dump["entries"]] == [
        (0, True, 4),
        (1, False, 4),
    ]
    assert dump["entries"][1]["state"] == "completed"
    assert dump["pg_config"] == {"1": {"name": "1", "desc": "mesh_tp", "ranks": "[0, 1]"}}
    assert dump["pg_status"]["4"]["last_completed_collective"] == 1


def _forgotten(rank, folder):
    """A rank whose torch forgets to retire two collectives: one of the set-up, one that may be stuck."""
    entries = [_entry(n, retired=n == 2, created=n, group="0") for n in (1, 2)]
    flight._native = lambda: {"version": "2.10", "entries": entries, "pg_status": {}}
    recorder = FlightRecorder(folder / "fr", 6.0, every_s=60.0)
    recorder.start()
    entries.append(_entry(3, retired=False, created=3, group="0"))
    recorder.write()
    recorder.stop(failed=True)


def test_calls_torch_left_unretired_before_recording_have_ended(ranks, tmp_path):
    enable(tmp_path / "fr")
    (done,) = run_ranks(ranks, _forgotten, 1, tmp_path)
    assert done.returncode == 0, done
    dump = _dump(tmp_path / "fr", 0)
    assert [(e["retired"], e["state"]) for e in dump["entries"]] == [
        (True, "completed"),
        (True, "completed"),
        (False, "scheduled"),
    ]
    assert dump["pg_status"]["4"]["last_completed_collective"] == 2


def _full_disk(rank, folder):
    recorder = FlightRecorder(folder / "fr", 6.0, every_s=0.05)
    recorder.start()
    recorder.path = Path("/dev/full/rank_0")
    end = time.monotonic() + 60
    while recorder.error is None:
        assert time.monotonic() < end, "the disk was never full"
        time.sleep(0.02)
    dist.all_reduce(torch.ones(1))  # training goes on
    recorder.stop()


def test_an_unwritable_dump_does_not_end_the_job(ranks, tmp_path):
    enable(tmp_path / "fr")
    (done,) = run_ranks(ranks, _full_disk, 1, tmp_path)
    assert done.returncode == 0, done


def test_nccl_writes_torchs_own_dump_unchanged(tmp_path, monkeypatch):
    """NCCL's recorder holds sends, receives and groups itself; only file names are shortened."""
    entry = {
        "frames": [{"name": "all_reduce", "filename": f"{tmp_path}/train.py", "line": 7}],
        "process_group": ("0", "default_pg"), "collective_seq_id": 3, "profiling_name": "nccl:all_reduce",
        "state": "started", "retired": False, "is_p2p": False, "time_created_ns": 5,
    }  # fmt: skip
    native = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0"}},
        "pg_status": {"0": {}},
        "entries": [entry],
    }
    module = torch._C._distributed_c10d
    monkeypatch.setattr(module, "_dump_nccl_trace", lambda: pickle.dumps(native), raising=False)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "get_rank", lambda: 5)
    monkeypatch.syspath_prepend(tmp_path)
    recorder = FlightRecorder(tmp_path / "fr", 6.0)
    (tmp_path / "fr").mkdir()
    recorder.write()
    found = _dump(tmp_path / "fr", 5)
    assert found["entries"][0].pop("frames") == [{"name": "all_reduce", "filename": "train.py", "line": 7}]
    del native["entries"][0]["frames"]
    assert found == native
