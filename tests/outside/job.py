"""A real training run of four ranks, each a process of its own that can be disturbed from outside.

Computing is emulated in short pieces beside little real work, so that ranks that share a core rarely need it together.
"""

import contextlib
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.ranks.patience import patience
from tests.ranks.pool import RankPool

RANKS = 4
VICTIM = 1
WARM_UP, TRACED = 2, 8
_MODEL = ("model.layers=4", "model.ffn_dim=256", "model.vocab_size=260")
_DATA = (
    "data.seq_len=64",
    "data.batch_size=8",
    "data.source=tokens",
    "data.eos=2",
    "numerics.attention=documents",
)
_COMPUTE = ("run.compute=emulated", "run.emulated_gflops=0.3", "evidence.trace_nested=false")


@dataclass(frozen=True)
class Setting:
    """How the ranks of a run start: functions that a rank calls first, and variables of its environment."""

    before: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    address: str = "127.0.0.1"


def core_of(rank: int) -> int:
    """Return the core to which a rank is pinned: ranks are distributed evenly over the cores of this process."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[rank % len(cores)]


def on_core_of(rank: int) -> list[int]:
    """Return the ranks that share the core of `rank`."""
    return [other for other in range(RANKS) if core_of(other) == core_of(rank)]


@dataclass(frozen=True)
class Start:
    """Called in a rank's process before it trains: pins it, and does what the run's setting asks of this rank."""

    core: int
    more: Callable[[], None] | None

    def __call__(self) -> None:
        """Pin this process, then call `more`."""
        os.sched_setaffinity(0, {self.core})
        if self.more is not None:
            self.more()


class Job:
    """Four ranks under way in `folder`; raises RuntimeError from `finish` where a rank failed."""

    def __init__(
        self, pool: RankPool, folder: Path, data: Path, mesh: str, setting: Setting, *more: str
    ) -> None:
        self.folder = folder
        port = str(_free_port())
        self.ranks = [
            pool.reftrain(
                *("run", "--preset", "tiny", "--mesh", mesh, "--steps", WARM_UP + TRACED, "--quiet"),
                *("--trace", f"{WARM_UP}:{WARM_UP + TRACED}", "--out", folder),
                *(part for text in (*_MODEL, *_DATA, *_COMPUTE) for part in ("--set", text)),
                *("--set", f"data.files={json.dumps([str(data)])}", *more),
                before=Start(core_of(rank), setting.before.get(rank)),
                environment={
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": setting.address,
                    "MASTER_PORT": port,
                    **setting.environment.get(rank, {}),
                },
            )
            for rank in range(RANKS)
        ]

    def steps_done(self) -> int:
        """Return how many steps the first rank has finished."""
        path = self.folder / "metrics" / "rank0.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def wait_for(self, steps: int, seconds: float) -> bool:
        """Return whether so many steps are finished, after at most so many seconds of a quiet machine."""
        end = time.monotonic() + patience(seconds)
        while self.steps_done() < steps:
            if time.monotonic() > end or not all(alive(rank.pid) for rank in self.ranks):
                return False
            time.sleep(0.02)
        return True

    def finish(self, seconds: float = 60) -> None:
        """Wait until all ranks have written their traces."""
        try:
            for number, rank in enumerate(self.ranks):
                done = rank.wait(patience(seconds))
                if done.returncode:
                    raise RuntimeError(f"rank {number} ended with {done.returncode}: {done.stderr[-400:]}")
        finally:
            self.kill()

    def kill(self) -> None:
        """End all ranks."""
        for rank in self.ranks:
            rank.kill()


def step_ms(folder: Path) -> float:
    """Return the mean time of the traced steps in milliseconds, over steps and ranks."""
    rows = [json.loads(line) for file in (folder / "metrics").glob("*.jsonl") for line in file.open()]
    return statistics.fmean(row["step_s"] * 1e3 for row in rows if row["step"] >= WARM_UP)


def write_data(folder: Path) -> Path:
    """Write a Megatron data set of 32 768 short documents, once; return the path of its tokens."""
    if (folder / "tokens.idx").exists():
        return folder / "tokens.bin"
    rng = np.random.default_rng(1)
    lengths = rng.integers(8, 40, 32_768).astype("<i4")
    tokens = rng.integers(3, 256, int(lengths.sum())).astype("<u2")
    folder.mkdir(parents=True, exist_ok=True)
    tokens.tofile(folder / "tokens.bin")
    count = np.array([len(lengths), len(lengths) + 1], "<u8")
    offsets = (np.cumsum(lengths) - lengths).astype("<i8") * 2
    parts = [np.array([1], "<u8"), np.array([8], "u1"), count, lengths, offsets]
    bounds = np.arange(len(lengths) + 1, dtype="<i8")
    head = b"MMIDIDX\x00\x00" + b"".join(part.tobytes() for part in (*parts, bounds))
    (folder / "tokens.idx").write_bytes(head)
    return folder / "tokens.bin"


def alive(pid: int) -> bool:
    """Return whether a process runs, or is stopped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("", 0))
        return int(held.getsockname()[1])
