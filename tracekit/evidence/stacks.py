"""Stacks of Python processes as py-spy and faulthandler print them: the thread of each rank that runs the program.

py-spy begins a process with `Process N: command`, threads with `Thread N (active): "MainThread"`, and frames stand
innermost first as `function (file:line)`. faulthandler writes `Thread 0x… (most recent call first):` and
`File "file", line N in function`. Sources: benfred/py-spy src/dump.rs, CPython's traceback.c. Used by `gather`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tracekit.evidence.line_scan import strip_colours
from tracekit.evidence.log_file import rank_of_path
from tracekit.evidence.log_lines import clean_text
from tracekit.thresholds.evidence import MAX_LOG_RANKS, MAX_STACK_FRAMES, MAX_STACKS, MAX_TEXT

StackKind = Literal["py_spy", "faulthandler"]
"""The program that printed a stack."""
Activity = Literal["collective", "device", "waiting", "elsewhere"]
"""Where a process is: in a collective or a wait for one, in a wait for its device, in some other wait, or elsewhere.

A wait for a message that a program asks by itself (`work.wait()`) shows no frame of torch.
"""

_PROCESS: Final = re.compile(rb"Process (\d{1,9}): (.{0,4000})")
_PY_THREAD: Final = re.compile(rb'Thread (0x[0-9A-Fa-f]+|\d+) \(([a-z+]{1,20})\)(?:: "([^"\n]{0,200})")?')
_PY_FRAME: Final = re.compile(rb"\s+(\S.{0,300}?) \(([^()\n]{1,400}?)(?::(\d{1,9}))?\)\s*$")
_FH_THREAD: Final = re.compile(
    rb"(Current thread|Thread) (0x[0-9A-Fa-f]+)(?: \[[^\]\n]{0,60}\])? \(most recent call first\):"
)
_FH_FRAME: Final = re.compile(rb'  File "([^"\n]{1,400})", line (\d{1,9}|\?\?\?) in (\S.{0,200}?)\s*$')
_RANK: Final = re.compile(
    rb"(?<![A-Za-z0-9_])(?<!local-)(?<!node-)(?<!group-)(?:global[_ -]?)?rank[ =:_#]{0,3}(\d{1,7})\b",
    re.IGNORECASE,
)
_LAUNCHED: Final = re.compile(rb"\[rank(\d{1,7})\]:? ?")
_COLLECTIVE: Final = re.compile(
    r"\b(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|monitored_barrier|gather|scatter"
    r"|reduce|send|recv|isend|irecv|batch_isend_irecv|_communicate|wait|wait_tensor|wait_stream|rendezvous"
    r"|init_process_group|_new_process_group_helper|new_group|destroy_process_group|foreach_\w+)\w*$"
)
_DISTRIBUTED: Final = re.compile(
    r"torch/distributed/|torch/_C/_distributed|megatron/core/pipeline|deepspeed/comm"
)
_DEVICE: Final = re.compile(
    r"\b(?:synchronize|item|tolist|cpu|_local_scalar_dense|nonzero|stream_synchronize)$"
)
_STREAM: Final = re.compile(
    r" (?:cuda|hip)(?:Stream|Device|Event)Synchronize$| cu(?:Stream|Ctx|Event)Synchronize\w*$"
)
"""Native calls in which a host waits for its device."""
_ENGINE: Final = re.compile(
    r"torch/autograd/(?:__init__|graph)\.py:\d+ (?:_engine_run_backward|backward|grad)$"
)
"""Where the main thread waits while the engine's threads run the backward pass."""
_WAIT: Final = re.compile(r" (?:\w*_)?(?:wait|recv|irecv|send|isend)(?:_\w*)?$")
_STANDARD: Final = re.compile(
    r"(?:threading|queue|selectors|subprocess|socket)\.py|multiprocessing/|concurrent/|asyncio/"
)
"""Waits of Python's own modules: for a loader, a lock, a file, never for a message between ranks."""


