"""Limits of one process by control groups: less processor time than it uses, less memory than it holds.

Both are those of containers. They need root and the kernel's control groups of version 1.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup")
PERIOD_US: Final = 100_000
_WATCHED_S: Final = 2.0
_SWAP_BYTES: Final = 1 << 30
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def unavailable(*, swap: bool = False) -> str:
    """Return why no process can be limited so here, or nothing."""
    for name in ("cpu", "memory"):
        if not os.access(GROUPS / name / "cgroup.procs", os.W_OK):
            return f"{GROUPS / name} is not writable"
    return "no swapon" if swap and not (shutil.which("swapon") and shutil.which("mkswap")) else ""


@contextmanager
def quota(share: float, pid: int) -> Iterator[None]:
    """Allow a process `share` of the processor time that it uses, in each period of 100 ms."""
    used = _processor_s(pid)
    time.sleep(_WATCHED_S)
    rate = (_processor_s(pid) - used) / _WATCHED_S
    with _group("cpu", f"outside{pid}") as group:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(max(1000, int(share * rate * PERIOD_US))))
        (group / "cgroup.procs").write_text(str(pid))
        yield


def _processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True)
class Member:
    """Called in a process: it joins a group of the memory controller, so that what it writes counts there."""

    group: Path

    def __call__(self) -> None:
        """Join; raises OSError where the kernel refuses."""
        (self.group / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def memory_group(swap: Path) -> Iterator[Path]:
    """Yield a group of the memory controller, beside a file that takes its pages, as long as the block lasts."""
    with swap.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _SWAP_BYTES)
    swap.chmod(0o600)
    try:
        subprocess.run(["mkswap", str(swap)], check=True, capture_output=True)
        subprocess.run(["swapon", str(swap)], check=True, capture_output=True)
        try:
            with _group("memory", f"outside{os.getpid()}") as group:
                (group / "memory.swappiness").write_text("100")
                yield group
        finally:
            subprocess.run(["swapoff", str(swap)], check=True, capture_output=True)
    finally:
        swap.unlink()


def group_of(pid: int) -> Path:
    """Return the group of the memory controller that a process is in."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    (name,) = (line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1].split(","))
    return GROUPS / "memory" / name.lstrip("/")


def tighten(share: float, group: Path) -> None:
    """Allow the processes of a memory group `share` of what they hold at present, in memory and swapped out."""
    held = int((group / "memory.memsw.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(int(share * held)))


def release(group: Path) -> None:
    """Take the limit from a memory group."""
    (group / "memory.limit_in_bytes").write_text("-1")


@contextmanager
def _group(controller: str, name: str) -> Iterator[Path]:
    """A control group; its processes return to the root's when the block ends."""
    group = GROUPS / controller / name
    group.mkdir()
    try:
        yield group
    finally:
        _empty(group, GROUPS / controller)


def _empty(group: Path, root: Path) -> None:
    """Move all processes of a group to the root's, and remove it, as soon as the kernel lets it go."""
    for _ in range(100):  # a process that was killed leaves its group when it is gone
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                (root / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
