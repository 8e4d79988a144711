"""Worker processes that decode dumps under a bound on memory and time, and survive a file that breaks one.

A file that makes its worker die (memory, time, a crash in C) is refused with that reason; the worker is
replaced and the rest goes on. Results come back in the order of the files, whatever the number of workers.
Used by `flight`.
"""

import contextlib
import faulthandler
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

MEMORY = 3 << 29
"""Address space a worker may take beyond what it starts with: 1.5 GiB."""
SECONDS = 60.0
"""Time for one file. A dump of 20 000 entries takes about a second."""
_CHUNK = 16
_SPENT = 75
"""Exit code of a worker that ended itself after a file took all its memory."""

Handler = Callable[[str], Any]


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    todo: list[int] = field(default_factory=list)
    handled: int = 0  # files since it started


def decode_all(
    paths: Sequence[str],
    make_handler: Callable[[], Handler],
    jobs: int,
    done: Callable[[int], None] | None = None,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Iterator[tuple[int, Any]]:
    """Yield (index, result) of `make_handler()(path)` for every path, as they finish.

    `make_handler` runs once in each worker and so may keep caches there. A result is whatever the handler
    returns,
    or an Exception where the worker died.
    """
    chunks = [list(range(i, min(i + _CHUNK, len(paths)))) for i in range(0, len(paths), _CHUNK)]
    chunks.reverse()
    workers: list[_Worker] = []
    try:
        while chunks or workers:
            while chunks and len(workers) < max(1, jobs):
                workers.append(_start(paths, make_handler, seconds, memory))
                _give(workers[-1], chunks)
            for pipe in wait([w.pipe for w in workers]):
                worker = next(w for w in workers if w.pipe is pipe)
                try:
                    index, result = worker.pipe.recv()
                except (EOFError, OSError):
                    _bury(worker, workers)
                    # a file may leave damage behind that kills later: only a fresh worker's death is that file's
                    if worker.process.exitcode != _SPENT and worker.handled == 0:
                        lost = worker.todo.pop(0)
                        yield lost, _death(worker.process)
                        if done is not None:
                            done(lost)
                    if worker.todo:
                        chunks.append(worker.todo)
                    continue
                worker.todo.remove(index)
                worker.handled += 1
                yield index, result
                if done is not None:
                    done(index)
                if not worker.todo and not _give(worker, chunks):
                    _retire(worker, workers)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


def _start(paths: Sequence[str], make_handler: Callable[[], Handler], seconds: float, memory: int) -> _Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_work, args=(theirs, ours, paths, make_handler, seconds, memory), daemon=True
    )
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, chunks: list[list[int]]) -> bool:
    if not chunks:
        return False
    worker.todo = chunks.pop()
    with contextlib.suppress(OSError):  # it died after its last answer: the end of its pipe will tell
        worker.pipe.send(list(worker.todo))
    return True


def _bury(worker: _Worker, workers: list[_Worker]) -> None:
    worker.process.join()
    worker.pipe.close()
    workers.remove(worker)


def _retire(worker: _Worker, workers: list[_Worker]) -> None:
    with contextlib.suppress(OSError):
        worker.pipe.send(None)
    worker.process.join()
    worker.pipe.close()
    workers.remove(worker)


def _death(process: BaseProcess) -> Exception:
    if process.exitcode == -signal.SIGALRM:
        return MemoryError("pickle refused: it took longer to decode than any dump does")
    return MemoryError(
        "pickle refused: decoding it broke the process that tried (memory or nesting beyond bounds)"
    )


def _work(
    pipe: Connection,
    parent_end: Connection,
    paths: Sequence[str],
    make_handler: Callable[[], Handler],
    seconds: float,
    memory: int,
) -> None:
    parent_end.close()
    faulthandler.disable()  # a file that crashes the worker is reported as refused, not as a traceback
    with contextlib.suppress(
        OSError
    ):  # nor may what the interpreter prints of damaged objects reach the user
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills, even inside C code that never looks at signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _bound_memory(memory)
    gc.disable()  # decoded dumps are trees: reference counts free them
    gc.freeze()
    handler = make_handler()
    with contextlib.suppress(EOFError, OSError):
        while (indices := pipe.recv()) is not None:
            for index in indices:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                try:
                    result = handler(paths[index])
                except MemoryError:
                    pipe.send(
                        (index, MemoryError("pickle refused: it takes more memory than any dump needs"))
                    )
                    os._exit(_SPENT)  # what is left of the address space may not do for the next file
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send((index, result))
    os._exit(0)


def _bound_memory(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 (no path of the input)
            pages = int(file.read().split()[0])
    except OSError:
        return  # not Linux: the bound on the file's size is all there is
    limit = pages * os.sysconf("SC_PAGE_SIZE") + memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
