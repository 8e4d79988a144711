"""The lines of a job's log that tell of a hang, as torch, NCCL, launchers and kernels have spelt them since torch 1.13.

Each pattern stands beside the version that writes it. A line may hold several messages, since ranks write into one
stream: it is cut at each `[rankN]:`. Sources of the spellings: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
(1.13 to 2.13), ProcessGroupGloo.cpp and TCPStore.cpp, torch/distributed/elastic, NVIDIA/nccl. Used by `logs`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, NamedTuple

from tracekit.dumps.calls import Signature, numel
from tracekit.evidence.line_scan import Line
from tracekit.thresholds.dumps import MAX_GROUP_NAME, MAX_INTEGER
from tracekit.thresholds.evidence import MAX_LOG_RANKS, MAX_TEXT
from tracekit.units import NS_PER_MS, NS_PER_S

LITERALS: Final = (
    "ProcessGroup", "PG GUID", "Watchdog caught", "Caught collective", "ed NCCL work", "ed work:", "dump signal",
    "watchdog got stuck",
    "NCCL WARN", "- Init ", "NVRM: Xid", "ut of memory", "ut Of Memory", "oom_kill", "oom-kill",
    "Traceback (most recent call last)", "exitcode", "srun: error", "Fatal Python error", "killed by SIG",
    "terminated with", "monitoredBarrier", "s joined", "store_based_barrier", "Timed out waiting", "by peer",
    "setting up NCCL communicator", "has timed out after", "attempts left", "RendezvousTimeout",
    "ranks to join", "flag on TCPStore", "flag from the global store",
    "exits with return code", "Child process with PID", "exited on signal", "RUNNING AT", "Node failure on",
    "exit with status code", "closing signal SIG", "Process name: [[",
    "imed out task names:", "stopped sending heartbeats", "Aborting process due to timeout on rank",
    "Timeout at collective: ", "mismatch between collectives on ranks", "op.preamble.length <= op.nbytes",
)  # fmt: skip
"""Texts of which each line of interest holds one."""

_RANK_MARK: Final = re.compile(rb"(?=\[rank\d{1,7}\]:)")
_RANK: Final = re.compile(rb"\[rank(\d{1,7})\]:")
_LOCAL: Final = re.compile(rb"\[[A-Za-z_]\w{0,30}?(\d{1,4})\]:")
_TASK: Final = re.compile(rb" *(\d{1,7}): ")
_GROUP: Final = re.compile(
    rb"\[PG (?:ID (?P<id>\d+) PG GUID )?(?P<name>[^\s()\[\]]{1,200})(?: ?\((?P<desc>[^)\]]{0,200})\))?"
    rb" Rank (?P<rank>\d{1,7})\]"
)
"""torch 2.3: `[PG 0 Rank 1]`; 2.4: `[PG 0 (default_pg) Rank 1]`; from 2.5: `[PG ID 0 PG GUID 0(default_pg) Rank 1]`."""
_JAX_TASK: Final = re.compile(rb"/job:\w{1,80}/replica:\d{1,7}/task:(\d{1,7})\s*$")
_PLACE: Final = re.compile(rb"\[Rank (\d{1,7})\]")
"""Up to torch 2.2 before each message, later before the time-out alone: the rank within the group."""
_WORK: Final = re.compile(
    rb"Work\w{2,8}\(SeqNum=(\d{1,19}), (?:c10d::)?OpType=(\w{1,40})(?:, TensorShape=\[([\d, ]{0,200})\])?"
    rb"(?:, NumelIn=(\d{1,19}), NumelOut=(\d{1,19}))?"
    rb", Timeout\(ms\)=(\d{1,19})\)(?: ran for (\d{1,19}) milliseconds)?"
)
"""The call that timed out; elements from torch 2.1 on, before that the shape of the first output where it is kept."""
_STATE: Final = re.compile(
    rb"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,20})(?:, last started (?:NCCL )?work: (-?\d{1,20})(?: \(\w{0,40}\))?)?"
    rb", last completed (?:NCCL )?work: (-?\d{1,20})(?!\d|\[rank)"
)
"""How far a group is: from torch 2.3 on; the started call from 2.13 on."""
_AT: Final = re.compile(
    rb"(?:detected by watchdog at work(?: sequence id)?|Timeout at NCCL work): (\d{1,19})"
)
_FIRST: Final = re.compile(rb"due to a collective timeout from +(?:this local rank|rank (-?\d{1,7}))")
_STUCK: Final = re.compile(rb"watchdog got stuck for (\d+) seconds|Heartbeat monitor timed out")
_SIZE: Final = re.compile(rb"initialization options: size: (\d{1,7}), global rank: (\d{1,7})")
_GLOG: Final = re.compile(rb"\[?[IWEF](\d{1,2})(\d{2}) (\d{2}):(\d{2}):(\d{2})\.(\d{1,9})")
_ISO: Final = re.compile(rb"\d{4}-(\d{2})-(\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?")
_DAYS: Final = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
"""Days of a leap year before each month: no line of glog tells its year."""

_OPERATIONS: Final = {
    "ALLREDUCE": "all_reduce",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER": "all_gather",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}
"""Names of operations in dumps by those in logs; others differ by case alone."""
_IN_PLACE: Final = frozenset({b"ALLREDUCE", b"BROADCAST"})
"""Operations with one tensor for input and output."""
MESSAGES: Final = frozenset({"send", "recv", "recvanysource"})


class When(NamedTuple):
    """A time in a log: seconds since the year began, by the clock of the lines that are written so."""

    clock: str
    seconds: float
    text: str

    def before(self, other: "When | None") -> bool | None:
        """Return whether this is before another time; None where their clocks may differ."""
        return None if other is None or other.clock != self.clock else self.seconds < other.seconds


@dataclass(frozen=True, slots=True)
class GroupName:
    """A process group as a line names it, and the rank's place in it. unique: the name is the same on all ranks."""

    name: str
    desc: str
    place: int
    unique: bool


