"""What NCCL prints of each call and communicator (NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,COLL), by process.

`AllReduce: opCount 1a sendbuff … count 1024 datatype 7 op 0 root 0 comm 0x… [nranks=8] stream …` is printed before a
call is launched, in one spelling since NCCL 2.4. opCount numbers launches of a communicator from 0, in hexadecimal;
calls of one group share it, and sends and receives count as well. `root` of a Send or Recv is the peer. Sources:
NVIDIA/nccl src/enqueue.cc, src/init.cc, src/debug.cc, src/proxy.cc (2.4 to 2.30). Used by `logs`, `nccl_groups`.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tracekit.dumps.calls import Signature
from tracekit.thresholds.dumps import MAX_INTEGER
from tracekit.thresholds.evidence import (
    FEWEST_CALLS_KEPT,
    MAX_CALLS_KEPT,
    MAX_LOG_RANKS,
    MAX_MARKS,
    MOST_CALLS_KEPT,
)

CALL: Final = ": opCount "
"""Text that each line of a call holds."""
_MARK: Final = CALL.encode()
_CALL: Final = re.compile(
    rb": opCount ([0-9a-f]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20} count (\d{1,18}) datatype (\d{1,3}) op -?\d{1,10}"
    rb" root (-?\d{1,10}) comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,7})\]"
)
_PROCESS: Final = re.compile(rb"([A-Za-z0-9][\w.\-]{0,200}):(\d{1,9}):\d{1,9} \[(\d{1,3})\] ")
_INIT: Final = re.compile(
    _PROCESS.pattern + rb"NCCL INFO [^\n]{0,80}?comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nranks (\d{1,7})\b"
    rb"([^\n]{0,250}?) ?- Init (?:START|COMPLETE)"
)
_ID: Final = re.compile(rb" commId (0x[0-9a-f]{1,16})")
_SPLIT: Final = re.compile(
    rb" parent (0x[0-9a-f]{1,16})(?: (?:splitCount|childCount) (\d{1,10}))? color (-?\d{1,10})"
)
_OPERATIONS: Final = {
    b"AllReduce": "all_reduce",
    b"AllGather": "_all_gather_base",
    b"ReduceScatter": "_reduce_scatter_base",
    b"AlltoAll": "all_to_all",
    b"AllToAll": "all_to_all",
}
"""Names of operations in dumps by NCCL's; others differ by case alone."""
_DTYPES: Final = ("Char", "Byte", "Int", "UInt32", "Long", "UInt64", "Half", "Float", "Double", "BFloat16")
"""Names of dtypes in dumps, by ncclDataType_t."""
_HEAD_BYTES: Final = 600
"""Bytes before `: opCount` in which a launcher's prefix and the process are looked for."""


class Sent(NamedTuple):
    """One end of a message: its place in the file, its position on the channel from 0, and the call."""

    offset: int
    send: bool
    peer: int
    nth: int
    call: Signature


