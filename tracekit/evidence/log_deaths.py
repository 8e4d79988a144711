"""Lines of a log about a rank that died, never came, or complained: exceptions, signals, rendezvous, NCCL, Xid.

An exception that another rank's failure explains (a closed connection, an abort by the watchdog) is a consequence: it
never makes its rank the first that died. Used by `logs`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from tracekit.evidence.line_scan import Line
from tracekit.evidence.log_exceptions import BEGINS, raised_in
from tracekit.evidence.log_lines import Message, When, clean_text, tasks_after, when_of
from tracekit.thresholds.evidence import MAX_LOG_RANKS

DeathKind = Literal["memory", "exception", "signal"]
"""How a process died: it ran out of memory, raised an exception, or was killed by a signal."""

_MEMORY: Final = re.compile(rb"OutOfMemory|out of memory|MemoryError|Cannot allocate memory")
_BLOCK_RANK: Final = re.compile(rb"rank\s+: (\d{1,7}) \(local_rank: (\d{1,7})\)\s*$", re.MULTILINE)
_BLOCK_HOST: Final = re.compile(rb"host\s+: (\S{1,200})")
_BLOCK_TIME: Final = re.compile(rb"time\s+: (\d{4}-\d{2}-\d{2})_(\d{2}:\d{2}:\d{2})")
_BLOCK_EXIT: Final = re.compile(rb"exitcode\s+: (-?\d{1,4}) \(pid: (\d{1,9})\)")
_FAILED: Final = re.compile(rb"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,7}) \(pid: (\d{1,9})\)")
_SRUN: Final = re.compile(
    rb"srun: error: (\S{1,200}?): tasks? (\[?[\d,-]{1,200}\]?): "
    rb"(Killed|Out Of Memory|Segmentation fault|Bus error|Exited with exit code (\d+))"
)
_CHILD: Final = re.compile(rb"[Pp]rocess (\d{1,7}) terminated with (?:signal (SIG\w+)|the following error)")
_KILLED: Final = re.compile(rb"\brank (\d{1,7})\b[^\n]{0,60} killed by (SIG\w+)")
_KERNEL: Final = re.compile(rb"[Oo]ut of memory: [Kk]illed process (\d{1,9})")
_FATAL: Final = re.compile(rb"Fatal Python error: ([^\n]{1,200})")
_MEMORY_LINE: Final = re.compile(
    rb"[\w.]{0,80}OutOfMemoryError: [^\n]{1,300}|CUDA (?:error: )?out of memory[^\n]{0,200}"
)
_DEEPSPEED: Final = re.compile(rb"\] exits with return code = (-?\d{1,4})")
"""DeepSpeed's launcher. The command before it is that of the host's last rank, whichever ended."""
_LIGHTNING: Final = re.compile(
    rb"\[rank: (\d{1,7})\] Child process with PID (\d{1,9}) terminated with code (-?\d{1,4})"
)
_OPEN_MPI: Final = re.compile(
    rb"noticed that process rank (\d{1,7}) with PID (\d{1,9}) on node (\S{1,200}) exited on signal (\d{1,3})"
)
_EXITED: Final = re.compile(
    rb"Process (?:name: \[\[\d{1,9},\d{1,9}\],)?(\d{1,7})(?: exit with status code|\]\s*\n\s+Exit code:)\s+(\d{1,3})"
)
"""Horovod, and Open MPI of the first process that ended with a code."""
_LAUNCHER: Final = re.compile(
    rb"return code = |exited on signal |Child process|RUNNING AT|exit with status code|Process name: "
)
_HYDRA: Final = re.compile(
    rb"(?:RANK (\d{1,7}) )?PID (\d{1,9}) RUNNING AT (\S{1,200})\s*\n=\s+(?:KILLED BY SIGNAL|EXIT CODE): (\d{1,3})"
)
"""MPICH and Intel MPI. They end what is left by SIGKILL, and report that alike."""
_TORCHCOMMS: Final = re.compile(rb"Aborting process due to timeout on rank \d{1,7}")
_HEARTBEATS: Final = b"stopped sending heartbeats"
_NODE: Final = re.compile(rb"srun: error: Node failure on (\S{1,200})")
_SIGNALS: Final = {4: "SIGILL", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
"""Signals that no peer's failure explains; SIGABRT ends a process after a time-out, SIGTERM when another has died."""

