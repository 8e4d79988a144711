"""Stacks of processes that programs such as py-spy and gdb print: the thread of each rank that runs the program.

`stack_lines` reads the lines, `stack_places` says where a process is; here threads are put together by process. Lines
of several processes may be mixed where each bears its launcher's prefix. Used by `gather`, and by `logs` for stacks in
a log.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tracekit.evidence.line_scan import Line, strip_colours
from tracekit.evidence.log_exceptions import TIME
from tracekit.evidence.log_file import rank_of_path
from tracekit.evidence.log_lines import clean_text, messages_of
from tracekit.evidence.stack_lines import OPENS, Opening, Thread, library_of, opening, take_frame
from tracekit.evidence.stack_places import RankStack, main_thread, python_frames, serves_a_rank
from tracekit.thresholds.evidence import MAX_LOG_RANKS, MAX_PREFIX, MAX_STACK_FRAMES, MAX_STACKS, MAX_TEXT

_PROCESS: Final = re.compile(rb"Process (\d{1,9}): (.{0,4000})")
_PID: Final = re.compile(
    rb"(?:Attaching to (?:program: .{1,300}, )?process |\[Inferior \d+ \(process |Pyspy dump for PID |pid: )(\d{1,9})"
    rb"|Stack dump for \S{1,80} +(\d{1,9})"
)
_RANK: Final = re.compile(
    rb"(?<![A-Za-z0-9_])(?<!local-)(?<!node-)(?<!group-)(?:global[_ -]?)?rank[ =:_#]{0,3}(\d{1,7})\b",
    re.IGNORECASE,
)
_BARE: Final = re.compile(rb"#0 +(?:0x[0-9a-f]+ in )?\S[^\n]{0,400}\(")
"""The first frame that gdb prints of one thread alone."""
_PAGE: Final = re.compile(rb"</?(?:pre|h\d)>")
_OPENING: Final = tuple(text.encode() for text in OPENS)
_GAPS: Final = 2
"""Lines without a frame after which a stack in a log has ended: blank ones, and such as gdb's of its frames' files."""


@dataclass
class _Stream:
    """The threads of one writer: the process being read, and the dumps of it so far."""

    head: bytes
    rank: int | None = None
    pid: int = 0
    threads: list[Thread] = field(default_factory=list)
    samples: dict[tuple[int | None, int], int] = field(default_factory=dict)

    def ended(self, path: str) -> Iterator[RankStack]:
        """Yield the main thread of the process that ends here, and forget its threads."""
        main, self.threads = main_thread(self.threads), []
        if main is not None:
            writer, pid = clean_text(TIME.sub(b"", self.head)), self.pid or main.lwp
            number = self.samples.get((self.rank, pid), 0)
            self.samples[self.rank, pid] = number + 1
            frames, thread = tuple(main.frames), clean_text(main.ident)
            yield RankStack(path, main.kind, self.rank, pid, frames, number, main.source, writer, thread)

    def begins_next(self, opened: Opening) -> bool:
        """Return whether a thread begins another dump than that of the threads so far.

        A dump shows each thread once. py-spy's begins with the main thread, and that of faulthandler ends with it: its
        current thread is the main one where a signal asks for the dump, another one where a thread of the program does.
        """
        known = self.threads
        if any(t.kind != opened.kind for t in known):
            return True
        if opened.kind == "py_spy":
            return opened.name == "MainThread" and any(t.name == "MainThread" for t in known)
        if opened.kind == "gdb" and len(known) > 1 and known[-1].ident == b"1":
            return True  # the first thread is the last one listed
        if any(t.ident == opened.ident for t in known):
            return True
        current = [t for t in known if t.current and opened.kind == "faulthandler"]
        return bool(current and (opened.current or current[0].runs_program))


class StackReader:
    """Takes the lines of one file in turn; writers are known by what they put before their lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: dict[bytes, _Stream] = {}
        self._sizes: list[int] = []
        """Lengths of what writers put before their lines, the longest first."""
        self._found: list[tuple[bytes, RankStack]] = []
        self._stream(b"")

    @property
    def begun(self) -> bool:
        """Return whether a thread has begun."""
        return bool(self._found) or any(stream.threads for stream in self._streams.values())

    def take(self, line: bytes) -> bool:
        """Take a line; return whether it belongs to a stack."""
        if (opened := opening(line)) is not None and opened.at <= MAX_PREFIX:
            self._begin(self._stream(line[: opened.at]), opened)
            return True
        stream, bare = self._writer(line)
        if stream is None:
            return False
        if not stream.threads and _BARE.match(bare) is not None:
            self._begin(stream, Opening("gdb", b"", "", current=True))
        return bool(stream.threads) and _taken(stream.threads[-1], bare)

    def take_heading(self, line: bytes) -> None:
        """Take a line of a file of stacks that begins a process or names the rank of what follows."""
        stream = self._stream(b"")
        if found := _PROCESS.match(line):
            self._end(stream)
            named = _RANK.search(found[2])
            follows = stream.pid in {0, int(found[1])}  # the heading, or another dump of the same process
            stream.rank = int(named[1]) if named else stream.rank if follows else None
            stream.pid = int(found[1])
        elif found := _PID.search(line[:MAX_PREFIX]):
            if not line.startswith(b"[Inferior"):
                self._end(stream)
            stream.pid = int(found[1] or found[2])
            if line.startswith(b"[Inferior"):  # gdb names its process at the end
                self._end(stream)
        elif (named := _RANK.search(line[:200])) and not line.startswith(b" "):
            self._end(stream)
            rank = int(named[1])
            stream.rank, stream.pid = rank if rank < MAX_LOG_RANKS else None, 0

    def take_thread(self, line: Line) -> None:
        """Take the thread that a line of a log begins, with its frames; any other line shows nothing here."""
        opened = opening(line.text) if any(text in line.text for text in _OPENING) else None
        if opened is None or opened.at > MAX_PREFIX or len(self._found) >= MAX_STACKS:
            return
        stream = self._stream(line.text[: opened.at])
        if opened.name == "MainThread":
            self._end(stream)
            stream.pid = int(pids[-1][0]) if (pids := _PROCESS.findall(line.before)) else 0
        self._begin(stream, opened)
        gaps = 0
        for text in line.after()[: 2 * MAX_STACK_FRAMES]:
            writer, bare = self._writer(text)
            if writer is stream:
                over = opening(text) is not None or not stream.threads
                gaps = _GAPS + 1 if over else 0 if _taken(stream.threads[-1], bare) else gaps + 1
            if gaps > _GAPS:
                break

    def result(self, rank_of: Callable[[bytes], int | None], lone: int | None) -> list[RankStack]:
        """Return the stacks of the processes that the lines show, without helpers of ranks, at most MAX_STACKS.

        rank_of: the rank of a writer, by what it puts before its lines. lone: the rank of the file's only process.
        """
        for stream in self._streams.values():
            self._end(stream)
        return placed(self._found[:MAX_STACKS], rank_of, lone)

    def _begin(self, stream: _Stream, opened: Opening) -> None:
        """Open a thread, of the next dump where it belongs to one."""
        last = stream.threads[-1] if stream.threads else None
        if opened.kind == "gdb" and not opened.ident and last is not None and last.kind == "gdb":
            return  # frames of Python of the thread that was named before
        if stream.begins_next(opened):
            self._end(stream)
        stream.threads.append(Thread(*opened[:-1]))

    def _end(self, stream: _Stream) -> None:
        if len(self._found) < MAX_STACKS:
            self._found.extend((stream.head, stack) for stack in stream.ended(self._path))
        stream.threads = []

    def _stream(self, head: bytes) -> _Stream:
        plain = TIME.sub(b"", head)
        if (known := self._streams.get(plain)) is not None:
            return known
        made = _Stream(head)
        if len(self._streams) < MAX_LOG_RANKS:
            self._streams[plain] = made
            self._sizes = sorted({len(plain), *self._sizes}, reverse=True)
        return made

    def _writer(self, line: bytes) -> tuple[_Stream | None, bytes]:
        """Return the writer of a line, and the line without what the writer puts before it."""
        plain = TIME.sub(b"", line) if self._sizes[0] else line
        for size in self._sizes:
            if (stream := self._streams.get(plain[:size])) is not None:
                return stream, plain[size:]
        return None, line


