"""Where a process is, by the frames of its main thread: in a collective, in a wait for its device, or elsewhere.

Frames of Python decide; native frames above the innermost of these show a wait for the device or a call of a
communication library. A stack without frames of Python shows no more than that. Used by `stacks`,
and by what judges stacks.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from tracekit.evidence.stack_lines import StackKind, Thread

Activity = Literal["collective", "device", "waiting", "elsewhere", "unknown"]
"""Where a process is: in a collective or a wait for one, in a wait for its device, in some other wait, or elsewhere.

A wait for a message that a program asks by itself (`work.wait()`) shows no frame of torch. unknown: native frames alone
that end in a wait or bear no names.
"""

_COLLECTIVE: Final = re.compile(
    r"\b(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|monitored_barrier|gather|scatter"
    r"|reduce|send|recv|isend|irecv|batch_isend_irecv|_communicate|wait|wait_tensor|wait_stream|rendezvous"
    r"|init_process_group|_new_process_group_helper|new_group|destroy_process_group|foreach_\w+)\w*$"
)
_DISTRIBUTED: Final = re.compile(
    r"torch/distributed/|torch/_C/_distributed|megatron/core/pipeline|deepspeed/comm|distributed/device_communicators/"
)
_COMMUNICATION: Final = re.compile(
    r"^lib(?:nccl|rccl|mpi|hccl|ccl|nvshmem_host|mscclpp)\b"
    r"|(?:^|[ :])(?:c10d::(?:ops::|ProcessGroup|Work|\w*Store)|gloo::|(?:p?nccl|Hccl)[A-Z]|P?MPI_[A-Z])"
)
"""Native calls that other ranks must join: of NCCL and its kin, MPI, Gloo, and torch's process groups and stores."""
_DEVICE: Final = re.compile(
    r"\b(?:synchronize|item|tolist|cpu|_local_scalar_dense|nonzero|stream_synchronize|block_until_ready)$"
    r"|jax/_src/array\.py:\d+ (?:\w+\.)?_value$"
)
_READS_DEVICE: Final = re.compile(r"\.(?:item|tolist|cpu|synchronize|nonzero|block_until_ready)\(")
"""The same in a line of source, which pystack and gdb print: these functions are not written in Python."""
_DRIVER: Final = re.compile(
    r"^lib(?:cuda|cudart|amdhip64|hsa-runtime64|ascendcl)\b"
    r"| (?:cuda|hip)(?:Stream|Device|Event)Synchronize$| cu(?:Stream|Ctx|Event)Synchronize\w*$"
    r"| torch::autograd::\w*Engine::execute"
)
"""Native calls in which a host waits for its device, or for the engine of its backward pass, which does."""
_ENGINE: Final = re.compile(
    r"torch/autograd/(?:__init__|graph)\.py:\d+ (?:_engine_run_backward|(?:\w+\.)?backward|grad)$"
)
"""Where the main thread waits while the engine's threads run the backward pass."""
_WAIT: Final = re.compile(r"[ .](?:\w*_)?(?:wait|recv|irecv|send|isend)(?:_\w*)?$")
_STANDARD: Final = re.compile(
    r"(?:threading|queue|selectors|subprocess|socket)\.py|multiprocessing/|concurrent/|asyncio/"
)
"""Waits of Python's own modules: for a loader, a lock, a file, never for a message between ranks."""
_IDLE: Final = re.compile(
    r" (?:\?\?|0x[0-9a-f]+|\w*(?:cond_|futex|sem_|epoll_|rwlock|mutex|nanosleep|sched_yield|syscall|lock_wait)\w*"
    r"|(?:__)?(?:GI_+)?(?:poll|ppoll|select|wait4?|waitpid|clone3?|pause|syscall)\b.*)$"
)
"""Innermost native frames that do not show what a process does: waits of the system, and functions without a name."""
_HELPER: Final = re.compile(
    r"torch/utils/data/_utils/worker\.py|multiprocessing/resource_|_inductor/compile_worker"
    r"|concurrent/futures/process\.py:\d+ _process_worker"
)
"""Frames of processes that serve a rank: loaders' workers, those that compile, those of a pool."""
_NEXT: Final = 2
"""Frames from the innermost one in which a function of this name waits itself."""
_NEAR: Final = 12
"""Frames from the innermost one within which a collective counts as the place: torch's own calls lie above it."""


