"""The exception in which a Python traceback of a log ends, and whether another rank's failure explains it.

The words of Gloo, NCCL, the store and of launchers are about ranks. "Timed out" and "connection reset" are words of any
connection: these are about ranks only where no other library made the connection. Used by `log_deaths`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

from tracekit.evidence.line_scan import Line
from tracekit.thresholds.evidence import MAX_FRAME_LINES

BEGINS: Final = b"Traceback (most recent call last)"
"""Begins a traceback."""
_OF_RANKS: Final = re.compile(
    rb"Dist(?:Backend|Network|Store)Error|ChildFailedError|NCCL (?:error|communicator|operation)|Watchdog caught"
    rb"|KeyboardInterrupt|SignalException|SystemExit|monitoredBarrier|\b[Gg]loo\b|RendezvousTimeout"
    rb"|Process(?:Exited|Raised)Exception|ActorDied|RayTaskError|CalledProcessError"
    rb"|caused (?:pair|connection) closure|remote process exited|mismatch between collectives"
    rb"|Throwing across all ranks|CheckpointException|same model across all ranks|of the same param in process 0"
    rb"|(?i:hccl)|AclrtSynchronize\w*Timeout|NRT_TIMEOUT|oneCCL|Barrier timed out|stopped sending heartbeats"
    rb"|ProcessGroupWrapper: Monitored|verifying shape tensors for collective"
)
"""What only the failure of another rank, or the end of the whole job, makes a rank say."""
_BACKENDS: Final = (
    ("HCCL", re.compile(r"(?i:hccl)|AclrtSynchronize\w*Timeout")),
    ("Neuron's runtime", re.compile(r"NRT_TIMEOUT")),
    ("oneCCL", re.compile(r"oneCCL")),
    ("TorchComms", re.compile(r"Aborting process due to timeout")),
)
"""Libraries of collectives with time-outs that do not show the late rank, and how an exception shows each."""
_OF_CONNECTIONS: Final = re.compile(
    rb"closed by (?:remote )?peer|Connection (?:reset|refused|closed)|[Bb]roken ?[Pp]ipe|[Ss]ocket ?[Tt]imeout"
    rb"|[Tt]imed? ?out|failed to recv|EOFError"
)
"""What the end of any connection makes a rank say: to a rank, a web server, a loader's process, a file system."""
_OF_OWN_CALL: Final = re.compile(
    rb"EADDRINUSE|(?i:address already in use)|failed to (?:listen|bind)"
    rb"|^(?!.*(?:mismatch|[Tt]runcated|instead of)).*NCCL error in: .*invalid (?:usage|argument)"
)
"""What no other rank makes a rank say: it cannot hold the store, or NCCL refuses what it asks for, but for messages."""
_LAST_ERROR: Final = b"Last error:"
"""Before the words of NCCL on an error of its own, below the exception."""
_EXCEPTION: Final = re.compile(rb"([A-Za-z_][\w.]{0,120})(?:: (.{0,600}))?$")
_PREFIX: Final = re.compile(rb"(?:\[[^\[\]\n]{1,60}\]:? ?|\([^()\n]{1,80}\) |\d{1,7}: )+(?=\S|  |$)")
_FRAME: Final = re.compile(rb'\s*File "([^"]{1,400})", line (\d+), in (\S{1,200})')
_RANK: Final = re.compile(rb"\[rank(\d{1,7})\]:")
_MODULE: Final = re.compile(rb"[\w.]+(?=\.)")
_PACKAGE: Final = re.compile(rb"(?:site|dist)-packages/(\w+)")
_JOINS_RANKS: Final = frozenset(
    {b"torch", b"c10", b"c10d", b"ray", b"zmq", b"multiprocessing", b"concurrent", b"asyncio", b"socket"}
)
"""Packages by which ranks of one job speak to each other; exceptions of others are of other connections."""
_FILES: Final = re.compile(rb"/torch/(?:utils/data|distributed/checkpoint)/|/torch/serialization\.py$")
"""Parts of torch that speak to loaders' processes and to files."""
_OF_FILE: Final = re.compile(rb"Ran out of input|\[Errno \d{1,3}\] [^\n']{1,80}: '(?!\w+://)")
"""What an exception says that ends in a file: pickle's word, or the name of the file."""
_OF_CPP: Final = frozenset({b"RuntimeError"})
"""Types in which errors of torch's own code arrive."""


TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")
_GOES_ON: Final = re.compile(rb"Exception ignored in|Exception in thread|--- Logging error ---")
"""Words before a traceback that does not end its process: of a destructor, of a thread, of a message."""
_CHILD: Final = re.compile(rb"-- Process (\d{1,7}) terminated with the following error:")
"""Before the traceback of a child, which its parent prints."""
_ERROR_LINES: Final = 8
"""Lines below an exception in which NCCL's last error is looked for."""
_ABOVE: Final = 8
"""Lines above a traceback in which its heading is looked for: other ranks may write in between."""
_PLACE: Final = re.compile(re.escape(BEGINS) + rb": \(RANK (\d{1,7})\)")
"""Begins the traceback of one member of a group in the exception of a checkpoint, which all members raise."""


