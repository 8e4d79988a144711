"""Worker processes that read untrusted files under bounds on memory and time, and survive a file that breaks them.

A file that makes its worker die (memory, time, a crash in C) is refused with that reason; the worker is replaced and
the rest goes on. A worker that was killed from outside says nothing about its file, which gets a second try. Results
come as they finish; the caller puts them in order. A worker without its parent ends.
"""

import contextlib
import faulthandler
import gc
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Protocol

from tracekit.child_processes import die_with

IDLE_SECONDS: Final = 0.2
"""Time after which a caller hears that workers are still busy."""
_SPENT = 75
"""Exit code of a worker that ended itself after a file took all its memory."""

Handler = Callable[[Any], Any]
"""Does one task in a worker, such as to read a file; returns what the parent is to have."""


@dataclass(frozen=True)
class Limits:
    """Bounds on reading one file, and the reasons for which one is refused.

    seconds: for one file; memory: bytes beyond what the process starts with; chunk: files handed out at once;
    slow, big, broken: the reasons of a file that takes too long, takes too much memory, or kills its worker.
    """

    seconds: float
    memory: int
    chunk: int
    slow: str
    big: str
    broken: str


class Engine(Protocol):
    """Runs tasks in processes of this machine, or on a cluster."""

    def __call__(
        self,
        tasks: Sequence[Any],
        make_handler: Callable[[Path], Handler],
        folder: Path,
        limits: Limits,
        idle: Callable[[], None],
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) of `make_handler(place)(task)` for each of `tasks`, as they finish.

        What a handler writes to files in its `place` lies in `folder` when its result comes. limits, idle: as for
        `do_all`. A task is done again by another worker if its worker was lost.
        """


def on_this_machine(jobs: int, method: str) -> Engine:
    """Return the engine that runs `jobs` worker processes; method: as for `do_all`."""

    def engine(
        tasks: Sequence[Any],
        make_handler: Callable[[Path], Handler],
        folder: Path,
        limits: Limits,
        idle: Callable[[], None],
    ) -> Iterator[tuple[int, Any]]:
        return do_all(tasks, partial(make_handler, folder), jobs, limits, method=method, idle=idle)

    return engine


@dataclass
class _Worker:
    """A process, our end of its pipe, and the files that it still has to answer for."""

    process: BaseProcess
    pipe: Connection
    todo: list[int] = field(default_factory=list)
    handled: int = 0  # files since it started

    def give(self, chunks: list[list[int]]) -> bool:
        """Send the next chunk of files; False where none is left."""
        if not chunks:
            return False
        self.todo = chunks.pop()
        with contextlib.suppress(OSError):  # it died after its last answer: the end of its pipe will show it
            self.pipe.send(list(self.todo))
        return True

    def end(self) -> None:
        """Send the process the message that nothing is left, and wait for its end."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.bury()

    def bury(self) -> None:
        """Wait for the end of the process."""
        self.process.join()
        self.pipe.close()


@dataclass(frozen=True)
class _Job:
    """The work and bounds with which every worker is started."""

    tasks: Sequence[Any]
    make_handler: Callable[[], Handler]
    limits: Limits
    method: str  # of starting a process
    parent: int  # process id


