"""Ranks forked once for a whole session: each test borrows the first N of them for a process group of its own.

They are forked from a server that has imported torch and what ranks do, and nothing else: no thread of the tests
is forked, and nobody imports torch again. `RankPool.start` runs a whole program in another fork of that server.
"""

import contextlib
import gc
import itertools
import multiprocessing as mp
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.ranks.program import Program, reftrain, script

PRELOAD = [
    "tests.reftrain.workers",
    "tests.numerics.local.trainers",
    "tests.numerics.local.outsiders",
    "reftrain.job.launcher",
    "reftrain.faults.bugs",
    "tracekit_cli.reftrain",
]
MOST = 16
"""Ranks of the largest process group of any test: two on each of the four axes."""


class RankFailedError(AssertionError):
    """A rank raised; the message holds its traceback."""


def serve(connection: Connection) -> None:
    """Run tasks until None comes: (function, rank, world size, store, arguments).

    After each task the process groups of its trainer are collected, which cycles and DTensor's cache keep alive: every
    one has three threads, one of which wakes every 10 ms, and hundreds of them slowed all tests that came later.
    """
    import torch
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    torch.set_num_threads(1)
    gc.freeze()
    while (task := connection.recv()) is not None:
        function, arguments = task
        try:
            connection.send(("result", function(*arguments)))
        except BaseException:  # noqa: BLE001 - the test process reports it
            connection.send(("error", traceback.format_exc()))
        _clear_sharding_prop_cache()
        gc.collect()
        gc.collect()  # what the first freed may have kept more alive


class RankPool:
    """Ranks waiting for work, at most `size` of them; each is started when first needed."""

    def __init__(self, size: int = MOST) -> None:
        self._size = size
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self.folder = tempfile.TemporaryDirectory(prefix="reftrain-test-")
        self._numbers = itertools.count()
        self._connections: list[Connection] = []
        self._processes: list[ForkServerProcess] = []

    def _start(self, world_size: int) -> None:
        if world_size > self._size:
            raise ValueError(f"{world_size} ranks are more than the pool's {self._size}")
        while len(self._processes) < world_size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def _stop(self, seconds: float) -> None:
        """End all ranks: those that wait for work by themselves, those that wait for each other by force."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has died before
                connection.send(None)
        end = time.monotonic() + seconds
        for connection, process in zip(self._connections, self._processes, strict=True):
            process.join(max(0.0, end - time.monotonic()))
            process.kill()
            process.join()
            connection.close()
        self._connections, self._processes = [], []

    def run(
        self, function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = 120
    ) -> list[Any]:
        """Call `function(rank, world_size, store, *arguments)` on every rank; return the results by rank."""
        self._start(world_size)
        store = str(Path(self.folder.name) / f"store{next(self._numbers)}")
        try:
            for rank, connection in enumerate(self._connections[:world_size]):
                connection.send((function, (rank, world_size, store, *arguments)))
            return self._collect(world_size, timeout)
        except (RankFailedError, OSError, EOFError) as error:
            self._stop(2)  # the others may still wait for it: nobody's next answer could be trusted
            if isinstance(error, RankFailedError):
                raise
            raise RankFailedError(f"a rank has died: {error}") from error

    def _collect(self, world_size: int, timeout: float) -> list[Any]:
        results = []
        for rank, connection in enumerate(self._connections[:world_size]):
            if not connection.poll(timeout):
                raise RankFailedError(f"rank {rank} gave no answer in {timeout} s")
            kind, value = connection.recv()
            if kind == "error":
                raise RankFailedError(f"rank {rank}:\n{value}")
            results.append(value)
        return results

    def start(self, function: Callable[..., None], *arguments: Any, **how: Any) -> Program:
        """Call a function in a process of its own, which it may end as it likes; `how` as in `Program`."""
        folder = Path(tempfile.mkdtemp(dir=self.folder.name))
        return Program(self._context, folder, function, *arguments, **how)

    def reftrain(self, *arguments: object, **how: Any) -> Program:
        """Start the command `reftrain`."""
        return self.start(reftrain, [str(argument) for argument in arguments], **how)

    def script(self, path: Path, *arguments: object, **how: Any) -> Program:
        """Start a Python file as `python PATH ARGUMENTS` does."""
        return self.start(script, str(path), [str(argument) for argument in arguments], **how)

    def close(self) -> None:
        """End all ranks."""
        self._stop(60)
        self.folder.cleanup()
