"""What a hung job leaves beside its dumps: a log of each rank, its stacks, and counters of its machine.

On NCCL torch's watchdog writes such lines; on Gloo no thread of torch does, and this one writes the same content: the
call of each group that waits too long, how far the group is, and the call's stack. The first rank with such a call sets
a key of the store, as torch does; each living rank then writes how far the group of all ranks is, and all stacks are
taken by a signal, which faulthandler answers without the interpreter's lock. An exception that ends the rank is written
with its traceback; what the rank's stderr gets goes to the log, too. Used by `flight_hook`.

    log/launcher.log  how a rank died, as the process that started it saw it
    log/rank_N.log    lines as of torch 2.8, then the traceback
    stacks/rank_N.txt two samples of all threads
    counters/HOST.prom node_exporter's text with times, one block every COUNTERS_S, by the first rank of each machine
"""

import contextlib
import faulthandler
import math
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from reftrain.record.groups import pg_config
from reftrain.record.machine_counters import counters
from reftrain.thresholds import COUNTERS_S, HANG_SHARE, STACKS_APART_S

SIGNAL: Final = signal.SIGUSR1
"""Asks a rank for its stacks."""
_NAMES: Final = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "_all_gather_base": "_ALLGATHER_BASE",
    "_allgather_base": "_ALLGATHER_BASE",
    "reduce_scatter": "REDUCE_SCATTER",
    "_reduce_scatter_base": "_REDUCE_SCATTER_BASE",
}
_KEY: Final = "reftrain_job_log_"
"""Begin of the store's keys."""