def is_stacks(head: bytes) -> bool:
    """Return whether a file that begins so holds stacks and is no log with one in it."""
    if head.lstrip()[:1] == b"[" and b'"frames"' in head:
        return b'"thread_name"' in head
    reader, taken, lines = StackReader(""), 0, 0
    for line in _lines(head):
        lines += bool(line.strip())
        taken += reader.take(line)
    return reader.begun and 2 * taken > lines


def stacks_in(path: str, data: bytes, *, agents: int = 1) -> list[RankStack]:
    """Return the main threads of the processes in a text; `path` may name the rank of a lone process.

    agents: as for `rank_of_path`.
    """
    lone = rank_of_path(path, agents=agents)
    if data.lstrip()[:1] == b"[" and b'"frames"' in data:
        return placed([(b"", stack) for stack in _of_json(path, data)], _rank_before, lone)
    reader = StackReader(path)
    for line in _lines(data):
        if not reader.take(line):
            reader.take_heading(line)
    return reader.result(_rank_before, lone)


def placed(
    found: Iterable[tuple[bytes, RankStack]], rank_of: Callable[[bytes], int | None], lone: int | None
) -> list[RankStack]:
    """Return stacks with their ranks, without helpers of ranks. found: each with what precedes its writer's lines.

    A label of several processes is that of a host's task, as of `srun torchrun`, and no rank.
    """
    kept = [(head, stack) for head, stack in found if not serves_a_rank(stack.frames)]
    stacks = [stack if stack.rank is not None else replace(stack, rank=rank_of(head)) for head, stack in kept]
    if len({s.process for s in stacks}) == 1 and all(s.rank is None for s in stacks):
        return [replace(stack, rank=lone) for stack in stacks]
    tasks: dict[str, set[tuple[str, str, int, str]]] = defaultdict(set)
    for stack in stacks:
        tasks[stack.writer].add(stack.process)
    several = {writer for writer, own in tasks.items() if len(own) > 1 and writer and "[rank" not in writer}
    return [replace(stack, rank=None) if stack.writer in several else stack for stack in stacks]


