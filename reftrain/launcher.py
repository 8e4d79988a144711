"""Starts the ranks: forks them on one machine, or joins the world that torchrun or Slurm has started.

Forking after `import torch` takes half a second where torchrun takes as long as every rank's imports. The
parent watches: when a rank dies it names the rank and how, and ends the others.
"""

import ctypes
import errno
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NoReturn

from reftrain.config import RunConfig
from reftrain.errors import ConfigError, MachineError, RankDiedError, ReftrainError, StuckError
from reftrain.faults.bugs import read_bugs
from reftrain.lag import record_lag, wants_lag
from reftrain.planted import read_faults
from reftrain.record.tail import merge_tails
from reftrain.train import MakeHooks, train_rank
from reftrain.validate import check_world
from reftrain.world import World, world_from_environment

GRACE_S = 1.0  # after a first death: time in which the rank that caused it shows, where several die of it
END_S = 3.0  # time for ranks to end when asked to, before they are killed
PR_SET_PDEATHSIG = 1
REFUSALS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
}  # of disks and folders


@dataclass(frozen=True)
class Death:
    """How a rank ended before its work did. `report` is what it said itself, if it could."""

    rank: int
    pid: int
    status: int
    report: tuple[str, str] | None

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return os.WIFSIGNALED(self.status)

    def __str__(self) -> str:
        who = f"rank {self.rank} (process {self.pid})"
        if self.killed:
            return f"{who} was killed by {signal.Signals(os.WTERMSIG(self.status)).name}"
        if self.report:
            return f"{who} failed: {self.report[1]}"
        return f"{who} ended with exit code {os.waitstatus_to_exitcode(self.status)}"


def launch(config: RunConfig, make_hooks: MakeHooks) -> None:
    """Run the job on all ranks; with planted slow faults, on this machine, a second time without them.

    Raises `ConfigError` when a launcher started another number of ranks than the mesh has, `RankDiedError`
    when a rank ended early, or the error that a rank reported.
    """
    read_faults(config)
    read_bugs(config)
    prepare_folder(Path(config.out))
    world = world_from_environment(os.environ)
    if world is not None:
        check_world(config, world.size)
        _train_alone(config, world, make_hooks)
        return
    _train_here(config, make_hooks)
    if wants_lag(config):
        record_lag(config, lambda other: _train_here(other, lambda _: []))


def _train_here(config: RunConfig, make_hooks: MakeHooks) -> None:
    """Run the job on this machine alone."""
    if config.mesh.world_size == 1:
        with tempfile.TemporaryDirectory(prefix="reftrain-") as folder:
            _train_alone(config, World(0, 0, 1, f"file://{folder}/store"), make_hooks)
        return
    _fork_all(config, make_hooks)


def _train_alone(config: RunConfig, world: World, make_hooks: MakeHooks) -> None:
    """Be one rank, of a world that others started; what its peers or the machine do to it gets a sentence."""
    try:
        train_rank(config, world, make_hooks)
    except OSError as error:
        raise MachineError(_refusal(error)) from error
    except RuntimeError as error:
        kind, sentence = _describe(error)
        if kind in {"Lost", "Stuck"}:
            raise RankDiedError(f"rank {world.rank}: {sentence}; {_who_never_came(config)}") from error
        raise


def prepare_folder(folder: Path) -> None:
    """Make the run's folder; raises `MachineError` when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as error:
        raise MachineError(f"{folder}: {error.strerror}; choose another out") from error


def _fork_all(config: RunConfig, make_hooks: MakeHooks) -> None:
    size = config.mesh.world_size
    with tempfile.TemporaryDirectory(prefix="reftrain-") as folder:
        meeting = f"file://{folder}/store"
        ranks = Ranks()
        try:
            for rank in range(size):
                world = World(rank, rank, size, meeting)
                ranks.fork(lambda world=world: train_rank(config, world, make_hooks))  # type: ignore[misc]
            ranks.wait()
        except StuckError as error:
            raise RankDiedError(f"{error}; {_who_never_came(config)}") from error
        finally:
            ranks.end()
            if config.evidence.records_flight:
                merge_tails(Path(config.out) / "fr")


def _who_never_came(config: RunConfig) -> str:
    if config.evidence.records_flight:
        return f"tracekit hang {Path(config.out) / 'fr'} tells who never came"
    return "run again with --flight-recorder to see who never came"


class Ranks:
    """Forked processes, by rank."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.pipes: list[Connection] = []
        self.living: set[int] = set()

    def fork(self, work: Callable[[], None]) -> None:
        """Start the next rank."""
        ours, theirs = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
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

    def wait(self) -> None:
        """Wait until all have ended well; raise when one has not."""
        while self.living:
            deaths = self._deaths()
            if deaths:
                raise self._error(deaths)
            time.sleep(0.02)

    def _deaths(self) -> list[Death]:
        """Collect ranks that have ended, and return those that ended badly."""
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
                kind, message = self.pipes[rank].recv_bytes(1 << 16).decode().split("\n", 1)
                return kind, message
        except (EOFError, OSError, ValueError):
            pass
        return None

    def _error(self, deaths: list[Death]) -> ReftrainError:
        """Name the rank that died of itself: killed before failed, own errors before lost peers."""
        deadline = time.monotonic() + GRACE_S
        while self.living and time.monotonic() < deadline:
            time.sleep(0.02)
            deaths += self._deaths()
        others = len(self.living)
        self.end()
        ours = [death for death in deaths if death.report and death.report[0] != "Lost"]
        stuck = [death for death in ours if death.report and death.report[0] == "Stuck"]
        ours = [death for death in ours if death not in stuck]
        first = next((death for death in deaths if death.killed), ([*ours, *stuck, *deaths])[0])
        if first.report and first.report[0] in {"ConfigError", "ScheduleError"}:
            field, problem, remedy = first.report[1].split("\0")
            return ConfigError(field, problem, remedy)
        kind = StuckError if first in stuck else RankDiedError
        return kind(f"{first}; ended the other {others + len(deaths) - 1} ranks")

    def end(self) -> None:
        """End all that live: asked first, killed after `END_S`."""
        for sign, patience in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            for rank in self.living:
                os.kill(self.pids[rank], sign)
            deadline = time.monotonic() + patience
            while self.living and time.monotonic() < deadline:
                self._deaths()
                time.sleep(0.02)


def _child(work: Callable[[], None], pipe: Connection, parent: int) -> NoReturn:
    """Do the work and leave without running the parent's exit handlers."""
    code = 1
    try:
        _die_with(parent)
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        pipe.send_bytes("\n".join(_describe(error)).encode()[: 1 << 16])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """End this process when the parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _refusal(error: OSError) -> str:
    """Sentence about a disk or folder that refuses."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; free space or choose another out"


def _describe(error: BaseException) -> tuple[str, str]:
    """Kind and sentence of an error for the parent; other ranks' deaths show as lost connections."""
    if isinstance(error, ConfigError):
        return type(error).__name__, f"{error.field}\0{error.problem}\0{error.remedy}"
    if isinstance(error, ReftrainError):
        return type(error).__name__, str(error)
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return "MachineError", _refusal(error)
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
