"""Decides which sends go to a buffer (eager) and so do not wait, and which wait for their receiver (rendezvous).

It follows from a message's size, and from times: a send that ended before its receive was posted did not wait for it.
NCCL buffers up to 16 KiB for each channel in any case, and between 1 and 4 MiB for each channel by transport; a kernel
has no more channels than its grid. One job may have messages of both kinds, so each size is decided by itself, and so
is a pair of ranks that differs from the others.
Other libraries have other sizes, so only times show it.
"""

import re
from dataclasses import dataclass

import numpy as np

from tracekit.matching.clock import Clocks, aligned, linked
from tracekit.matching.match import Operations, found_done, members_of_kernel, message_ends
from tracekit.thresholds.slowrank import MAJORITY
from tracekit.thresholds.tables import (
    ALWAYS_BUFFERED_BYTES,
    BUFFER_BYTES_A_CHANNEL,
    EAGER_SHARE,
    EAGER_SPREAD,
    HELD_END_SHARE,
    HELD_LEAD,
    HELD_LEAST,
    LONG_TAIL_PERCENTILE,
    NEVER_BUFFERED_BYTES,
    PROVEN_EAGER_SHARE,
)
from tracekit.units import F64, I64, Mask

_BYTES = ((8, r"long|double|int64|float64|uint64"), (2, r"half|bfloat16|float16|int16|short"),
          (1, r"byte|char|bool|int8|uint8|float8"), (4, r"float|int"))  # fmt: skip
_WIDTHS = tuple((width, re.compile(pattern, re.IGNORECASE)) for width, pattern in _BYTES)


@dataclass(frozen=True)
class Buffered:
    """Per operation (as in Operations); false for anything but a message recorded on both ranks."""

    eager: Mask  # the message's send returned without waiting for its receiver
    unsure: Mask  # no evidence whether it would have waited


@dataclass(frozen=True)
class _Messages:
    """Messages recorded on both ranks; one entry a message, times in ns."""

    send: I64  # rows
    receive: I64
    sent: I64  # durations
    received: I64
    alone: Mask  # neither kernel carries another message
    proven: Mask  # the send ended before its receive was posted, beyond the doubt about clocks
    lead: F64  # time from the send's start to the receive's, less the doubt about clocks
    together: Mask  # both ended together, on a common clock, and no other message of the send's kernel ended with it

    def of(self, chosen: Mask | I64) -> "_Messages":
        """Return the chosen messages, by a mask or indices."""
        return _Messages(
            self.send[chosen], self.receive[chosen], self.sent[chosen], self.received[chosen],
            self.alone[chosen], self.proven[chosen], self.lead[chosen], self.together[chosen],
        )  # fmt: skip


def buffered_sends(ops: Operations, clocks: Clocks) -> Buffered:
    """Return the operations of eager messages, and those of messages that may be eager."""
    eager, unsure = np.zeros(len(ops.start), bool), np.zeros(len(ops.start), bool)
    messages = _messages(ops, clocks)
    most = _most_buffered(ops, messages)
    kinds, token = ops.messages[0], ops.messages[1][messages.send]
    channel = ops.channel[messages.send]
    on_gpu = any(r.on_gpu for r in ops.per_rank.values())
    goes, open_ = messages.proven.copy(), np.zeros(len(token), bool)
    for number in np.unique(token).tolist():
        same = token == number
        size = bytes_of(kinds[number]) if on_gpu else -1
        if 0 <= size <= ALWAYS_BUFFERED_BYTES:
            goes[same] = True
            continue
        same &= most >= size
        usual = _went(messages.of(same))
        unproven = _shown(messages.of(same)) is None
        rows = np.flatnonzero(same)
        rows = rows[np.argsort(channel[rows], kind="stable")]
        for here in np.split(rows, np.flatnonzero(np.diff(channel[rows])) + 1) if len(rows) else ():
            shown = _shown(messages.of(here))
            goes[here] |= usual if shown is None else shown
            open_[here] = shown is None and unproven
    goes |= found_done(ops)[messages.send]
    for rows in (messages.send, messages.receive):
        eager[rows], unsure[rows] = goes, open_ & ~goes
    return Buffered(eager, unsure)


def _most_buffered(ops: Operations, messages: _Messages) -> I64:
    """Return the bytes that the buffer of each message may hold: by the smaller grid of its kernels, if recorded."""
    parts = [np.full(len(r.start), -1) if r.grid is None else r.grid for r in ops.per_rank.values()]
    grid = np.concatenate([np.zeros(0, np.int64), *parts])
    known = NEVER_BUFFERED_BYTES // BUFFER_BYTES_A_CHANNEL
    grid = np.where((grid > 0) & (grid < known), grid, known)
    return np.asarray(
        np.minimum(grid[messages.send], grid[messages.receive]) * BUFFER_BYTES_A_CHANNEL, np.int64
    )