def _lines(text: bytes) -> list[bytes]:
    """Return the lines of a text without colours; of a page of torch's debug server those of its stacks."""
    plain = strip_colours(text)
    if b"<pre>" in plain:
        plain = _PAGE.sub(b"\n", plain[max(plain.find(b"<h2>"), 0) :])
    return plain.split(b"\n")


def _rank_before(head: bytes) -> int | None:
    """Return the rank that a launcher puts before a line; None where it puts none."""
    ranks = [message.task if message.rank is None else message.rank for message in messages_of(head)]
    rank = ranks[-1] if ranks else None
    return rank if rank is None or rank < MAX_LOG_RANKS else None


def _of_json(path: str, data: bytes) -> Iterator[RankStack]:
    """Yield the main threads of what `py-spy dump --json` prints; ValueError where it is no JSON."""
    threads = [t for t in json.loads(data) if isinstance(t, dict) and isinstance(t.get("frames"), list)]
    pids: dict[int, None] = dict.fromkeys(pid for t in threads if type(pid := t.get("pid")) is int)
    for pid in pids:
        own = []
        for thread in threads:
            if thread.get("pid") == pid:
                kept = Thread("py_spy", name=str(thread.get("thread_name") or "")[:MAX_TEXT])
                kept.frames = [
                    _json_frame(f) for f in thread["frames"][:MAX_STACK_FRAMES] if isinstance(f, dict)
                ]
                own.append(kept)
        if (main := main_thread(own)) is not None:
            yield RankStack(path, "py_spy", None, pid, tuple(main.frames))


def _json_frame(frame: dict[str, Any]) -> str:
    file, line, name = (str(frame.get(key, ""))[:MAX_TEXT] for key in ("filename", "line", "name"))
    return f"{file}:{line} {name}"


def _taken(thread: Thread, line: bytes) -> bool:
    """Add what a line holds of a thread's stack; return whether it holds anything of it."""
    before = len(thread.frames)
    if take_frame(thread, line, MAX_STACK_FRAMES):
        thread.fresh = True
        return True
    if thread.kind == "gdb" and before and (library := library_of(line)) is not None:
        thread.frames[-1] = f"{library}:0 {thread.frames[-1].partition(' ')[2]}"
        return True
    if thread.kind == "py_spy" and before and line.startswith(b"        "):
        return True  # a local variable
    if thread.fresh and thread.kind in {"pystack", "gdb"} and line.startswith(b"    "):
        inner = thread.kind == "pystack" or len(python_frames(thread.frames)) == 1
        thread.source = clean_text(line) if inner else thread.source
        thread.fresh = False
        return True
    return False