@dataclass(frozen=True, slots=True)
class RankStack:
    """The main thread of one process. frames: "file:line function", innermost first; source: the innermost one's line.

    sample: the number of this dump of its process in the file, from 0. pid: 0 where the file does not show it.
    """

    path: str
    kind: StackKind
    rank: int | None
    pid: int
    frames: tuple[str, ...]
    sample: int = 0
    source: str = ""
    writer: str = ""
    """What the launcher puts before its lines."""
    thread: str = ""
    """The number of the main thread, which differs between processes; empty where the file does not show it."""

    @property
    def process(self) -> tuple[str, str, int, str]:
        """Return what the samples of one process share."""
        return self.path, self.writer, self.pid, self.thread

    @property
    def activity(self) -> Activity:
        """Return where the process is."""
        return _activity(self.frames, self.source)

    @property
    def place(self) -> tuple[str, ...]:
        """Return the frames that change only where the process moves: those of Python, where there are any."""
        return tuple(python_frames(self.frames)) or self.frames


def _activity(frames: Sequence[str], source: str = "") -> Activity:
    """Return where a process with these frames is, innermost first. source: the line of the innermost frame.

    In a backward pass the main thread waits for the engine's threads, and these for the device.
    """
    python = python_frames(frames)
    if any(_DISTRIBUTED.search(f) and _COLLECTIVE.search(f) for f in python[:_NEAR]):
        return "collective"
    native = frames[: frames.index(python[0])] if python else frames
    if any(_COMMUNICATION.search(frame) for frame in native):
        return "collective"
    if any(_DRIVER.search(frame) for frame in native) or _READS_DEVICE.search(source):
        return "device"
    if not python:
        return "unknown" if not native or _IDLE.search(native[0]) else "elsewhere"
    if waits_for_device(python[0]):
        return "device"
    if any(_WAIT.search(frame) and not _STANDARD.search(frame) for frame in python[:_NEXT]):
        return "waiting"
    return "elsewhere"


def python_frames(frames: Sequence[str]) -> list[str]:
    """Return the frames of Python: their file is a program's, or text that was run."""
    return [frame for frame in frames if frame.partition(":")[0].endswith((".py", ">"))]


def waits_for_device(frame: str) -> bool:
    """Return whether a frame of Python waits for the device, or for the engine of the backward pass."""
    return _DEVICE.search(frame) is not None or runs_backward(frame)


def runs_backward(frame: str) -> bool:
    """Return whether a frame of Python waits for the engine of the backward pass."""
    return _ENGINE.search(frame) is not None


def serves_a_rank(frames: Sequence[str]) -> bool:
    """Return whether a process with these frames is a helper of a rank, as a loader's worker is."""
    return any(_HELPER.search(frame) for frame in frames)


def main_thread(threads: Iterable[Thread]) -> Thread | None:
    """Return the thread that runs the program: named so, the one that a module began, the first one, or the current."""
    listed = [thread for thread in threads if thread.frames and not thread.device]
    named = [t for t in listed if t.name == "MainThread"]
    began = [t for t in listed if t.runs_program]
    first = [t for t in listed if t.kind == "gdb" and t.ident == b"1"]
    current = [t for t in listed if t.current]
    main = next(iter((*named, *began, *first, *current, *reversed(listed))), None)
    return main if main is None else _with_engine(main, listed)


def _with_engine(main: Thread, threads: Iterable[Thread]) -> Thread:
    """Return the main thread, below the frames of the thread that runs its backward pass where one shows frames.

    Autograd's threads are begun by no module of Python.
    """
    own = next(iter(python_frames(main.frames)), "")
    if not runs_backward(own):
        return main
    begun = (t for t in threads if t is not main and "threading.py:" not in t.frames[-1])
    engine = next((t for t in begun if python_frames(t.frames)), None)
    return main if engine is None else replace(main, frames=[*engine.frames, *main.frames])
