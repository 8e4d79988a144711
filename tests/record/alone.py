"""Ranks on Gloo in processes of their own, which a test may kill."""

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from tests.ranks.pool import RankPool
from tests.ranks.program import Done


def run_ranks(pool: RankPool, work: Callable[[int, Path], None], size: int, folder: Path) -> list[Done]:
    """How each rank ended that called `work(rank, folder)` in a process group."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [pool.start(join, work, rank, size, folder) for rank in range(size)]
    return [job.wait() for job in jobs]


def join(work: Callable[[int, Path], None], rank: int, size: int, folder: Path) -> None:
    """What one rank does."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    limit = dt.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    work(rank, folder)


def wait_for(path: Path, seconds: float = 60.0) -> None:
    """Return when a file is there."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)
