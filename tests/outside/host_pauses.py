"""`python -m tests.outside.host_pauses`: a stock torch job on Gloo whose host pauses for a known reason.

Nothing of `reftrain`, no Python stacks: the traces hold what users record by default. A trace then shows a pause as
time without an event. Garbage collection must not be named for a pause of another kind.
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import tracekit
from tests.outside.disturb import stopped

RANKS, VICTIM, LAYERS, WARM_UP, STEPS = 3, 1, 16, 3, 12
HEAP, KEPT, MADE = 400_000, 100_000, 2_000
"""Lists of a rank's heap, the most lists that its hooks keep, and the lists that they make a layer."""
PAUSE_S, STOP_MS, PERIOD_MS = 0.06, 120, 400
EVERY = 23
"""Layers between two pauses that move through the step as a count of allocations does."""


class Pausing:
    """Called after each layer of a rank; each method is a reason for pauses."""

    def __init__(self, kind: str, rank: int) -> None:
        self.calls = 0
        struck = rank == VICTIM or kind == "collected on all ranks"
        self.act: Callable[[], object] = partial(KINDS[kind], self) if struck else lambda: None
        if struck and kind.startswith("collected"):
            self.heap: list[Any] = [[[]] for _ in range(HEAP // 2 + rank * HEAP // 8)]
            self.kept: deque[Any] = deque(maxlen=KEPT)
            gc.collect()
        if struck and kind == "lock held":
            numbers = [(7919 * n) % 1_000_003 for n in range(400_000)]
            Thread(target=self._sorts, args=(numbers,), daemon=True).start()

    def __call__(self, *_: object) -> None:
        """Pause where the kind does so after this layer."""
        self.calls += 1
        self.act()

    def _allocates(self) -> None:
        self.kept.extend([[n] for n in range(MADE)])

    def _collects(self) -> None:
        if self.calls % LAYERS == 0:
            gc.collect()

    def _sleeps_at_one_place(self) -> None:
        if self.calls % LAYERS == LAYERS // 2:
            time.sleep(PAUSE_S)

    def _sleeps_at_changing_places(self) -> None:
        if self.calls % EVERY == 0:
            time.sleep(PAUSE_S)

    def _reads(self) -> None:
        if self.calls % LAYERS == LAYERS // 2:
            subprocess.run(["sleep", str(PAUSE_S)], check=True)

    def _reads_values_back(self) -> None:
        import torch

        for value in torch.ones(1500):
            value.item()

    def _nothing(self) -> None:
        pass

    def _sorts(self, numbers: list[int]) -> None:
        while True:
            time.sleep(PERIOD_MS / 1e3)
            sorted(numbers)  # one call of C, which keeps the interpreter's lock


KINDS: dict[str, Callable[[Pausing], None]] = {
    "none": Pausing._nothing,
    "collected on one rank": Pausing._allocates,
    "collected on all ranks": Pausing._allocates,
    "collected by the program": Pausing._collects,
    "sleeps at one place": Pausing._sleeps_at_one_place,
    "sleeps at changing places": Pausing._sleeps_at_changing_places,
    "waits for a child process": Pausing._reads,
    "reads values back": Pausing._reads_values_back,
    "lock held": Pausing._nothing,
    "stopped": Pausing._nothing,
}


def train(kind: str, rank: int, folder: Path) -> None:
    """Train as one rank, and write its trace."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()) for _ in range(LAYERS)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    pausing = Pausing(kind, rank)
    for layer in layers:
        layer.register_forward_hook(pausing)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        model(torch.randn(256, 256)).square().mean().backward()
        optimiser.step()

    for _ in range(WARM_UP):
        step()
    once = schedule(wait=0, warmup=0, active=STEPS, repeat=1)
    path = str(folder / "trace" / f"rank{rank}.json")
    settings: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "schedule": once, "record_shapes": True}
    with profile(**settings, on_trace_ready=lambda ready: ready.export_chrome_trace(path)) as recorded:
        (folder / f"begun{rank}").touch()
        for _ in range(STEPS):
            step()
            recorded.step()
    dist.destroy_process_group()


def run(kind: str, folder: Path) -> None:
    """Start the ranks of a job, stop one of them at times where the kind says so, and wait; raises on a failure."""
    (folder / "trace").mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        __spec__.name if __spec__ else __name__,
        "--only",
        kind,
        "--out",
        str(folder),
    ]
    ranks = [subprocess.Popen(command, env=os.environ | {"RANK": str(rank)}) for rank in range(RANKS)]
    try:
        while not (folder / f"begun{VICTIM}").exists() and all(rank.poll() is None for rank in ranks):
            time.sleep(0.01)
        with stopped(STOP_MS, PERIOD_MS, ranks[VICTIM].pid) if kind == "stopped" else nullcontext():
            if sum(rank.wait() != 0 for rank in ranks):
                raise RuntimeError(f"a rank of {kind!r} failed")
    finally:
        for rank in ranks:
            rank.kill()


def answered(folder: Path) -> str:
    """Return the cells of a table: verdict, cause, ranks, and the mechanisms with their shares."""
    finding = tracekit.slowrank(tracekit.load([str(folder / "trace")]))
    first = finding.suspects[:1]
    found = [f"{m.name} {m.share:.0%}{' (sure)' if m.sure else ''}" for s in first for m in s.mechanisms]
    ranks = ", ".join(str(s.rank) for s in finding.suspects)
    return f"{finding.verdict} | {finding.cause or ''} | {ranks} | {', '.join(found)}"


def main() -> int:
    """Run each kind, and print a row of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside.host_pauses", description=__doc__)
    parser.add_argument("--only", default="", choices=("", *KINDS), help="one kind of pauses")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each kind")
    parser.add_argument("--out", type=Path, help="folder that keeps the runs")
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options.only, int(os.environ["RANK"]), options.out)
        return 0
    print("| pauses | load | verdict | cause | ranks | mechanisms |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="host-pauses-") as scratch:
        for number in range(options.rounds):
            for kind in KINDS:
                if options.only in {"", kind}:
                    folder = (options.out or Path(scratch)) / f"{kind.replace(' ', '_')}_{number}"
                    if not (folder / "trace").exists():
                        run(kind, folder)
                    print(f"| {kind} | {os.getloadavg()[0]:.1f} | {answered(folder)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
