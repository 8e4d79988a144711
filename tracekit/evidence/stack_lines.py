"""The lines of stacks as py-spy, faulthandler, pystack and gdb print them: where a thread begins, and its frames.

py-spy: `Thread N (active): "MainThread"`, then `function (file:line)`. faulthandler: `Thread 0x… (most recent call
first):`, then `File "file", line N in function`. pystack: `Traceback for thread N (name) [] (most recent call last):`,
outermost first. gdb, with cuda-gdb and rocgdb: `Thread N (Thread 0x… (LWP n)):`, then `#0 … in function () from
library`, and for `py-bt` the frames of Python. Sources: benfred/py-spy src/dump.rs, CPython's traceback.c and
Tools/gdb/libpython.py, bloomberg/pystack traceback_formatter.py, gdb/stack.c. Used by `stacks`.
"""

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from tracekit.evidence.log_lines import clean_text

StackKind = Literal["py_spy", "faulthandler", "pystack", "gdb"]
"""The program that printed a stack."""

OPENS: Final = ("(most recent call ", " (idle", " (active", "Traceback for thread ", " (LWP ")
"""Each line that begins a thread holds one of these texts."""

_BEGINS: Final[tuple[tuple[StackKind, re.Pattern[bytes]], ...]] = (
    (
        "faulthandler",
        re.compile(
            rb"(?:(?P<current>Current thread|Thread) (?P<id>0x[0-9A-Fa-f]+)(?: \[[^\]\n]{0,60}\])?|(?P<only>Stack))"
            rb" \(most recent call first\):"
        ),
    ),
    (
        "pystack",
        re.compile(
            rb"Traceback for thread (?P<id>\d{1,9})(?: \([^\n]{0,80}?\))? \[[^\]\n]{0,80}\] \(most recent call last\):"
        ),
    ),
    (
        "gdb",
        re.compile(
            rb"Thread (?P<id>\d{1,6}) \((?:Thread |LWP |AMDGPU )[^\n]{1,200}\):?\s*$"
            rb"|(?P<only>Traceback) \(most recent call first\):"
        ),
    ),
    (
        "py_spy",
        re.compile(
            rb'Thread (?P<id>0x[0-9A-Fa-f]+|\d+) \((?:active|idle)[a-z+]{0,14}\)(?:: "(?P<name>[^"\n]{0,200})")?'
        ),
    ),
)
"""By program the lines that begin a thread; `only` where it prints one thread without its number."""
_OUTERMOST: Final = ("<module>", " _run_code", " _run_module_as_main")
"""Functions of a main thread that begin it."""
_LWP: Final = re.compile(
    rb"\(LWP (\d{1,9})\)|\bthread (\d{1,9})(?: \(| \[)|^Thread (\d{1,9}) \((?:active|idle)"
)
_WAVE: Final = re.compile(rb"\(AMDGPU ")
_FH_FRAME: Final = re.compile(rb'  File "([^"\n]{1,400})", line (\d{1,9}|\?\?\?) in (\S.{0,200}?)\s*$')
_PY_FRAME: Final = re.compile(rb"(?:    |\t ?)(\S.{0,300}?) \(([^()\n]{1,400}?)(?::(\d{1,9}))?\)\s*$")
_PYSTACK_FRAME: Final = re.compile(
    rb'    \((Python|C)\) File "([^"\n]{1,400})", line (\d{1,9}), in (\S{1,300})'
    rb"(?: \(inlined\))?(?: \(([^()\n]{1,400})\))?"
)
_GDB_FRAME: Final = re.compile(rb"#\d{1,4} +(?:0x[0-9a-f]+ in )?([^\n]{1,2000})")
_GDB_PLACE: Final = re.compile(rb" (?:from (\S{1,400})|at (\S{1,400}?):(\d{1,9}))\s*$")
_GDB_PYTHON: Final = re.compile(
    rb"Frame 0x[0-9a-f]+, for file ([^\n]{1,400}?), line (\d{1,9}), in ([^\s()]{1,200})"
)
_GDB_TRACE: Final = re.compile(rb'  File "([^"\n]{1,400})", line (\d{1,9}), in (\S.{0,200}?)\s*$')
_ANONYMOUS: Final = b"(anonymous namespace)"


