"""Ranks forked once and reused: each test borrows the first N of them for a process group of its own.

Forked from a server that has imported torch and nothing else, so that no thread of the tests is forked.
"""

import itertools
import multiprocessing as mp
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PRELOAD = ["tests.reftrain.workers"]


class RankFailedError(AssertionError):
    """A rank raised; the message holds its traceback."""


def serve(connection: Connection) -> None:
    """Run tasks until None comes: (function, rank, world size, store, arguments)."""
    import torch

    torch.set_num_threads(1)
    while (task := connection.recv()) is not None:
        function, arguments = task
        try:
            connection.send(("result", function(*arguments)))
        except BaseException:  # noqa: BLE001 - the test process reports it
            connection.send(("error", traceback.format_exc()))


class RankPool:
    """Ranks waiting for work."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self.folder = tempfile.TemporaryDirectory(prefix="reftrain-test-")
        self._numbers = itertools.count()
        self._start()

    def _start(self) -> None:
        self.connections, self.processes = [], []
        for _ in range(self._size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def _stop(self) -> None:
        for connection, process in zip(self.connections, self.processes, strict=True):
            process.kill()
            process.join()
            connection.close()

    def run(
        self, function: Callable[..., Any], world_size: int, *arguments: Any, timeout: float = 120
    ) -> list[Any]:
        """Call `function(rank, world_size, store, *arguments)` on every rank; return the results by rank."""
        store = str(Path(self.folder.name) / f"store{next(self._numbers)}")
        for rank, connection in enumerate(self.connections[:world_size]):
            connection.send((function, (rank, world_size, store, *arguments)))
        try:
            return self._collect(world_size, timeout)
        except RankFailedError:  # the others may still wait for it: nobody's next answer could be trusted
            self._stop()
            self._start()
            raise

    def _collect(self, world_size: int, timeout: float) -> list[Any]:
        results = []
        for rank, connection in enumerate(self.connections[:world_size]):
            if not connection.poll(timeout):
                raise RankFailedError(f"rank {rank} gave no answer in {timeout} s")
            kind, value = connection.recv()
            if kind == "error":
                raise RankFailedError(f"rank {rank}:\n{value}")
            results.append(value)
        return results

    def close(self) -> None:
        for connection in self.connections:
            connection.send(None)
        for process in self.processes:
            process.join(5)
        self._stop()
        self.folder.cleanup()