@dataclass(slots=True)
class Communicator:
    """One communicator as one process uses it. place: of the process in it; name: the same for all members, or empty.

    begun: whether the log holds its calls from the first one on. first: opCount of the first call that is counted.
    grouped: whether two collectives share an opCount. rose: whether opCount has risen; within one node it stays 0 from
    NCCL 2.27 on, so that a lost line does not show. sent: messages by direction and peer.
    """

    size: int
    place: int | None = None
    name: str = ""
    begun: bool = False
    first: int = -1
    count: int = 0
    last: int = -1
    grouped: bool = False
    rose: bool = False
    calls: deque[tuple[int, Signature]] = field(default_factory=deque)
    messages: deque[Sent] = field(default_factory=deque)
    sent: dict[tuple[bool, int], int] = field(default_factory=dict)
    _batch: list[tuple[int, bool, int, Signature]] = field(default_factory=list)

    def follow(self, number: int) -> None:
        """Take the opCount of the next call: where calls are lost, or numbers begin again, counting does."""
        if self.last >= 0 and not self.last <= number <= self.last + 1:
            self._forget()
        self.rose |= 0 <= self.last < number
        if number != self.last:
            self.settle()

    def take(self, number: int, offset: int, call: Signature, kept: int) -> None:
        """Take a collective. kept: how many calls to keep."""
        if number != self.last + 1 or not self.rose or self._batch:
            self.follow(number)
            self.settle()
            self.grouped |= number == self.last and bool(self.calls)
        self._add(number, offset, call, kept)

    def take_message(self, number: int, offset: int, send: bool, peer: int, call: Signature) -> None:
        """Take a send or receive; those of one group may be an all-to-all."""
        self.follow(number)
        self.first = number if self.first < 0 else self.first
        self.last = number
        if len(self._batch) < MAX_CALLS_KEPT:
            self._batch.append((offset, send, peer, call))

    def settle(self) -> None:
        """End the group of messages: one with a message to oneself is an all-to-all, as frameworks make it of these."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        peers = {peer for _, _, peer, _ in batch}
        if self.place in peers or len(peers) == self.size:
            call = batch[0][3]
            whole = Signature("all_to_all", "", "", call.input_dtypes, call.output_dtypes)
            self._add(self.last, batch[0][0], whole, MAX_CALLS_KEPT)
            return
        for offset, send, peer, call in batch:
            nth = self.sent.get((send, peer), 0)
            self.sent[send, peer] = nth + 1
            self.messages.append(Sent(offset, send, peer, nth, call))
            if len(self.messages) > MAX_CALLS_KEPT:
                self.messages.popleft()

    def _add(self, number: int, offset: int, call: Signature, kept: int) -> None:
        self.first = number if self.first < 0 else self.first
        self.count += 1
        self.last = number
        self.calls.append((offset, call))
        while len(self.calls) > kept:
            self.calls.popleft()

    @property
    def whole(self) -> bool:
        """Return whether the log holds its calls from the first one on, which has number 0 where numbers rise."""
        return self.begun or (self.rose and self.first == 0)

    def _forget(self) -> None:
        self.begun, self.first, self.count, self.last, self.grouped = False, -1, 0, -1, False
        self.calls.clear()
        self.messages.clear()
        self.sent.clear()
        self._batch.clear()


@dataclass(slots=True)
class Process:
    """A process that prints lines of NCCL. key: how its launcher names it; rank: as that shows it.

    latest: the place of its last line.
    """

    host: str
    pid: int
    device: int
    key: tuple[str, int]
    rank: int | None = None
    path: str = ""
    latest: int = 0
    lines: int = 0
    communicators: dict[bytes, Communicator] = field(default_factory=dict)


class NcclCalls:
    """Takes the lines of NCCL of one file. key_of: how the text before a line names its process."""

    def __init__(self, key_of: Callable[[bytes], tuple[str, int]]) -> None:
        self._key_of = key_of
        self.processes: dict[tuple[bytes, bytes], Process] = {}
        self._known: dict[bytes, Process] = {}
        self._signatures: dict[tuple[bytes, bytes, bytes, int], Signature] = {}
        self._communicators = 0
        self._kept = MAX_CALLS_KEPT
        self.lines = 0

    def placed(self, path: str, rank_of: Callable[[tuple[str, int]], int | None]) -> list[Process]:
        """Return the processes of the file at `path`, under their ranks where launchers or the file name these."""
        found = list(self.processes.values())
        for process in found:
            named = process.key[0] in {"rank", "local"} or len(found) == 1
            process.path, process.rank = path, rank_of(process.key) if named else None
            for one in process.communicators.values():
                one.settle()
        return found

    def take_initialisations(self, text: bytes) -> None:
        """Take the communicators that a line shows to begin or to be complete."""
        for found in _INIT.finditer(text):
            process = self._process(text[: found.end(3)] + b"] ")
            place, size = int(found[5]), int(found[6])
            one = None if process is None else self._communicator(process, found[4], size)
            if one is None or process is None or not place < size < MAX_LOG_RANKS:
                continue
            name = _name(process, found[7])
            if one.name not in {"", name} or (not name and found[0].endswith(b"COMPLETE") and one.last >= 0):
                one = process.communicators[found[4]] = Communicator(size)
            one.size, one.place, one.name, one.begun = size, place, name, one.begun or one.last < 0

    def take_calls(self, data: bytes, left: int, right: int, base: int) -> None:
        """Take the calls between two places of a block that begins at the offset `base` of the file."""
        at, before = data.find(_MARK, left, right), left
        while at >= 0:
            found = _CALL.match(data, at)
            if found is not None:
                first = max(data.rfind(b"\n", max(at - _HEAD_BYTES, left), at) + 1, before, at - _HEAD_BYTES)
                self._take(data[first:at], found, base + at)
                before = found.end()
            at = data.find(_MARK, at + len(_MARK), right)

    def _take(self, head: bytes, found: re.Match[bytes], offset: int) -> None:
        before, _, name = head.rpartition(b" ")
        process = self._process(before + b" ")
        number, count, kind, root, pointer, size = found.groups()
        launch = int(number, 16)
        if process is None or launch > MAX_INTEGER:
            return
        one = self._communicator(process, pointer, int(size))
        if one is None:
            return
        self.lines += 1
        process.latest, process.lines = offset, process.lines + 1
        call = self._signature(name, count, kind, one.size)
        if name in {b"Send", b"Recv"}:
            one.take_message(launch, offset, name == b"Send", int(root), call)
        else:
            one.take(launch, offset, call, self._kept)

    def _process(self, head: bytes) -> Process | None:
        """Return the process that a text before a message names; None where it names none."""
        token = head[head.rfind(b" ", 0, max(head.rfind(b" ["), 0)) + 1 :]
        known = self._known.get(token)
        if known is not None:
            return known
        named = _PROCESS.search(head)
        if named is None:
            return None
        process = self.processes.get((named[1], named[2]))
        if process is None and len(self.processes) < MAX_LOG_RANKS:
            key = self._key_of(head[: named.start()])
            process = Process(named[1].decode(), int(named[2]), int(named[3]), key)
            self.processes[named[1], named[2]] = process
        if process is not None and len(self._known) < MAX_MARKS:
            self._known[token] = process
        return process

    def _communicator(self, process: Process, pointer: bytes, size: int) -> Communicator | None:
        """Return the communicator at an address; None for one of a single rank, or where there are too many."""
        known = process.communicators.get(pointer)
        if known is not None:
            return known
        if not 1 < size < MAX_LOG_RANKS or self._communicators >= MAX_MARKS:
            return None
        self._communicators += 1
        self._kept = min(max(MOST_CALLS_KEPT // self._communicators, FEWEST_CALLS_KEPT), MAX_CALLS_KEPT)
        made = process.communicators[pointer] = Communicator(size)
        return made

    def _signature(self, name: bytes, count: bytes, kind: bytes, size: int) -> Signature:
        key = (name, count, kind, size)
        known = self._signatures.get(key)
        if known is None:
            if len(self._signatures) >= MAX_MARKS:
                self._signatures.clear()
            known = self._signatures[key] = _signature(name, int(count), int(kind), size)
        return known


def _signature(name: bytes, count: int, kind: int, size: int) -> Signature:
    """Return a call as a dump writes it: NCCL counts what one rank gives (all-gather) or takes (reduce-scatter)."""
    operation = _OPERATIONS.get(name) or name.decode("utf-8", "replace").lower()
    given = count * size if name == b"ReduceScatter" else count
    taken = count * size if name == b"AllGather" else count
    dtype = f"['{_DTYPES[kind] if kind < len(_DTYPES) else kind}']"
    return Signature(operation, f"[[{given}]]", f"[[{taken}]]", dtype, dtype)


def _name(process: Process, text: bytes) -> str:
    """Return the name that all members share: the communicator's id, or its parent's with the number of the split."""
    if found := _ID.search(text):
        return found[1].decode()
    split = _SPLIT.search(text)
    parent = None if split is None else process.communicators.get(split[1])
    if split is None or split[2] is None or parent is None or not parent.name:
        return ""
    return f"{parent.name[:200]}/{int(split[2])}.{int(split[3])}"
