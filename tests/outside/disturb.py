"""What disturbs one rank of a real run from outside: the trainer knows nothing of it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

from tests.outside import limits, network, slow_disk
from tests.outside.garbage import Collector
from tests.outside.job import RANKS, VICTIM, Job, Setting, on_core_of
from tests.ranks.pool import RankPool

BURNERS = 6
"""Processes that compete for the core of a rank: so many that a rank that mostly sleeps gets less than it needs."""
DISK_MS = 25.0
QUOTA, MEMORY_LEFT = 0.7, 0.5
"""The shares of its processor time and of its memory that a rank is allowed."""
HEAP, COLLECTED_S = 1_500_000, 1.0
TIGHTENED_S = 0.2
LINK_MS, LINK_LOSS = 4.0, 0.01
_SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(20000))"
_STREAM = """import os
import numpy
parent, here, there = os.getppid(), numpy.zeros(1 << 25), numpy.zeros(1 << 25)
while os.getppid() == parent: there[:] = here"""
"""Copies 256 MB again and again, far more than caches hold."""
_GDB = ("gdb", "-q", "-nx", "-batch", "-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off")

Act = Callable[[int], contextlib.AbstractContextManager[None]]
"""Disturbs the process of this number as long as the block lasts."""
Prepare = Callable[[RankPool, Path, Path], contextlib.AbstractContextManager[Setting]]
"""(pool, folder of the run, folder of the data) → how the ranks of the run start."""


@contextmanager
def _undisturbed(*_: object) -> Iterator[None]:
    yield


@contextmanager
def _plain(*_: object) -> Iterator[Setting]:
    yield Setting()


@dataclass(frozen=True)
class Disturbance:
    """One cause: the answers that are right, the ranks it strikes, and how it is made."""

    name: str
    causes: tuple[str, ...]
    act: Act = _undisturbed
    prepare: Prepare = _plain
    baseline: Prepare = _plain
    """The same start without the disturbance, for the runs that it is compared with."""
    unavailable: Callable[[], str] = str
    ranks: tuple[int, ...] = (VICTIM,)


@contextmanager
def _repeated(action: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call `action` once a period in a thread until the block ends; its error is raised then."""
    over, failed = Event(), list[BaseException]()

    def repeat() -> None:
        begin = time.monotonic()
        while not over.wait(max(0.0, begin + period_s - time.monotonic())):
            begin = time.monotonic()
            try:
                action()
            except ProcessLookupError:
                return
            except (OSError, subprocess.SubprocessError) as error:
                failed.append(error)
                return

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise RuntimeError(f"the disturbance failed: {failed[0]}")


def stopped(stop_ms: float, period_ms: float, pid: int) -> contextlib.AbstractContextManager[None]:
    """Stop and continue a process by signals: `stop_ms` of each `period_ms`."""

    def pause() -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(stop_ms / 1e3)
        finally:
            os.kill(pid, signal.SIGCONT)

    return _repeated(pause, period_ms / 1e3)


@contextmanager
def competing(count: int, pid: int, code: str = _SPIN) -> Iterator[None]:
    """Run so many processes on the core of a process that never sleep: they run this `code`."""
    core = os.sched_getaffinity(pid)
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        for burner in burners:
            os.sched_setaffinity(burner.pid, core)
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@contextmanager
def niced(pid: int) -> Iterator[None]:
    """Give a process, with all its threads, the lowest priority, beside one process that wants its core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)
    with competing(1, pid):
        yield


def debugged(pid: int) -> contextlib.AbstractContextManager[None]:
    """Attach a debugger for a second, every four seconds."""
    command = [*_GDB, "-p", str(pid), "-ex", "shell sleep 1", "-ex", "detach"]
    return _repeated(partial(_debug, command), 4.0)


def _debug(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode or "No symbol" in done.stderr or "ptrace:" in done.stderr:
        raise OSError(done.stderr[-200:])


@contextmanager
def _disk(delay_ms: float, _: RankPool, __: Path, data: Path) -> Iterator[Setting]:
    yield Setting(before={VICTIM: slow_disk.SlowFolder(data, delay_ms)})


@contextmanager
def _link(delay_ms: float, loss: float, pool: RankPool, folder: Path, _: Path) -> Iterator[Setting]:
    folder.mkdir(parents=True, exist_ok=True)
    with network.late_link(pool, folder.parent, delay_ms, loss) as (namespace, here, there):
        names = {r: {"GLOO_SOCKET_IFNAME": there if r == VICTIM else here} for r in range(RANKS)}
        yield Setting({VICTIM: namespace}, names, network.HERE)


def _no_gdb() -> str:
    return "" if shutil.which("gdb") else "no gdb"


@contextmanager
def _collector(objects: int, *_: object) -> Iterator[Setting]:
    yield Setting(before={VICTIM: Collector(objects, COLLECTED_S)})


@contextmanager
def _in_group(_: RankPool, folder: Path, __: Path) -> Iterator[Setting]:
    folder.mkdir(parents=True, exist_ok=True)
    with limits.memory_group(folder.parent / "swap") as group:
        yield Setting(before={VICTIM: limits.Member(group)})


@contextmanager
def _pressed(pid: int) -> Iterator[None]:
    group = limits.group_of(pid)
    with _repeated(partial(limits.tighten, MEMORY_LEFT, group), TIGHTENED_S):
        yield
    limits.release(group)


_STOPS = ("host_stall",)
_BUSY = ("cpu_contention",)

DISTURBANCES = (
    Disturbance("stopped 60 of 300 ms", _STOPS, partial(stopped, 60, 300)),
    Disturbance("stopped 200 of 1000 ms", _STOPS, partial(stopped, 200, 1000)),
    Disturbance("stopped 30 of 100 ms", _STOPS, partial(stopped, 30, 100)),
    Disturbance("quota of 70 %", _STOPS, partial(limits.quota, QUOTA), unavailable=limits.unavailable),
    Disturbance("processes on its core", _BUSY, partial(competing, BURNERS), ranks=tuple(on_core_of(VICTIM))),
    Disturbance(
        "copies of memory on its core",
        (*_BUSY, "memory"),
        partial(competing, BURNERS, code=_STREAM),
        ranks=tuple(on_core_of(VICTIM)),
    ),
    Disturbance("nice", _BUSY, niced),
    Disturbance("debugger", _STOPS, debugged, unavailable=_no_gdb),
    Disturbance(
        "slow disk",
        ("dataloader",),
        prepare=partial(_disk, DISK_MS),
        baseline=partial(_disk, 0.0),
        unavailable=slow_disk.unavailable,
    ),
    Disturbance(
        "link late and lossy",
        ("network",),
        prepare=partial(_link, LINK_MS, LINK_LOSS),
        baseline=partial(_link, 0.0, 0.0),
        unavailable=network.unavailable,
    ),
    Disturbance(
        "garbage collected", _STOPS, prepare=partial(_collector, HEAP), baseline=partial(_collector, 0)
    ),
    Disturbance(
        "memory pressure",
        (*_STOPS, "memory"),
        _pressed,
        prepare=_in_group,
        baseline=_in_group,
        unavailable=partial(limits.unavailable, swap=True),
    ),
)


def disturb(job: Job, disturbance: Disturbance) -> contextlib.AbstractContextManager[None]:
    """Disturb the job's victim as long as the block lasts."""
    return disturbance.act(job.ranks[VICTIM].pid)
