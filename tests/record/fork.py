"""Forks a few ranks on Gloo for one test and says how each ended."""

import datetime as dt
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def run_ranks(
    work: Callable[[int, Path], None], size: int, folder: Path, timeout_s: float = 60.0
) -> list[int]:
    """Exit status of each rank (negative: the signal)."""
    folder.mkdir(parents=True, exist_ok=True)
    pids = [_fork(work, rank, size, folder, timeout_s) for rank in range(size)]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _fork(work, rank: int, size: int, folder: Path, timeout_s: float) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=dt.timedelta(seconds=timeout_s)
        )
        work(rank, folder)
        code = 0
    except Exception:  # noqa: BLE001 - the parent reads it
        (folder / f"error{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def wait_for(path: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)
