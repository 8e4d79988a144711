"""Forked processes, one per rank: starts, watches and ends them, and says in a sentence how one died.

`job.launcher` starts the ranks of a job here. A rank that fails reports the reason through a pipe; a rank that dies
is named by its signal; the others are then ended.
"""

import errno
import gc
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NoReturn

from reftrain.errors import ConfigError, MachineError, RankDiedError, ReftrainError, StuckError
from reftrain.thresholds import DEATH_GRACE_S, END_S, GONE_S, LARGEST_REPORT, WATCH_S
from tracekit.child_processes import die_with

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""What ends the parent, which then ends the ranks."""
REFUSALS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
}  # of disks and folders
SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # what numpy says, without a number of the error


@dataclass(frozen=True)
class Death:
    """A rank's end before its work was done. `report` is its own (kind, sentence), or None where it gave none.

    frozen: it did not end when it was asked to after another rank had failed, so that SIGKILL had to end it.
    """

    rank: int
    pid: int
    status: int
    report: tuple[str, str] | None
    frozen: bool = False

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that was not sent because it is frozen."""
        return os.WIFSIGNALED(self.status) and not self.frozen

    @property
    def cause(self) -> str:
        """What ended it, in a word: the signal, the kind of its error, its exit code, or that it was frozen."""
        if self.frozen:
            return "frozen"
        if self.killed:
            return signal.Signals(os.WTERMSIG(self.status)).name
        return self.report[0] if self.report else f"exit {os.waitstatus_to_exitcode(self.status)}"

    @property
    def refused(self) -> ConfigError | None:
        """The refusal of the configuration that ended it, if one did."""
        if self.report and self.report[0] in {"ConfigError", "ScheduleError"}:
            return ConfigError(*self.report[1].split("\0"))
        return None

    def __str__(self) -> str:
        who = f"rank {self.rank} (process {self.pid})"
        if self.killed:
            return f"{who} was killed by {signal.Signals(os.WTERMSIG(self.status)).name}"
        if self.frozen:
            return f"{who} is frozen: others waited in vain for it, and it did not end when asked"
        if self.report:
            return f"{who} failed: {self.report[1]}"
        return f"{who} ended with exit code {os.waitstatus_to_exitcode(self.status)}"


def first_of(deaths: Sequence[Death]) -> Death:
    """Return the rank that died of itself: killed before failed, own errors before lost peers, frozen before stuck."""
    reports = [(death, death.report[0]) for death in deaths if death.report and not death.frozen]
    ours = [death for death, kind in reports if kind not in {"Lost", "Stuck"}]
    frozen = [death for death in deaths if death.frozen]
    stuck = [death for death, kind in reports if kind == "Stuck"]
    return next((death for death in deaths if death.killed), [*ours, *frozen, *stuck, *deaths][0])


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP, a debugger), so that it ends by SIGKILL alone; False where unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in {"T", "t"}