class Raised(NamedTuple):
    """An exception: the line that names it, and the frames of its traceback, (file, line, function), innermost last.

    place: the member of the writer's group that raised it first, where the text of another exception says so. child:
    the number of the process that raised it, where its parent prints it.
    """

    text: bytes
    frames: Sequence[tuple[bytes, int, bytes]]
    place: int | None = None
    child: int | None = None

    @property
    def type(self) -> bytes:
        """Return the name of the exception, with its module."""
        return self.text.partition(b":")[0]

    @property
    def follows(self) -> bool:
        """Return whether another rank's failure explains it."""
        if _OF_OWN_CALL.search(self.text):
            return False
        if _OF_RANKS.search(self.text):
            return True
        return _OF_CONNECTIONS.search(self.text) is not None and not self._of_other_connection

    @property
    def _of_other_connection(self) -> bool:
        """Return whether the connection that failed was to a file, a loader or a server, and not to a rank."""
        module = _MODULE.match(self.type)
        if _OF_FILE.search(self.text) or (module and module[0].partition(b".")[0] not in _JOINS_RANKS):
            return True
        packaged = [(file, found[1]) for file, _, _ in self.frames if (found := _PACKAGE.search(file))]
        if not packaged:
            return False
        file, package = packaged[-1]
        joins = package in _JOINS_RANKS or self.type in _OF_CPP or b"/multiprocessing/" in self.frames[-1][0]
        return _FILES.search(file) is not None or not joins


def backend_of(text: str) -> str | None:
    """Return the library of collectives that an exception of a rank that waited is from; None for NCCL's and others."""
    return next((name for name, words in _BACKENDS if words.search(text)), None)


def raised_in(line: Line, rank: int | None) -> Raised | None:
    """Return the exception in which a traceback ends; None where the log does not hold its end, or the process goes on.

    rank: the rank that wrote the line; lines of other ranks in between are left out.
    """
    prefix = _prefix(line)
    heading = _heading(line, prefix, rank)
    if _GOES_ON.search(heading):
        return None
    child, member = _CHILD.search(heading), _PLACE.search(line.text)
    frames: list[tuple[bytes, int, bytes]] = []
    below = (_without_prefix(text, prefix, rank) for text in line.after()[:MAX_FRAME_LINES])
    for bare in below:
        if bare is None:
            continue
        if found := _FRAME.match(bare):
            frames.append((found[1], int(found[2]), found[3]))
        elif bare[:1] not in {b" ", b"\t", b""} and (found := _EXCEPTION.match(bare.rstrip())):
            own, place = (None if of is None else int(of[1]) for of in (child, member))
            return Raised(_with_last_error(found, below), frames, place, own)
    return None


def _with_last_error(found: re.Match[bytes], below: Iterator[bytes | None]) -> bytes:
    """Return the line of an exception, with what NCCL says of it in the lines below in front of its other words."""
    if b"NCCL error in" not in found[0]:
        return found[0]
    lines = [text.strip() for text in islice(below, _ERROR_LINES) if text is not None]
    last = next((then for text, then in pairwise(lines) if text == _LAST_ERROR and then), b"")
    return b"%b: %b (%b)" % (found[1], last, found[2]) if last else found[0]


def _heading(line: Line, prefix: re.Pattern[bytes] | None, rank: int | None) -> bytes:
    """Return the last words of the writer before a traceback, as far as blank lines may come between."""
    above = (_without_prefix(text, prefix, rank) for text in reversed(line.before.split(b"\n")[-_ABOVE:]))
    return next((text for text in above if text is not None and text.strip()), b"")


def _prefix(line: Line) -> re.Pattern[bytes] | None:
    """Return what its writer puts before each line of a traceback, with any time in it; None where it puts nothing."""
    head = line.text[: line.text.rfind(BEGINS)]
    parts = TIME.split(head)
    if not head.strip():
        return None
    return re.compile(b"".join(TIME.pattern if at % 2 else re.escape(part) for at, part in enumerate(parts)))


def _without_prefix(text: bytes, prefix: re.Pattern[bytes] | None, rank: int | None) -> bytes | None:
    """Return a line of a traceback without what its writer puts before it; None for a line of another rank."""
    if prefix is not None and (found := prefix.match(text)):
        return text[found.end() :]
    other = _RANK.match(text)
    if rank is not None and other is not None and int(other[1]) != rank:
        return None
    return _PREFIX.sub(b"", text, count=1) if text[:1] in b"[(0123456789" else text