def do_all(
    tasks: Sequence[Any],
    make_handler: Callable[[], Handler],
    jobs: int,
    limits: Limits,
    *,
    method: str = "fork",
    idle: Callable[[], None] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (index, result) of `make_handler()(task)` for each of `tasks`, as they finish.

    `make_handler` runs once in each worker and so may keep caches there. A result is the handler's, or an Exception
    where the worker died. `idle` is called now and then while workers are busy. method: "fork", or "spawn" where the
    caller has threads, which do not survive a fork.
    """
    job = _Job(tasks, make_handler, limits, method, os.getpid())
    count, chunk = len(tasks), limits.chunk
    chunks = [list(range(i, min(i + chunk, count))) for i in range(0, count, chunk)]
    chunks.reverse()
    workers: list[_Worker] = []
    killed: set[int] = set()
    try:
        while chunks or workers:
            while chunks and len(workers) < max(1, jobs):
                workers.append(_start(job))
                workers[-1].give(chunks)
            yield from _answers(workers, chunks, limits, killed)
            if idle is not None:
                idle()
    finally:
        for worker in workers:
            worker.process.kill()
            worker.bury()


def deaths(
    tasks: Sequence[Any], read: Callable[[Any], object], limits: Limits, jobs: int = 1
) -> dict[int, str]:
    """Return the reasons of the tasks, by their place, that end the process which does `read` on them.

    Each is done in a worker and its result thrown away: what a library of C survives there it survives here as well,
    and errors that it raises meet the caller when it reads again. Nothing is tried where the caller has threads, which
    no fork survives, or is such a worker itself.
    """

    def attempt(task: Any) -> None:
        try:
            read(task)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 (the caller will meet it)
            return

    if threading.active_count() > 1 or current_process().daemon:
        return {}
    found = do_all(tasks, lambda: attempt, jobs, limits)
    return {place: str(death) for place, death in found if isinstance(death, Exception)}


def _answers(
    workers: list[_Worker], chunks: list[list[int]], limits: Limits, killed: set[int]
) -> Iterator[tuple[int, Any]]:
    """Yield the results that are ready; give workers more to do, and remove workers that end or have died.

    killed: tasks that lost a worker to a kill from outside once, which proves nothing about the file; a second time
    does.
    """
    for pipe in wait([w.pipe for w in workers], IDLE_SECONDS):
        worker = next(w for w in workers if w.pipe is pipe)
        try:
            index, result = worker.pipe.recv()
        except (EOFError, OSError):
            worker.bury()
            workers.remove(worker)
            # a file may leave damage behind that kills later: only a fresh worker's death is that file's, or lost time
            slow = worker.process.exitcode == -signal.SIGALRM
            if slow or (worker.process.exitcode != _SPENT and worker.handled == 0):
                if worker.process.exitcode == -signal.SIGKILL and worker.todo[0] not in killed:
                    killed.add(
                        worker.todo[0]
                    )  # a machine short of memory kills any process; a parser sends no SIGKILL
                    chunks.append(worker.todo)
                    continue
                yield worker.todo.pop(0), _death(worker.process, limits)
            if worker.todo:
                chunks.append(worker.todo)
            continue
        worker.todo.remove(index)
        worker.handled += 1
        yield index, result
        if not worker.todo and not worker.give(chunks):
            worker.end()
            workers.remove(worker)


def _start(job: _Job) -> _Worker:
    context: Any = get_context(job.method)
    ours, theirs = context.Pipe()
    inherited = ours if job.method == "fork" else None
    process = context.Process(target=_work, args=(theirs, inherited, job), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _death(process: BaseProcess, limits: Limits) -> Exception:
    return MemoryError(limits.slow if process.exitcode == -signal.SIGALRM else limits.broken)


def _work(pipe: Connection, parent_end: Connection | None, job: _Job) -> None:
    """Run a worker: handle the files by the indices that arrive, until None arrives, and end without return."""
    if parent_end is not None:
        parent_end.close()
    die_with(job.parent)
    _harden(job.limits.memory)
    handler = job.make_handler()
    with contextlib.suppress(EOFError, OSError):
        while (indices := pipe.recv()) is not None:
            for index in indices:
                signal.setitimer(signal.ITIMER_REAL, job.limits.seconds)
                try:
                    result = handler(job.tasks[index])
                except MemoryError:
                    pipe.send((index, MemoryError(job.limits.big)))
                    os._exit(_SPENT)  # the address space left may be too small for the next file
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send((index, result))
    os._exit(0)


def _harden(memory: int) -> None:
    """Bound the memory of this process, and silence it: a file that crashes it must print nothing."""
    faulthandler.disable()  # a file that crashes the worker is reported as refused, not as a traceback
    with contextlib.suppress(OSError):  # nor may the interpreter's own report of damaged objects be seen
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills, even inside C code that never looks at signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bound_memory(memory)
    gc.disable()  # decoded dumps are trees: reference counts free them
    gc.freeze()


def _bound_memory(memory: int) -> None:
    """Let the address space grow by at most `memory` bytes (on Linux), and forbid core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 (no path of the input)
            pages = int(file.read().split()[0])
    except OSError:
        return  # not Linux: the bound on the file's size is all there is
    limit = pages * os.sysconf("SC_PAGE_SIZE") + memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