class JobLog:
    """Writes the log, the stacks and the counters of this rank below `out`, from `start` to `stop`.

    timeout_s: the process group's; a call that waits for HANG_SHARE of it is taken for hung. state: gives the entries
    of the flight recorder at this moment.
    """

    def __init__(self, out: Path, timeout_s: float, state: Callable[[], dict[str, Any]]) -> None:
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._limit_s = HANG_SHARE * timeout_s
        self._state = state
        self._store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch's watchdog uses the same
        whole = dist.group.WORLD
        self._whole = whole.group_name if whole is not None else "0"
        self._reported: set[str] = set()
        self._answered = False
        folders = {name: out / name for name in ("log", "stacks", "counters")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        self._log = (folders["log"] / f"rank_{self._rank}.log").open("w", encoding="utf-8")
        self._stacks = (folders["stacks"] / f"rank_{self._rank}.txt").open("w", encoding="utf-8")
        host = socket.gethostname()
        self._counters = folders["counters"] / f"{host}.prom"
        self._host = host
        self._counts_at = 0.0
        self._stderr: int | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="job-log", daemon=True)

    def start(self) -> None:
        """Begin to watch; all ranks must exist."""
        faulthandler.register(SIGNAL, self._stacks, all_threads=True, chain=False)
        with contextlib.suppress(OSError):  # there is no stderr
            self._stderr = os.dup(2)
            os.dup2(self._log.fileno(), 2)  # what C++ says before it ends the process
        self._store.set(f"{_KEY}{self._rank}", f"{self._host} {os.getpid()} {_begun(os.getpid())}")
        self._write(
            f"[PG ID 0 PG GUID {self._whole}(default_pg) Rank {self._rank}] ProcessGroupGloo initialization options: "
            f"size: {self._world}, global rank: {self._rank}, TIMEOUT(ms): {self._limit_s * 1e3:.0f}"
        )
        self._thread.start()

    def stop(self, error: BaseException | None) -> None:
        """End the thread, and write the traceback of the error that ends the rank."""
        self._ending.set()
        self._thread.join(timeout=2 * STACKS_APART_S)
        if error is not None:
            for line in "".join(traceback.format_exception(error)).splitlines():
                self._log.write(f"[rank{self._rank}]: {line}\n")
        self._log.flush()
        if self._stderr is not None:
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            self._stderr = None

    def _watch(self) -> None:
        every = min(1.0, self._limit_s / 4)
        while not self._ending.wait(every):
            try:
                self._look()
            except (OSError, RuntimeError):  # the store has gone with the first rank, or the disk is full
                return

    def _look(self) -> None:
        """Write what has happened since the last look."""
        self._count()
        entries = [entry for entry in self._state()["entries"] if not entry["retired"]]
        now = time.time_ns()
        oldest: dict[str, dict[str, Any]] = {}
        for entry in entries:
            oldest.setdefault(entry["process_group"][0], entry)
        asked = False
        for name, entry in oldest.items():
            ran_s = (now - entry["time_created_ns"]) / 1e9
            if ran_s >= self._limit_s and name not in self._reported:
                self._reported.add(name)
                self._time_out(entry, ran_s)
                asked = True
        if asked and self._store.add(f"{_KEY}first", 1) == 1:
            self._store.set(f"{_KEY}asked", str(self._rank))
            self._answer(self._rank)
            self._ask_stacks()
        elif not self._answered and self._store.check([f"{_KEY}asked"]):
            self._answer(int(self._store.get(f"{_KEY}asked")))

    def _time_out(self, entry: dict[str, Any], ran_s: float) -> None:
        """Write that a call waits too long, how far its group is, and its stack."""
        name, desc = entry["process_group"]
        seq = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
        op = entry["profiling_name"].removeprefix("gloo:").split(" ")[0]
        place, number = self._place(name)
        elements = [_elements(entry[key]) for key in ("input_sizes", "output_sizes")]
        self._write(
            f"[Rank {place}] Watchdog caught collective operation timeout: WorkGloo(SeqNum={seq}, "
            f"OpType={_NAMES.get(op, op.upper())}, NumelIn={elements[0]}, NumelOut={elements[1]}, "
            f"Timeout(ms)={self._limit_s * 1e3:.0f}) ran for {ran_s * 1e3:.0f} milliseconds before timing out."
        )
        enqueued, completed = self._frontier(name)
        self._write(
            f"[PG ID {number} PG GUID {name}({desc}) Rank {place}]  failure detected by watchdog at work sequence id: "
            f"{seq} PG status: last enqueued work: {enqueued}, last completed work: {completed}"
        )
        frames = "".join(
            f"\n#{at} {frame['name']} from {frame['filename']}:{frame['line']}"
            for at, frame in enumerate(entry["frames"])
        )
        self._write(f"Stack trace of the failed collective: {frames}")

    def _answer(self, first: int) -> None:
        """Write how far the group of all ranks is."""
        self._answered = True
        enqueued, completed = self._frontier(self._whole)
        whose = "this local rank" if first == self._rank else f" rank {first}"
        self._write(
            f"[PG ID 0 PG GUID {self._whole}(default_pg) Rank {self._rank}] Received a dump signal due to a "
            f"collective timeout from {whose} and we will try our best to dump the debug info. Last enqueued NCCL "
            f"work: {enqueued}, last completed NCCL work: {completed}.This is most likely caused by incorrect usages"
        )

    def _ask_stacks(self) -> None:
        """Ask all ranks of this machine for their stacks, twice."""
        for again in range(2):
            for rank in range(self._world):
                host, pid, begun = self._store.get(f"{_KEY}{rank}").decode().split(" ")
                if host == self._host and begun == _begun(int(pid)) != "":
                    os.kill(int(pid), SIGNAL)
            if not again:
                time.sleep(STACKS_APART_S)

    def _frontier(self, name: str) -> tuple[int, int]:
        """Return the last enqueued and the last completed collective of a group."""
        own = [
            entry
            for entry in self._state()["entries"]
            if entry["process_group"][0] == name and not entry["is_p2p"]
        ]
        open_ = [entry["collective_seq_id"] for entry in own if not entry["retired"]]
        last = max((entry["collective_seq_id"] for entry in own), default=-1)
        return last, min(open_) - 1 if open_ else last

    def _place(self, name: str) -> tuple[int, int]:
        """Return this rank's place in a group, and the group's number among its own."""
        for number, group in enumerate(pg_config()):
            if group["pg_name"] == name:
                return group["ranks"].index(self._rank), number
        return self._rank, 0

    def _write(self, text: str) -> None:
        """Write one message behind torch's prefix."""
        now = time.time()
        when = time.strftime("%m%d %H:%M:%S", time.localtime(now))
        self._log.write(
            f"[rank{self._rank}]:[E{when}.{int(now % 1 * 1e9):09} ProcessGroupGloo.cpp:1] {text}\n"
        )
        self._log.flush()

    def _count(self) -> None:
        """Append the machine's counters, on the first rank of each machine."""
        if time.monotonic() < self._counts_at or int(os.environ.get("LOCAL_RANK", self._rank)) != 0:
            return
        self._counts_at = time.monotonic() + COUNTERS_S
        with self._counters.open("a", encoding="utf-8") as file:
            file.write(counters(time.time()))


def note_death(out: Path, sentence: str) -> None:
    """Append to log/launcher.log what the launcher saw of a rank that died. Raises nothing where it cannot."""
    with contextlib.suppress(OSError), (out / "log" / "launcher.log").open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sentence}\n")


def _begun(pid: int) -> str:
    """Return when a process began, in ticks since boot; empty where it has ended or is unknown.

    A signal to a number that another process has got since would end that one.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _elements(shapes: list[list[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