_KILL: Final = 9
_BY_SIGNAL: Final = 128
"""What a shell adds to the number of the signal that ended a process."""


@dataclass(frozen=True, slots=True)
class Death:
    """One report of a process that ended.

    rank, local, pid: what the report tells of the process. consequence: another rank's failure explains it.
    order: place in the file, so that reports of one file can be ordered where they bear no times.
    place: the rank within the writer's group that it is about, where all members report it. ended: whether the report
    is one of a launcher, which saw a process end.
    """

    kind: DeathKind
    text: str
    rank: int | None
    local: int | None
    pid: int | None
    host: str | None
    when: When | None
    order: int
    consequence: bool = False
    frame: str | None = None
    place: int | None = None
    ended: bool = False


def deaths_of(line: Line, message: Message) -> Iterator[Death]:
    """Yield the deaths that one rank's part of a line reports; times are those that the report itself bears."""
    part = message.text
    if BEGINS in part:
        if (raised := _raised(line, message)) is not None:
            yield raised
    elif found := _BLOCK_EXIT.search(part):
        yield from _of_block(line, found)
    elif found := _FAILED.search(part):
        yield from _of_exit(int(found[1]), line, local=int(found[2]), pid=int(found[3]))
    elif found := _SRUN.search(part):
        yield from _of_srun(line, found)
    elif _LAUNCHER.search(part):
        yield from _of_launcher(line, part)
    elif found := _NODE.search(part):
        yield replace(_death("signal", "srun: node failure", line, host=clean_text(found[1])), ended=True)
    elif (found := _KILLED.search(part)) or (found := _CHILD.search(part)):
        if found[2] and int(found[1]) < MAX_LOG_RANKS and found[2].decode() in _SIGNALS.values():
            yield _death("signal", f"killed by {found[2].decode()}", line, rank=int(found[1]))
    elif found := _KERNEL.search(part):
        yield _death("memory", "killed by the kernel for memory", line, pid=int(found[1]))
    elif found := _FATAL.search(part):
        aborted = b"Abort" in found[1]
        text = f"Fatal Python error: {clean_text(found[1])}"
        yield _death("signal", text, line, message, consequence=aborted)
    elif found := _TORCHCOMMS.search(part):
        yield _death("exception", clean_text(found[0]), line, message, consequence=True)
    elif _HEARTBEATS in part:
        for number in tasks_after(line.after()):
            yield _death("signal", "sent JAX's coordinator no more heartbeats", line, rank=number)
    elif found := _MEMORY_LINE.search(part):
        yield _death("memory", clean_text(found[0]), line, message)


def death_of(death: Death, rank: int | None) -> Death:
    """Return the death as one of this rank, by which its lines name their writer.

    What all members of a group report of one of them is of unknown rank, unless that one wrote it: they name it by the
    rank within their group.
    """
    if death.place in {None, rank}:
        return replace(death, rank=rank)
    return replace(death, rank=None, text=f"rank {death.place} of its group: {death.text}")


def _raised(line: Line, message: Message) -> Death | None:
    """Return the exception in which a traceback ends; None where the log does not hold its end."""
    raised = raised_in(line, message.rank)
    if raised is None:
        return None
    file, number, function = raised.frames[-1] if raised.frames else (b"", 0, b"")
    frame = f"{clean_text(file)}:{number} {clean_text(function)}" if raised.frames else None
    memory = _MEMORY.search(raised.text) is not None
    kind: DeathKind = "memory" if memory else "exception"
    consequence = not memory and raised.follows
    death = _death(kind, clean_text(raised.text), line, message, consequence=consequence, frame=frame)
    rank = raised.child if raised.child is not None and raised.child < MAX_LOG_RANKS else death.rank
    return replace(death, rank=rank, place=raised.place, ended=raised.child is not None)


