"""One rank of a real job on Gloo (four ranks, two pairs) that hangs, and leaves a dump, two stacks and its log.

`python -m tests.hang.partial_job RANK KIND FOLDER STALL_S TIMEOUT_S`: it dumps after STALL_S, before the time-out.
"""

import datetime as dt
import faulthandler
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.plain_pickle import loads_plain

WORLD, STEPS, LAST = 4, 7, 4
PAIRS = ([0, 1], [2, 3])
GUILTY = {"loader": 2, "raises": 1, "uneven": 3, "leaves": 0, "order": 2, "size": 3}
"""What goes wrong in step LAST or behind the loop, and on which rank."""


def dump(rank: int, folder: Path) -> None:
    """The recorder's pickle with the members of groups, which Gloo leaves out, and the stacks of all threads twice."""
    import torch
    import torch.distributed as dist

    world = dist.distributed_c10d._world
    content = loads_plain(torch._C._distributed_c10d._dump_fr_trace())
    content["pg_config"] = {
        (name := world.pg_names[group]): {"name": name, "desc": group.group_desc, "ranks": str(sorted(ranks))}
        for group, ranks in world.pg_group_ranks.items()
        if group in world.pg_names
    }
    (folder / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    with (folder / "stacks" / f"rank_{rank}.txt").open("w") as file:
        for _ in range(2):
            faulthandler.dump_traceback(file, all_threads=True)
            time.sleep(1.0)


class Trainer:
    """A rank that trains; `here` says whether this rank goes wrong now."""

    def __init__(self, rank: int, kind: str, groups: list[Any]) -> None:
        self.rank, self.kind = rank, kind
        self.pair, self.replicas, self.late = groups

    def here(self, kind: str, step: int = LAST) -> bool:
        """Whether this rank goes wrong in this way."""
        return (self.kind, self.rank, step) == (kind, GUILTY[kind], LAST)

    def reduce(self, size: int, group: Any) -> None:
        """Sum a tensor of so many elements."""
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(size), group=group)

    def read_batch(self, step: int) -> None:
        """The loader of a rank may never come back."""
        if self.here("loader", step):
            time.sleep(3600)

    def forward(self, step: int) -> None:
        """Two sums of the pair."""
        if self.here("raises", step):
            raise RuntimeError("shape '[4, 512]' is invalid for input of size 1024")
        for _ in range(2):
            self.reduce(24 if self.here("size", step) else 16, self.pair)

    def backward(self, step: int) -> None:
        """A sum of all replicas, and one of the pair."""
        calls: list[Callable[[], None]] = [
            lambda: self.reduce(64, self.replicas),
            lambda: self.reduce(16, self.pair),
        ]
        for call in reversed(calls) if self.here("order", step) else calls:
            call()

    def train(self) -> None:
        """All steps, then the evaluation's first sum."""
        for step in range(LAST if self.here("uneven") else STEPS):
            self.read_batch(step)
            self.forward(step)
            self.backward(step)
        if self.here("leaves"):
            os._exit(0)
        self.reduce(1, self.late)


def main(rank: int, kind: str, folder: Path, stall_s: float, timeout_s: float) -> None:
    """Set up the groups and train, until the process is killed from outside."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "400"
    import torch.distributed as dist

    limit = dt.timedelta(seconds=timeout_s)
    where = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=WORLD, timeout=limit)
    everybody = list(range(WORLD))
    replicas = dist.new_group(everybody, group_desc="DATA_PARALLEL_GROUP", timeout=limit)
    pairs = [dist.new_group(p, group_desc="TENSOR_MODEL_PARALLEL_GROUP", timeout=limit) for p in PAIRS]
    late = dist.new_group(everybody, group_desc="EVALUATION", timeout=limit)
    timer = threading.Timer(stall_s, dump, (rank, folder))
    timer.daemon = True
    timer.start()
    try:
        Trainer(rank, kind, [pairs[rank // 2], replicas, late]).train()
    except RuntimeError:
        for line in traceback.format_exc().splitlines():
            print(f"[rank{rank}]: {line}", file=sys.stderr, flush=True)
    time.sleep(3600)  # another thread of the program, such as a loader's feeder, keeps the process alive


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
