"""Ends processes with their parent: workers die with it, and a user's command is asked to end with us."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""
_LIBC: Final = ctypes.CDLL(None)
"""Opened before any fork, in which no lock of the loader may be taken."""
_LOOK_SECONDS: Final = 0.5
"""A wait is no longer than this: a signal that comes right before a system call, or meets another thread, ends none."""
_END_SECONDS: Final = 20.0
"""Time for a command that is asked to end, as a launcher that has to end its ranks; Slurm itself gives 30."""


def die_with(parent: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Send this process a signal when its parent dies, however that dies, also in the midst of a file (Linux)."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, sign)
        if os.getppid() != parent:
            os._exit(1)


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    out: IO[bytes] | None = None,
) -> int:
    """Run a user's command and return its exit code, as `subprocess` returns it; OSError if it cannot be started.

    `out` takes its output, both streams. When this process ends, for any reason, the command gets SIGTERM, which
    launchers pass on to their ranks; a command that does not end in time is killed.
    """
    asked = partial(die_with, os.getpid(), signal.SIGTERM)
    with subprocess.Popen(  # noqa: S603 - the user's own command, started by no shell
        list(command),
        env=environment,
        stdout=out,
        stderr=None if out is None else subprocess.STDOUT,
        preexec_fn=asked,  # noqa: PLW1509 - it takes no lock
    ) as process:
        try:
            return _awaited(process)
        finally:
            if process.returncode is None:
                _end(process)


def _awaited(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process, and meet a signal within `_LOOK_SECONDS`."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.terminate()
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return
    finally:
        process.kill()