class Ranks:
    """Forked processes, by rank."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.pipes: list[Connection] = []
        self.living: set[int] = set()

    def fork(self, work: Callable[[], None]) -> None:
        """Start the next rank. Interrupts wait until its process number is known, else the rank would outlive us.

        Raises `MachineError` when the machine gives no further process.
        """
        try:
            self._fork(work)
        except OSError as error:
            raise MachineError(
                f"rank {len(self.pids)} cannot be started: {error.strerror}; start fewer ranks on this machine"
            ) from error

    def _fork(self, work: Callable[[], None]) -> None:
        ours, theirs = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                for pipe in self.pipes:
                    pipe.close()
                _child(work, theirs, parent)
            theirs.close()
            self.living.add(len(self.pids))
            self.pids.append(pid)
            self.pipes.append(ours)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self) -> None:
        """Wait until all ranks have ended well; raise the error of the one that did not."""
        while self.living:
            deaths = self._deaths()
            if deaths:
                raise self._error(deaths)
            time.sleep(WATCH_S)

    def _deaths(self) -> list[Death]:
        """Collect ranks that have ended, and return the ranks that failed."""
        deaths = []
        for rank in sorted(self.living):
            pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
            if pid:
                self.living.discard(rank)
                if status:
                    deaths.append(Death(rank, pid, status, self._report(rank)))
        return deaths

    def _report(self, rank: int) -> tuple[str, str] | None:
        try:
            if self.pipes[rank].poll():
                kind, message = self.pipes[rank].recv_bytes(LARGEST_REPORT).decode().split("\n", 1)
                return kind, message
        except (EOFError, OSError, ValueError):
            pass
        return None

    def _error(self, deaths: list[Death]) -> ReftrainError:
        """Name the rank that died of itself, or that is frozen."""
        deadline = time.monotonic() + DEATH_GRACE_S
        while self.living and time.monotonic() < deadline:
            time.sleep(WATCH_S)
            deaths += self._deaths()
        ended = len(self.living) + len(deaths)
        deaths += self.end()
        first = first_of(deaths)
        if first.refused:
            return first.refused
        kind = StuckError if first.report and first.report[0] == "Stuck" else RankDiedError
        return kind(f"{first}; ended the other {ended - 1} ranks")

    def end(self) -> list[Death]:
        """End all living ranks: ask them first, kill them after `END_S`. Return the killed ranks."""
        frozen: list[Death] = []
        for sign, patience in ((signal.SIGTERM, END_S), (signal.SIGKILL, GONE_S)):
            for rank in self.living:
                os.kill(self.pids[rank], signal.SIGKILL if is_stopped(self.pids[rank]) else sign)
            deadline = time.monotonic() + patience
            while self.living and time.monotonic() < deadline:
                ended = self._deaths()
                frozen += [replace(death, frozen=True) for death in ended if death.status == signal.SIGKILL]
                time.sleep(WATCH_S)
        return frozen


def _child(work: Callable[[], None], pipe: Connection, parent: int) -> NoReturn:
    """Do the work and leave without running the parent's exit handlers."""
    code = 1
    try:
        start_rank(parent)
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        pipe.send_bytes("\n".join(describe_error(error)).encode()[:LARGEST_REPORT])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_rank(parent: int) -> None:
    """Prepare a forked rank: it ends with its parent, which ends it, and unblocks what was blocked for the fork.

    What a terminal sends to all is ignored. Objects of the parent are never collected here: a process group among them
    would wait for threads that the fork left behind.
    """
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    die_with(parent)


def leave_signals_to_the_launcher() -> None:
    """Let SIGTERM and SIGHUP end this rank at once, as torchrun counts on.

    A rank that waits in a collective would never see a signal that Python handles.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def start_helper(parent: int) -> None:
    """Prepare a process that works for `parent`: it ends without a word when that one does, or on Ctrl-C."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    die_with(parent)


def refusal(error: OSError) -> str:
    """Return a sentence about a disk or folder that refuses, with the remedy."""
    where = f"{error.filename}: " if error.filename else ""
    if SHORT_WRITE.fullmatch(str(error)):
        return f"{where}a file could not be written whole; free space or choose another out"
    remedy = "; free space or choose another out" if error.errno in REFUSALS else ""
    return f"{where}{error.strerror or error}{remedy}"


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return kind and sentence of an error for the parent; the death of another rank shows as a lost connection."""
    if isinstance(error, ConfigError):
        return type(error).__name__, f"{error.field}\0{error.problem}\0{error.remedy}"
    if isinstance(error, ReftrainError):
        return type(error).__name__, str(error)
    if isinstance(error, OSError) and (error.errno in REFUSALS or SHORT_WRITE.fullmatch(str(error))):
        return "MachineError", refusal(error)
    sentence = (str(error) or type(error).__name__).strip().splitlines()[0]
    sentence = re.sub(r"^\[\S*\] ", "", sentence)  # the place in Gloo's source
    if "Timed out waiting" in str(error) or "Wait timeout" in str(error):
        return "Stuck", f"waited in vain for another rank ({sentence})"
    lost = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
        "Socket closed",
        "Timed out",
    )
    if any(words in str(error) for words in lost):
        return "Lost", sentence
    where = traceback.extract_tb(error.__traceback__)[-1]
    return "Other", f"{type(error).__name__}: {sentence} ({Path(where.filename).name}:{where.lineno})"