class Opening(NamedTuple):
    """A line that begins a thread. ident: its number, empty where it is the only one. at: where the line's text begins.

    lwp: its number for the system, which is the process's for its main thread; 0 unknown. device: whether it is a
    thread of a GPU, as rocgdb lists them.
    """

    kind: StackKind
    ident: bytes
    name: str
    current: bool = False
    lwp: int = 0
    device: bool = False
    at: int = 0


@dataclass
class Thread:
    """One thread being read; frames innermost first, "file:line function"; source: the line of the innermost one.

    fresh: whether the line before was a frame, so that a line of source may follow.
    """

    kind: StackKind
    ident: bytes = b""
    name: str = ""
    current: bool = False
    lwp: int = 0
    device: bool = False
    frames: list[str] = field(default_factory=list)
    source: str = ""
    fresh: bool = False

    @property
    def runs_program(self) -> bool:
        """Return whether a module began the thread, or `python -m`: the main thread."""
        return bool(self.frames) and self.frames[-1].endswith(_OUTERMOST)


def opening(line: bytes) -> Opening | None:
    """Return what a line begins, behind any prefix; None where it begins no thread."""
    for kind, pattern in _BEGINS:
        if (found := pattern.search(line)) is not None:
            parts = found.groupdict()
            return Opening(
                kind,
                parts["id"] or b"",
                clean_text(parts.get("name") or b""),
                parts.get("current") == b"Current thread" or bool(parts.get("only")),
                int(lwp[lwp.lastindex or 0]) if (lwp := _LWP.search(found[0])) else 0,
                _WAVE.search(found[0]) is not None,
                found.start(),
            )
    return None


def take_frame(thread: Thread, line: bytes, most: int) -> bool:
    """Add the frame in a line to its thread, which keeps at most `most`; return whether the line holds one.

    pystack prints the outermost frame first, so that its frames are put before the others.
    """
    frame = _frame(thread, line)
    if frame is None:
        return False
    if thread.kind == "pystack":
        thread.frames.insert(0, frame)
        del thread.frames[most:]
    elif len(thread.frames) < most:
        thread.frames.append(frame)
    return True


def _frame(thread: Thread, line: bytes) -> str | None:
    """Return the frame in a line as "file:line function"; None where it holds none."""
    if thread.kind == "gdb":
        return _of_gdb(line)
    if thread.kind == "pystack":
        found = _PYSTACK_FRAME.match(line)
        if found is None:
            return None
        native = found[1] == b"C" and found[5] is not None
        return _text(_base(found[5]) if native else found[2], b"0" if native else found[3], found[4])
    if found := (_FH_FRAME if thread.kind == "faulthandler" else _PY_FRAME).match(line):
        file, number, function = (
            found.groups() if thread.kind == "faulthandler" else (found[2], found[3], found[1])
        )
        return _text(file, number, function)
    return None


def _of_gdb(line: bytes) -> str | None:
    """Return the frame of Python that gdb shows in a line, else its native frame; None where it holds none."""
    if found := (_GDB_PYTHON.search(line) or _GDB_TRACE.match(line)):
        return _text(found[1], found[2], found[3])
    found = _GDB_FRAME.match(line)
    if found is None:
        return None
    place = _GDB_PLACE.search(found[1])
    function = found[1].replace(_ANONYMOUS, b"").partition(b"(")[0].strip() or b"??"
    if place is None:
        return _text(b"", b"0", function)
    return _text(_base(place[1] or place[2]), place[3], function)


def library_of(line: bytes) -> str | None:
    """Return the library in a line that gdb broke before it; None where it holds none."""
    found = re.match(rb"\s+from (\S{1,400})\s*$", line)
    return None if found is None else clean_text(_base(found[1]))


def _base(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _text(file: bytes, line: bytes | None, function: bytes) -> str:
    return f"{clean_text(file)}:{clean_text(line or b'0')} {clean_text(function)}"