def bytes_of(token: str) -> int:
    """Return the size of a message in bytes from its token (kind, dtype, elements); -1 where unknown."""
    dtype, _, count = token.partition("/")[2].rpartition("/")
    width = next((width for width, pattern in _WIDTHS if pattern.search(dtype)), 0)
    return width * int(count) if width and count.isdigit() else -1


def as_most_sends(ops: Operations, shown: Mask) -> Mask:
    """Return by operation whether it is a send that is `shown`; an unmatched one is as most with its token are."""
    sends = ops.among(("send",))
    found = shown & sends
    token = ops.messages[1]
    for kind in np.unique(token[sends]).tolist():
        same = sends & (token == kind)
        seen = found[same & (ops.instance >= 0)]
        found[same & (ops.instance < 0)] = bool(len(seen)) and float(seen.mean()) > MAJORITY
    return np.asarray(found, bool)


def _messages(ops: Operations, clocks: Clocks) -> _Messages:
    """Return all messages of `ops` that were recorded on both ranks."""
    send, receive = message_ends(ops)
    start, end = aligned(ops, clocks, ops.start), aligned(ops, clocks, ops.end)
    doubt = ops.by_rank(np.array([clocks.doubt.get(rank, 0.0) for rank in ops.ranks], np.float64))
    sent, received = (ops.end - ops.start)[send], (ops.end - ops.start)[receive]
    timed = linked(ops, clocks, send, receive)
    doubt = doubt[send] + doubt[receive] + clocks.residual_ns
    ahead = (start[receive] - end[send]).astype(np.float64)
    together = np.abs(end[send] - end[receive]) <= HELD_END_SHARE * sent
    together &= _ended_alone(ops, send, receive, end)
    lone = members_of_kernel(ops) == 1
    return _Messages(
        send, receive, sent, received, lone[send] & lone[receive],
        timed & (ahead > doubt), (start[receive] - start[send]) - doubt, timed & together,
    )  # fmt: skip


def _ended_alone(ops: Operations, send: I64, receive: I64, end: I64) -> Mask:
    """Return whether only one message of each send's kernel has a peer operation that ends when the kernel does.

    `end` is on a common clock, ns. If one rank alone recorded a message of the kernel, it may have waited for that one.
    """
    mine, other = np.concatenate([send, receive]), np.concatenate([receive, send])
    near = np.abs(end[mine] - end[other]) <= HELD_END_SHARE * (ops.end - ops.start)[mine]
    count = int(ops.kernel.max(initial=-1)) + 1
    seen = np.bincount(ops.kernel[mine], minlength=count)
    ended = np.bincount(ops.kernel[mine], near, count)
    kernel = ops.kernel[send]
    return np.asarray((seen[kernel] == members_of_kernel(ops)[send]) & (ended[kernel] == 1), bool)


def _went(messages: _Messages) -> bool:
    """Whether messages of one size went to buffers.

    Times may prove it. Otherwise sends with steady durations, shorter than those of receives, went to a buffer; where
    kernels carry several messages, enough sends must have ended before their receive was posted.
    """
    shown = _shown(messages)
    if shown is not None:
        return shown
    lone = messages.of(messages.alone)
    if not len(lone.send):
        return _proven(messages)
    longest, usual = np.percentile(lone.sent, LONG_TAIL_PERCENTILE), float(np.median(lone.sent))
    steady = longest <= EAGER_SPREAD * usual
    shorter = longest <= EAGER_SHARE * np.percentile(lone.received, LONG_TAIL_PERCENTILE)
    return bool(steady and shorter)


def _shown(messages: _Messages) -> bool | None:
    """Whether times prove that messages went to buffers (True) or waited (False); None without a proof."""
    held = _held(messages)
    if _proven(messages) and int(np.count_nonzero(messages.proven)) >= held:
        return True
    return False if held >= HELD_LEAST else None


def _proven(messages: _Messages) -> bool:
    """Whether enough sends ended before their receive was posted."""
    least = max(HELD_LEAST, PROVEN_EAGER_SHARE * len(messages.send))
    return int(np.count_nonzero(messages.proven)) >= least


def _held(messages: _Messages) -> int:
    """Return how many sends waited for their receive: it was posted long after the copy time, and both ended together.

    A send with its receive already posted takes as long as the copy, buffered or not; without such a send, the shorter
    of the two durations counts as the copy.
    """
    if not len(messages.send):
        return 0
    met = messages.lead <= 0
    lone = met & messages.alone
    briefest = np.minimum(messages.sent, messages.received)
    unhindered = messages.sent[lone] if lone.any() else messages.sent[met] if met.any() else briefest
    copy = float(np.median(unhindered))
    decisive = messages.lead > HELD_LEAD * copy
    return int(np.count_nonzero(decisive & messages.together))
