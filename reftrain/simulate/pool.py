"""Writes many files with several processes that share the simulation's arrays, and turns I/O errors into ours."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from reftrain.errors import MachineError
from reftrain.rank.processes import start_helper

_CHUNK: Final = 32  # ranks a task
_LOOK_S: Final = 0.5


Progress = Callable[[int, int], None]
"""Takes (files written, all files)."""


class Writer(Protocol):
    """Writes a rank's file."""

    def write(self, rank: int) -> tuple[int, int]:
        """Write one file; return its events and bytes."""


_WRITER: Writer | None = None  # of the forked processes: they have it from their parent, arrays and all


def _write_some(ranks: Sequence[int]) -> tuple[int, int]:
    if _WRITER is None:
        raise AssertionError("it is set before the fork")
    done = [_WRITER.write(rank) for rank in ranks]
    return sum(e for e, _ in done), sum(b for _, b in done)


def _awaited(result: "Future[tuple[int, int]]") -> tuple[int, int]:
    """Return a result as it comes; an endless wait may miss a signal that comes right before it."""
    while not wait([result], _LOOK_S).done:
        pass
    return result.result()


def _counted(
    results: Iterable[tuple[int, int]], chunks: Sequence[Sequence[int]], progress: Progress | None
) -> Iterator[tuple[int, int]]:
    """Yield the results of chunks of ranks, and tell after each how many ranks are written."""
    written, every = 0, sum(map(len, chunks))
    for chunk, result in zip(chunks, results, strict=True):
        written += len(chunk)
        if progress is not None:
            progress(written, every)
        yield result


def in_parallel(
    writer: Writer,
    ranks: Sequence[int],
    jobs: int,
    alike: Callable[[int], int],
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write all ranks' files with up to `jobs` processes; return events and bytes in all.

    Ranks that are `alike` are written one after the other, because they share a template. The files do not
    depend on the number of processes. `progress` receives how many are written. Raises MachineError where a process is
    killed.
    """
    global _WRITER  # noqa: PLW0603 - forked processes share the simulation's arrays through it
    ordered = sorted(ranks, key=lambda rank: (alike(rank), rank))
    chunks = [ordered[i : i + _CHUNK] for i in range(0, len(ordered), _CHUNK)]
    _WRITER = writer
    try:
        if jobs <= 1 or len(chunks) <= 1:
            done = list(_counted(map(_write_some, chunks), chunks, progress))
        else:
            context = multiprocessing.get_context("fork")
            count = min(jobs, len(chunks))
            with ProcessPoolExecutor(
                count, mp_context=context, initializer=start_helper, initargs=(os.getpid(),)
            ) as pool:
                try:
                    results = [pool.submit(_write_some, chunk) for chunk in chunks]
                    done = list(_counted(map(_awaited, results), chunks, progress))
                except KeyboardInterrupt:
                    for child in multiprocessing.active_children():
                        child.kill()
                    raise
    except BrokenProcessPool as error:
        problem = "a writing process was killed, most often for want of memory"
        raise MachineError(f"{problem}; use fewer --jobs or write fewer --ranks") from error
    finally:
        _WRITER = None
    return sum(e for e, _ in done), sum(b for _, b in done)


def put(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it; a write that fails leaves nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder to write into; raises MachineError where that fails or the disk is full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(f"{folder}: {reason}; name another folder or free space") from error


def usual_jobs() -> int:
    """Return the default number of processes that write: one for each core that this process may use."""
    return len(os.sched_getaffinity(0))
