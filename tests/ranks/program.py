"""A program as a user starts it, in a fork of the pool's server: a process of its own that need not import torch."""

import faulthandler
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import process
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """How a program ended; a negative code is the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


def reftrain(arguments: list[str]) -> None:
    """The console script `reftrain`."""
    from tracekit_cli.reftrain import main

    sys.argv = ["reftrain", *arguments]
    main()


def script(path: str, arguments: list[str]) -> None:
    """A Python file, as `python PATH ARGUMENTS` runs it."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def perform(
    folder: Path,
    environment: dict[str, str],
    cwd: Path,
    before: Callable[[], None] | None,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    """Call a function with its output in files of the folder."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    faulthandler.register(signal.SIGUSR1)
    process.current_process()._config["daemon"] = False  # a program may have children, by multiprocessing too
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if before is not None:
        before()
    function(*arguments)


class Program:
    """A program under way: a function called in a process of its own.

    environment: variables beside this process's own; `before` is called in the process before the function.
    """

    def __init__(
        self,
        context: ForkServerContext,
        folder: Path,
        function: Callable[..., None],
        *arguments: Any,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._folder = folder
        variables = {**os.environ, **(environment or {})}
        task = (folder, variables, cwd or Path.cwd(), before, function, arguments)
        self._process: Any = context.Process(target=perform, args=task, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    def said(self, name: str = "stderr") -> str:
        """What the program has written so far to `stdout` or `stderr`."""
        path = self._folder / name
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        """End the program by SIGKILL."""
        self._process.kill()

    def wait(self, timeout: float = 120) -> Done:
        """How the program ended; one that still runs is ended, and the error says where it stands."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1)
            self.kill()
            self._process.join()
            raise AssertionError(f"the program still runs after {timeout} s: {self.said()}")
        return Done(self._process.exitcode, self.said("stdout"), self.said())