@dataclass(frozen=True, slots=True)
class RankStack:
    """The main thread of one process. frames: "file:line function", innermost first.

    sample: the number of this dump of its process in the file, from 0. pid: 0 where the file does not tell it.
    """

    path: str
    kind: StackKind
    rank: int | None
    pid: int
    frames: tuple[str, ...]
    sample: int = 0

    @property
    def activity(self) -> Activity:
        """Return where the process is, by its frames of Python; the native ones above these show a wait for its device.

        In a backward pass the main thread waits for the engine's threads, and these for the device.
        """
        python = [frame for frame in self.frames if _is_python(frame)]
        if any(_DISTRIBUTED.search(f) and _COLLECTIVE.search(f) for f in python[:_NEAR]):
            return "collective"
        native = self.frames[: self.frames.index(python[0])] if python else self.frames
        if any(_STREAM.search(frame) for frame in native) or (python and _waits_for_device(python[0])):
            return "device"
        if any(_WAIT.search(frame) and not _STANDARD.search(frame) for frame in python[:_NEXT]):
            return "waiting"
        return "elsewhere"


def _is_python(frame: str) -> bool:
    """Return whether a frame is one of Python: its file is a program's, or text that was run."""
    return frame.partition(":")[0].endswith((".py", ">"))


def _waits_for_device(frame: str) -> bool:
    return _DEVICE.search(frame) is not None or _ENGINE.search(frame) is not None


_BEGINS: Final = ("<module>", " _run_code", " _run_module_as_main")
"""Outermost functions of a main thread."""
_NEXT: Final = 2
"""Frames from the innermost one in which a function of this name waits itself."""
_NEAR: Final = 12
"""Frames from the innermost one within which a collective counts as the place: torch's own calls lie above it."""


@dataclass
class _Thread:
    """One thread being read."""

    kind: StackKind
    name: str
    current: bool
    ident: bytes = b""
    frames: list[str] = field(default_factory=list)

    @property
    def runs_program(self) -> bool:
        """Whether a module began it, or `python -m`: the main thread."""
        return bool(self.frames) and self.frames[-1].endswith(_BEGINS)


def is_stacks(head: bytes) -> bool:
    """Return whether a file that begins so holds stacks and is no log with one in it."""
    if head.lstrip()[:1] == b"[":
        return b'"thread_name"' in head and b'"frames"' in head
    text = strip_colours(head)
    threads = len(_PY_THREAD.findall(text)) + len(_FH_THREAD.findall(text))
    frames = len(re.findall(_PY_FRAME.pattern, text, re.MULTILINE))
    frames += len(re.findall(_FH_FRAME.pattern, text, re.MULTILINE))
    lines = text.count(b"\n") + 1
    return threads > 0 and 2 * (threads + frames) > lines - 2 * threads


def stacks_in(path: str, data: bytes) -> list[RankStack]:
    """Return the main threads of the processes in a text; `path` may tell the rank of a lone process."""
    listed = data.lstrip()[:1] == b"["
    found = list(_of_json(path, data) if listed else _processes(path, strip_colours(data)))
    if len({s.pid for s in found}) <= 1 and all(s.rank is None for s in found):
        rank = rank_of_path(path)
        found = [RankStack(path, s.kind, rank, s.pid, s.frames, s.sample) for s in found]
    return found


def _of_json(path: str, data: bytes) -> Iterator[RankStack]:
    """Yield the main threads of what `py-spy dump --json` prints; ValueError where it is no JSON."""
    threads = [t for t in json.loads(data) if isinstance(t, dict) and isinstance(t.get("frames"), list)]
    pids: dict[int, None] = dict.fromkeys(pid for t in threads if type(pid := t.get("pid")) is int)
    for pid in pids:
        own = []
        for thread in threads:
            if thread.get("pid") == pid:
                kept = _Thread("py_spy", str(thread.get("thread_name") or "")[:MAX_TEXT], current=False)
                kept.frames = [
                    _json_frame(f) for f in thread["frames"][:MAX_STACK_FRAMES] if isinstance(f, dict)
                ]
                own.append(kept)
        if (main := _main(own)) is not None:
            yield RankStack(path, "py_spy", None, pid, tuple(main.frames))


def _json_frame(frame: dict[str, Any]) -> str:
    file, line, name = (str(frame.get(key, ""))[:MAX_TEXT] for key in ("filename", "line", "name"))
    return f"{file}:{line} {name}"