def _of_block(line: Line, found: re.Match[bytes]) -> Iterator[Death]:
    """Yield the death in one of the failures that torchrun lists at its end."""
    rank = list(_BLOCK_RANK.finditer(line.before))[-1:]
    host = _BLOCK_HOST.findall(line.before)[-1:]
    time = _BLOCK_TIME.findall(line.before)[-1:]
    when = when_of(b" ".join(time[0])) if time else None
    number = int(rank[0][1]) if rank and int(rank[0][1]) < MAX_LOG_RANKS else None
    name = clean_text(host[0]) if host else None
    yield from _of_exit(int(found[1]), line, rank=number, pid=int(found[2]), host=name, when=when)


def _of_launcher(line: Line, part: bytes) -> Iterator[Death]:
    """Yield the end of a process that the launcher of DeepSpeed, Lightning, MPI or Horovod reports."""
    if found := _DEEPSPEED.search(part):
        yield from _of_exit(int(found[1]), line)
    elif found := _LIGHTNING.search(part):
        yield from _of_exit(int(found[3]), line, local=int(found[1]), pid=int(found[2]))
    elif (found := _OPEN_MPI.search(part)) and int(found[1]) < MAX_LOG_RANKS:
        yield from _of_exit(
            -int(found[4]), line, rank=int(found[1]), pid=int(found[2]), host=clean_text(found[3])
        )
    elif (found := _EXITED.search(part + b"\n" + line.after()[0])) and int(found[1]) < MAX_LOG_RANKS:
        yield from _of_exit(int(found[2]), line, rank=int(found[1]))
    elif found := _HYDRA.search(part + b"\n" + line.after()[0]):
        signal = int(found[4])
        usable = found[1] is not None and int(found[1]) < MAX_LOG_RANKS and signal != _KILL
        rank = int(found[1]) if usable else None
        yield from _of_exit(-signal, line, rank=rank, pid=int(found[2]), host=clean_text(found[3]))


def _of_exit(
    code: int,
    line: Line,
    *,
    rank: int | None = None,
    local: int | None = None,
    pid: int | None = None,
    host: str | None = None,
    when: When | None = None,
) -> Iterator[Death]:
    """Yield the end that an exit code tells: only some signals are ends that no peer's failure explains."""
    signal = _SIGNALS.get(-code) or _SIGNALS.get(code - _BY_SIGNAL)
    kind: DeathKind = "exception" if signal is None else "signal"
    text = f"exit code {code}" if signal is None else f"killed by {signal}"
    own = signal is not None
    at = when or when_of(line.text)
    yield Death(kind, text, rank, local, pid, host, at, line.offset, consequence=not own, ended=True)


def _of_srun(line: Line, found: re.Match[bytes]) -> Iterator[Death]:
    """Yield a death for each task that srun reports as killed."""
    code = int(found[4] or 0)
    if found[4] and code - _BY_SIGNAL not in _SIGNALS:
        return
    what = clean_text(found[3])
    for rank in _numbers(found[2].strip(b"[]")):
        kind: DeathKind = "memory" if found[3] == b"Out Of Memory" else "signal"
        yield _death(kind, f"srun: {what}", line, rank=rank, host=clean_text(found[1]))


def _death(
    kind: DeathKind,
    text: str,
    line: Line,
    message: Message | None = None,
    *,
    rank: int | None = None,
    pid: int | None = None,
    host: str | None = None,
    consequence: bool = False,
    frame: str | None = None,
) -> Death:
    local = None
    if message is not None:
        rank = message.rank if message.rank is not None else message.task
        local = message.local
    when = when_of(line.text) if message is None else message.when
    return Death(kind, text, rank, local, pid, host, when, line.offset, consequence, frame)


def _numbers(text: bytes) -> list[int]:
    """Return the numbers in "3,5-7"; none where a range is absurd."""
    found: list[int] = []
    for part in text.split(b","):
        first, _, last = part.partition(b"-")
        if first.isdigit() and (last.isdigit() or not last):
            begin, end = int(first), int(last or first)
            if begin <= end < MAX_LOG_RANKS and end - begin < MAX_LOG_RANKS:
                found.extend(range(begin, end + 1))
    return found