@dataclass(frozen=True, slots=True)
class Work:
    """A call that timed out: number, call, and how long it waited (ms, unknown: 0)."""

    seq: int
    call: Signature
    timeout_ms: int
    ran_ms: int
    created_ns: int = field(default=0, compare=False)
    """When it was issued, by the clock of the line, since the year began: orders the calls of a rank; 0 unknown."""

    @property
    def group_size(self) -> int | None:
        """Return the members that the elements of a gather or scatter tell; None where they do not."""
        least, most = self.elements
        if self.call.op not in {"_all_gather_base", "_reduce_scatter_base"} or least <= 0 or most % least:
            return None
        return most // least

    @property
    def elements(self) -> tuple[int, int]:
        """Return the smaller and the greater count of elements; 0 where unknown."""
        counts = [numel(text) or 0 for text in (self.call.input_sizes, self.call.output_sizes)]
        return min(counts), max(counts)


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank's part of a line tells; None where it does not.

    rank: the global rank; local: the rank within a host; place: within an unnamed group; task: label of srun.
    state: last enqueued and last completed call; None for a number that is no number of this group. started: the last
    call that the device began, where start times are recorded.
    """

    text: bytes
    rank: int | None
    local: int | None
    task: int | None
    place: int | None
    when: When | None
    group: GroupName | None = None
    work: Work | None = None
    at: int | None = None
    state: tuple[int | None, int | None] | None = None
    started: int | None = None
    dump_asked_by: int | None = None
    stuck: bool = False
    size: int | None = None


def messages_of(line: bytes) -> Iterator[Message]:
    """Yield the messages of a line, one for each rank that wrote into it."""
    parts = _RANK_MARK.split(line)
    task = _TASK.match(parts[0])
    local = _LOCAL.search(parts[0][:80])
    for part in parts:
        if part.strip():
            yield _message(part, _integer(task), _integer(local))


def when_of(line: bytes) -> When | None:
    """Return the time that a line bears; None without one."""
    if found := _GLOG.search(line[:300]):
        return _when("glog", found.groups())
    if found := _ISO.search(line[:300]):
        return _when("iso", found.groups(b"0"))
    return None


def clean_text(text: bytes) -> str:
    """Return a message as text, without its end where it is long."""
    return text.decode("utf-8", "replace").strip()[:MAX_TEXT]


def _message(part: bytes, task: int | None, local: int | None) -> Message:
    """Return what the part of a line tells that one rank wrote."""
    rank, place = _RANK.match(part), _PLACE.search(part)
    named, work, at = _GROUP.search(part), _WORK.search(part), _AT.search(part)
    size, first = _SIZE.search(part), _FIRST.search(part)
    stated, when = _integer(rank), when_of(part)
    if stated is None and size is not None:
        stated = int(size[2])
    return Message(
        text=part,
        rank=stated if stated is None or stated < MAX_LOG_RANKS else None,
        local=local,
        task=task,
        place=_integer(place),
        when=when,
        group=None if named is None else _group(named),
        work=None if work is None else _work(work, when),
        at=_integer(at),
        state=_state(part, _integer(at)),
        started=_started(part),
        dump_asked_by=None if first is None or first[1] is None or first[1][:1] == b"-" else int(first[1]),
        stuck=_STUCK.search(part) is not None,
        size=int(size[1]) if size is not None and 0 < int(size[1]) < MAX_LOG_RANKS else None,
    )


def _state(part: bytes, at: int | None) -> tuple[int | None, int | None] | None:
    """Return the last enqueued and the last completed call; 0 for none yet, None for a number that cannot be true.

    Versions before 2.4 print a field that nobody set as the completed call: it exceeds the enqueued one.
    """
    found = _STATE.search(part)
    if found is None:
        return None
    enqueued, completed = (max(int(found[n]), 0) for n in (1, 3))
    if enqueued >= MAX_INTEGER:
        return None
    if completed > enqueued:
        return enqueued, None if at is None else max(at - 1, 0)
    return enqueued, completed if at is None else min(completed, max(at - 1, 0))


def _started(part: bytes) -> int | None:
    """Return the last call that the device began, 0 for none or where nothing records it; None on other lines."""
    found = _STATE.search(part)
    return min(max(int(found[2]), 0), MAX_INTEGER - 1) if found is not None and found[2] else None


def operation(name: str) -> str:
    """Return the name in dumps of an operation that a log names."""
    return _OPERATIONS.get(name, name.lower())


def _group(found: re.Match[bytes]) -> GroupName:
    name, desc = (clean_text(found[key] or b"")[:MAX_GROUP_NAME] for key in ("name", "desc"))
    unique = found["id"] is not None or bool(desc)
    if name == "0" and not desc:
        desc = "default_pg"
    return GroupName(name, desc, int(found["rank"]), unique or name == "0")


def _work(found: re.Match[bytes], when: When | None) -> Work | None:
    seq, kind, shape, given, taken, timeout, ran = found.groups()
    if int(seq) >= MAX_INTEGER:
        return None
    sizes = ["" if n is None else f"[[{int(n)}]]" for n in (given, taken)]
    if shape:
        sizes = [f"[[{shape.decode()}]]" if kind in _IN_PLACE else "", f"[[{shape.decode()}]]"]
    call = Signature(operation(kind.decode()), sizes[0], sizes[1], "", "")
    created = 0 if when is None or ran is None else int(when.seconds * NS_PER_S) - int(ran) * NS_PER_MS
    return Work(int(seq), call, int(timeout), int(ran or 0), max(created, 0))


def _when(clock: str, parts: tuple[bytes, ...]) -> When | None:
    month, day, hour, minute, second = (int(part) for part in parts[:5])
    if not 1 <= month <= len(_DAYS):
        return None
    fraction = float(b"0." + (parts[5] or b"0"))
    seconds = (((_DAYS[month - 1] + day) * 24 + hour) * 60 + minute) * 60 + second + fraction
    return When(clock, seconds, f"{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")


def _integer(found: re.Match[bytes] | None) -> int | None:
    return None if found is None else int(found[1])


def whole_messages(line: Line) -> Iterator[Message]:
    """Yield the messages of a line; of one that a terminal has wrapped also what stands in the next line."""
    found = list(messages_of(line.text))
    begun = b"SeqNum=" in line.text or b"Watchdog caught" in line.text
    cut = begun and not any(m.work for m in found)
    reported = b"last enqueued" in line.text.lower() or b"detected by watchdog at work" in line.text
    cut = cut or (reported and not any(m.state for m in found))
    if cut and (after := line.after()[:2]):
        found = list(messages_of(line.text + b"".join(after)))
    if not line.whole and found:
        found[-1] = replace(found[-1], state=None)  # its last number may be cut
    yield from found


def tasks_after(lines: Sequence[bytes]) -> list[int]:
    """Return the processes that the first of these lines name, as JAX's coordinator does."""
    found = takewhile(lambda match: match is not None, (_JAX_TASK.search(line) for line in lines))
    return [int(match[1]) for match in found if match and int(match[1]) < MAX_LOG_RANKS]


def time_before(line: Line) -> When | None:
    """Return the time of the nearest line before that bears one: tracebacks bear none."""
    times = (when_of(text) for text in reversed(line.before.split(b"\n")))
    return next((when for when in times if when is not None), None)