def _processes(path: str, text: bytes) -> Iterator[RankStack]:
    """Yield a stack for each process that the text holds, at most MAX_STACKS."""
    rank: int | None = None
    pid, threads = 0, list[_Thread]()
    samples: dict[tuple[int | None, int], int] = {}
    count = 0

    def ended() -> Iterator[RankStack]:
        main = _main(threads)
        if main is not None:
            number = samples.get((rank, pid), 0)
            samples[rank, pid] = number + 1
            yield RankStack(path, main.kind, rank, pid, tuple(main.frames), number)

    for given in text.split(b"\n"):
        launched = _LAUNCHED.match(given)
        line = given[launched.end() :] if launched else given
        if frame := _frame(line):
            if threads and len(threads[-1].frames) < MAX_STACK_FRAMES:
                threads[-1].frames.append(frame)
        elif found := _PROCESS.match(line):
            yield from ended()
            threads, pid, count = [], int(found[1]), count + 1
            told = _RANK.search(found[2])
            rank = int(told[1]) if told else _last_rank(given, rank if count == 1 else None)
        elif thread := _thread(line):
            if launched and int(launched[1]) != rank:
                yield from ended()
                threads, rank, pid = [], int(launched[1]), 0
            elif thread.kind == "faulthandler" and _of_next_dump(threads, thread):
                yield from ended()
                threads = []
            threads.append(thread)
        elif (told := _RANK.search(line[:200])) and not line.startswith(b" "):
            yield from ended()
            threads, rank, pid, count = [], int(told[1]), 0, 0
        if len(samples) >= MAX_STACKS:
            return
    yield from ended()


def _of_next_dump(threads: Iterable[_Thread], thread: _Thread) -> bool:
    """Return whether a thread of faulthandler begins another dump than that of `threads`.

    A dump shows each thread once, at most one as the current one, and the main thread last. The current one is the main
    thread where a signal asks for the dump, and another one where a thread of the program does.
    """
    known = list(threads)
    current = [t for t in known if t.current]
    again = any(t.ident == thread.ident for t in known)
    return again or bool(current and (thread.current or current[0].runs_program))


def _last_rank(_line: bytes, before: int | None) -> int | None:
    """Return the rank that a heading before the first process told."""
    return before if before is None or before < MAX_LOG_RANKS else None


def _thread(line: bytes) -> _Thread | None:
    """Return the thread that a line begins; None where it begins none."""
    if found := _FH_THREAD.match(line):
        return _Thread("faulthandler", "", found[1] == b"Current thread", found[2])
    if found := _PY_THREAD.match(line.strip()):
        return _Thread("py_spy", clean_text(found[3] or b""), current=False)
    return None


def _frame(line: bytes) -> str | None:
    """Return the frame in a line as "file:line function"; None where it holds none."""
    if found := _FH_FRAME.match(line):
        return f"{clean_text(found[1])}:{clean_text(found[2])} {clean_text(found[3])}"
    if found := _PY_FRAME.match(line):
        return f"{clean_text(found[2])}:{clean_text(found[3] or b'0')} {clean_text(found[1])}"
    return None


def _main(threads: Iterable[_Thread]) -> _Thread | None:
    """Return the thread that runs the program: named so, the current one, or the one that a module began."""
    listed = [thread for thread in threads if thread.frames]
    named = [t for t in listed if t.name == "MainThread"]
    began = [t for t in listed if t.runs_program]
    current = [t for t in listed if t.current]
    main = next(iter((*named, *began, *current, *reversed(listed))), None)
    return main if main is None else _with_engine(main, listed)


def _with_engine(main: _Thread, threads: Iterable[_Thread]) -> _Thread:
    """Return the main thread, below the frames of the thread that runs its backward pass where one shows frames.

    Autograd's threads are begun by no module of Python.
    """
    own = next((frame for frame in main.frames if _is_python(frame)), "")
    if _ENGINE.search(own) is None:
        return main
    begun = (t for t in threads if t is not main and "threading.py:" not in t.frames[-1])
    engine = next((t for t in begun if any(_is_python(frame) for frame in t.frames)), None)
    return main if engine is None else replace(main, frames=[*engine.frames, *main.frames])
