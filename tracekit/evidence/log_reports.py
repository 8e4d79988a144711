"""What one rank's lines show of the other members of its group: desync reports, fingerprints, sizes, stacks of calls.

With TORCH_NCCL_DESYNC_DEBUG=1 the rank that timed out prints the last collective that each member began or finished;
members are numbered within the group. With TORCH_DISTRIBUTED_DEBUG=DETAIL a rank prints its own call and one unlike it.
Gloo says that a message was longer than the buffer for it. With the recorder on, the stack of the call that timed out
follows. Sources: torch/csrc/distributed/c10d/TraceUtils.h, ProcessGroupWrapper.cpp, ProcessGroupNCCL.cpp; gloo's
pair.cc. Used by `logs`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tracekit.dumps.calls import Signature
from tracekit.evidence.log_lines import clean_text, operation
from tracekit.thresholds.dumps import MAX_INTEGER
from tracekit.thresholds.evidence import MAX_LOG_RANKS, MAX_MARKS, MAX_REPORT_LINES, MAX_STACK_FRAMES

_TIMED_OUT: Final = re.compile(rb"\[(\d{1,7})\] Timeout at collective: (\w{1,40}), #(\d{1,19})")
_NUMBERED: Final = re.compile(rb"#(\d{1,19}) (?:started|finished) ranks:")
_STATES: Final = re.compile(rb"\[([\d, ]{1,20000})\] (started|finished) (\w{1,40})\s*$")
_NEVER: Final = re.compile(rb"ranks \[([\d, ]{1,20000})\] are the lagging ranks that caused this timeout")
_PRINT: Final = (
    rb"Rank (\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber=(\d{1,19}), ?)?"
    rb"OpType=(\w{1,40})(?:, TensorShape=\[([\d, ]{0,200})\], TensorDtypes=(\w{1,20}))?"
)
_FINGERPRINT: Final = re.compile(rb"mismatch between collectives on ranks\. " + _PRINT)
_OTHER: Final = re.compile(rb"but " + _PRINT)
_LONGER: Final = re.compile(rb"op\.preamble\.length <= op\.nbytes\. (\d{1,19}) vs (\d{1,19})")
_FRAME: Final = re.compile(rb"#\d{1,4} (\S.{0,200}?) from ([^\n:]{1,400}):(\d{1,9})\s*$")
STACK: Final = b"Stack trace of the failed collective:"
"""Begins the stack of the call that timed out; the frames follow, innermost first."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """The last collective of one member, as another member's lines show it: its number, whether it ended, the call."""

    seq: int
    finished: bool
    call: Signature


class Report(NamedTuple):
    """The members of one group that a report is about, by their places in the group. own: the place of its writer.

    whole: whether it is about every member, so that it shows the size. apart: by which number two calls differ that
    meet: old Gloo groups count from anything.
    """

    own: int
    members: dict[int, MemberState]
    whole: bool
    apart: int = 0


def desync_report(text: bytes, after: Sequence[bytes]) -> Report | None:
    """Return the states in a desync report that begins in this line; None where it begins none."""
    begun = _TIMED_OUT.search(text)
    if begun is None:
        return None
    own = int(begun[1])
    members = {own: _state(begun[3], b"started", begun[2])} if own < MAX_LOG_RANKS else {}
    seq, whole = b"", False
    for line in after[:MAX_REPORT_LINES]:
        if _TIMED_OUT.search(line):
            break  # the next rank's report
        if found := _NEVER.search(line):
            return Report(own, members | dict.fromkeys(_places(found[1]), _NONE), whole=False)
        if found := _NUMBERED.search(line):
            seq = found[1]
        elif seq and (found := _STATES.search(line)):
            whole = True
            members |= dict.fromkeys(_places(found[1]), _state(seq, found[2], found[3]))
        elif whole:
            break
    whole = whole and len(members) == max(members) + 1
    return Report(own, members, whole)


def fingerprints(text: bytes) -> Report | None:
    """Return the two calls that a mismatch of fingerprints names, up to torch 1.12 the writer's alone; else None."""
    first = _FINGERPRINT.search(text)
    if first is None:
        return None
    found = [first, *([other] if (other := _OTHER.search(text, first.end())) else [])]
    numbers = [int(one[2] or 1) for one in found]
    common = str(max(numbers)).encode()
    sides = {int(one[1]): _state(common, b"started", one[3], one[4], one[5]) for one in found}
    if len(sides) < len(found) or max(sides) >= MAX_LOG_RANKS:
        return None
    return Report(int(first[1]), sides, whole=False, apart=max(numbers) - min(numbers))


def longer_message(text: bytes) -> tuple[int, int] | None:
    """Return the bytes of a message that came and of the buffer for it, where Gloo says that it was too long."""
    found = _LONGER.search(text)
    return None if found is None else (int(found[1]), int(found[2]))


def call_stack(after: Sequence[bytes]) -> tuple[str, ...]:
    """Return the frames that follow the head of a stack, as "file:line function", innermost first."""
    frames = []
    for line in after[:MAX_STACK_FRAMES]:
        found = _FRAME.search(line)
        if found is None:
            break
        frames.append(f"{clean_text(found[2])}:{int(found[3])} {clean_text(found[1])}")
    return tuple(frames)


_NONE: Final = MemberState(0, finished=True, call=Signature("", "", "", "", ""))
"""The state of a member that made no call."""


def _state(
    seq: bytes, state: bytes, name: bytes, shape: bytes | None = None, dtype: bytes | None = None
) -> MemberState:
    size = "" if shape is None else f"[[{clean_text(shape)}]]"
    kind = "" if dtype is None else clean_text(dtype)
    return MemberState(
        min(int(seq), MAX_INTEGER - 1),
        state == b"finished",
        Signature(operation(name.decode()), size, size, kind, kind),
    )


def _places(text: bytes) -> Iterator[int]:
    """Yield the numbers of a list, at most MAX_MARKS of them."""
    numbers = (int(part) for part in text.split(b",")[:MAX_MARKS] if part.strip().isdigit())
    yield from (number for number in numbers if number < MAX_LOG_RANKS)
