"""Answers of `ncclras`: how many collectives each rank of each communicator has launched, and which processes are gone.

JSON (NCCL 2.28.7 and later) lists each rank with its counts. Text (2.24 and later) lists only the ranks that differ,
and counts the rest. Counts are of launches: nothing tells whether a call has ended. Source: NVIDIA/nccl
src/ras/client_support.cc of 2.24 to 2.30. Used by `gather`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tracekit.evidence.log_lines import clean_text
from tracekit.thresholds.dumps import MAX_INTEGER
from tracekit.thresholds.evidence import MAX_LOG_RANKS

_SUMMARY: Final = re.compile(
    r"^ *(\d{1,7}) +(\d{1,7}) +(\d{1,7}) +[\d-]{1,15} +(\d{1,7}) +(\d{1,7}) +([A-Z,]{1,40}) +([A-Z,]{1,40}) *$",
    re.MULTILINE,
)
_COMMUNICATOR: Final = re.compile(r"^#(\d{1,7})-(\d{1,7}) \(([0-9a-f]{1,16})\) ([A-Z]{1,20})$", re.MULTILINE)
_KIND: Final = re.compile(
    r"Communicator ranks have different (?:(\w{1,40}) operation|collective operation|status)"
)
_SOME: Final = re.compile(
    r"^ *(\d{1,7}) ranks? ha(?:ve|s) (?:launched up to operation (\d{1,19})|not launched)"
)
_ONE: Final = re.compile(r"^ *Rank (\d{1,7}) has (?:launched up to operation (\d{1,19})|not launched)")
_LISTED: Final = re.compile(r"^ *Rank (\d{1,7})\b")
_PLACE: Final = re.compile(
    r"GPUs? ([\d, ]{1,60})(?: \([^)]*\))? managed by process (\d{1,9}) on node (\S{1,200})"
)
_PROCESS: Final = re.compile(
    r"^ *Process (\d{1,9}) on node (\S{1,200}) managing GPUs? ([\d, ]{1,60})", re.MULTILINE
)
_MISSING: Final = re.compile(r"The missing ranks?: ([\d, ]{1,400})")
_TOTAL: Final = re.compile(r"^ *\d+ +\d+ +\d+ +\d+ +(\d{1,7}) *$", re.MULTILINE)

Process = tuple[str, int, int]
"""Host, process id and GPU."""


@dataclass
class Communicator:
    """One communicator. counts: calls of each kind that a rank (place) has launched; of others nothing is known.

    missing: ranks that gave no answer, dead: of these the ones that RAS gave up. errors: ranks with an asynchronous
    error. initialising: ranks whose initialisation goes on. processes: the process of a rank.
    """

    name: str
    size: int
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    errors: set[int] = field(default_factory=set)
    initialising: set[int] = field(default_factory=set)
    processes: dict[int, Process] = field(default_factory=dict)

    def launched(self) -> dict[int, int]:
        """Return how many calls of all kinds each rank has launched."""
        return {rank: sum(kinds.values()) for rank, kinds in self.counts.items()}


@dataclass
class RasReport:
    """One answer. world: GPUs of the job. dead: processes that RAS gave up, as text."""

    path: str
    communicators: list[Communicator] = field(default_factory=list)
    world: int | None = None
    dead: list[str] = field(default_factory=list)
    time: str | None = None
    form: str = "text"

    @property
    def widest(self) -> Communicator | None:
        """Return the communicator of all ranks: its places are global ranks."""
        whole = [c for c in self.communicators if self.world is None or c.size == self.world]
        return max(whole, key=lambda c: (c.size, len(c.counts)), default=None)

    @property
    def ranks(self) -> set[int]:
        """Return the global ranks that answered, as far as the communicator of all ranks tells it."""
        return set(range(self.world or 0)) - self.silent

    @property
    def silent(self) -> set[int]:
        """Return the global ranks that gave no answer."""
        found: set[int] = set()
        for communicator in self.communicators:
            ranks = self.global_ranks(communicator)
            found |= {ranks[place] for place in communicator.missing if place in ranks}
        return found

    def global_ranks(self, communicator: Communicator) -> dict[int, int]:
        """Return the global rank of each place of a communicator, as far as processes or the size tell it."""
        widest = self.widest
        if communicator.size == self.world:
            return {place: place for place in range(communicator.size)}
        if widest is None:
            return {}
        by_process = {process: rank for rank, process in widest.processes.items()}
        known = {
            p: by_process[process] for p, process in communicator.processes.items() if process in by_process
        }
        return known if len(set(known.values())) == len(known) else {}


def is_ras(head: bytes) -> bool:
    """Return whether a file that begins so is an answer of `ncclras`, in either form."""
    text = head.lstrip()
    if text[:1] == b"{":
        return b'"nccl_version"' in text and b'"communicators' in text
    return b"Job summary\n===" in text.replace(b"\r", b"") and (
        b"Communicators..." in text or b"NCCL version" in text
    )


def read_ras(path: str, data: bytes) -> RasReport:
    """Return the answer that a text holds, whole or cut. Raises ValueError where it is none."""
    text = data.decode("utf-8", "replace")
    if text.lstrip()[:1] == "{":
        return _of_json(path, json.loads(text))
    return _of_text(path, text.replace("\r", ""))


def _of_json(path: str, document: Any) -> RasReport:
    report = RasReport(path, form="json")
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list):
        raise ValueError("no answer of ncclras")  # noqa: TRY004
    report.time = str(document.get("timestamp", ""))[:40] or None
    for number, given in enumerate(document["communicators"]):
        if isinstance(given, dict) and 0 < _count(given.get("size")) < MAX_LOG_RANKS:
            report.communicators.append(_communicator(number, given))
    report.world = max((c.size for c in report.communicators), default=None)
    return report


def _communicator(number: int, given: Mapping[str, Any]) -> Communicator:
    """Return one communicator of the JSON form."""
    found = Communicator(clean_text(str(given.get("hash", number)).encode()), _count(given.get("size")))
    for entry in _dicts(given.get("ranks")):
        rank = _count(entry.get("rank"), -1)
        if not 0 <= rank < found.size:
            continue
        counts = entry.get("collective_counts")
        found.counts[rank] = (
            {str(k)[:40]: _count(v) for k, v in counts.items()} if isinstance(counts, dict) else {}
        )
        found.processes[rank] = _process(entry)
        status = entry.get("status")
        if isinstance(status, dict):
            if _count(status.get("async_error")) not in {0, _IN_PROGRESS}:
                found.errors.add(rank)
            if _count(status.get("init_state")) == _IN_PROGRESS:
                found.initialising.add(rank)
    for entry in _dicts(given.get("missing_ranks")):
        rank = _count(entry.get("rank"), -1)
        if 0 <= rank < found.size:
            found.missing.add(rank)
            found.processes[rank] = _process(entry)
            status = entry.get("status")
            if isinstance(status, dict) and status.get("considered_dead") is True:
                found.dead.add(rank)
    return found


_IN_PROGRESS: Final = 7
"""ncclInProgress: an initialisation or an operation goes on."""


def _process(entry: Mapping[str, Any]) -> Process:
    return (
        clean_text(str(entry.get("host", "")).encode()),
        _count(entry.get("pid")),
        _count(entry.get("cuda_dev")),
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _count(value: Any, otherwise: int = 0) -> int:
    return value if type(value) is int and abs(value) < MAX_INTEGER else otherwise


def _of_text(path: str, text: str) -> RasReport:
    """Return the answer in the text form: ranks that are not listed have the count of most."""
    report = RasReport(path)
    head = text[: text.find("Communicators...")] if "Communicators..." in text else text
    totals = _TOTAL.findall(head)
    report.world = int(totals[-1]) if totals else None
    sizes = {int(m[1]): int(m[4]) for m in _SUMMARY.finditer(text)}
    gone = text.partition("DEAD\n")[2].partition("\n\n")[0]
    report.dead = [f"process {int(m[1])} on {m[2]}" for m in _PROCESS.finditer(gone)]
    dead = {(m[2], int(m[1])) for m in _PROCESS.finditer(gone)}
    marks = list(_COMMUNICATOR.finditer(text))
    kept: dict[str, Communicator] = {}
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends[: len(marks)], strict=True):
        body = text[mark.end() : end]
        size = sizes.get(int(mark[1]), 0)
        if 0 < size < MAX_LOG_RANKS:
            found = kept.setdefault(mark[3], Communicator(mark[3], size))
            _read_body(found, mark[4], body.partition("\n\n")[0], dead)
    report.communicators = list(kept.values())
    report.world = report.world or max(sizes.values(), default=None)
    return report


def _read_body(found: Communicator, status: str, body: str, dead: set[tuple[str, int]]) -> None:
    """Read what stands below the heading of one communicator."""
    if status == "INCOMPLETE":
        for listed in _MISSING.findall(body):
            found.missing.update(int(n) for n in re.findall(r"\d{1,7}", listed) if int(n) < found.size)
        for line in body.split("\n"):
            if (one := _LISTED.match(line)) and int(one[1]) < found.size:
                found.missing.add(int(one[1]))
                if (place := _PLACE.search(line)) and (place[3], int(place[2])) in dead:
                    found.dead.add(int(one[1]))
        return
    if status == "ERROR":
        found.errors.update(int(one[1]) for line in body.split("\n") if (one := _LISTED.match(line)))
        return
    _read_counts(found, body)


def _read_counts(found: Communicator, body: str) -> None:
    """Read counts that differ: those of listed ranks, and of all others the count of the set that lists none."""
    kind, value = "", None
    sets: dict[str, list[tuple[int, int, list[int]]]] = {}
    for line in body.split("\n"):
        if title := _KIND.search(line):
            kind, value = ("status" if "status" in title[0] else title[1] or "all"), None
        elif kind == "status":
            continue
        elif some := _SOME.match(line):
            value = int(some[2] or 0)
            sets.setdefault(kind, []).append((int(some[1]), value, []))
        elif one := _ONE.match(line):
            sets.setdefault(kind, []).append((1, int(one[2] or 0), [int(one[1])]))
            value = None
        elif (one := _LISTED.match(line)) and value is not None:
            sets[kind][-1][2].append(int(one[1]))
        if (one := _LISTED.match(line)) and (place := _PLACE.search(line)) and int(one[1]) < found.size:
            gpu = int(re.findall(r"\d+", place[1])[0]) if re.findall(r"\d+", place[1]) else 0
            found.processes[int(one[1])] = (place[3], int(place[2]), gpu)
    for name, parts in sets.items():
        if sum(count for count, _, _ in parts) + len(found.missing) == found.size:
            _spread(found, name, parts)


def _spread(found: Communicator, kind: str, parts: Sequence[tuple[int, int, list[int]]]) -> None:
    """Give each rank its count of one kind; where two sets list no ranks theirs stay unknown."""
    listed = {rank for _, _, ranks in parts for rank in ranks}
    open_ = [(count, value) for count, value, ranks in parts if not ranks]
    for _, value, ranks in parts:
        for rank in ranks:
            if rank < found.size:
                found.counts.setdefault(rank, {})[kind] = value
    if len(open_) == 1:
        for rank in set(range(found.size)) - listed - found.missing:
            found.counts.setdefault(rank, {})[kind] = open_[0][1]
