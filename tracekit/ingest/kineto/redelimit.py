r"""Learns how a file separates events, and rewrites blocks of events for a line-wise JSON reader.

The comma between two events becomes a line end. Wherever that happens by mistake, inside a string or a nested
array, no valid JSON is left, so the reader refuses the block and nothing wrong can come of it. Events that
are not stored (flows, instants, counters, metadata) are left out before they cost any parsing, where the file
writes `ph` first and the event closes no array, so that it cannot be the last one.
"""

import re
from collections import Counter

from tracekit.thresholds.ingest import MAX_SEPARATORS

ANY_SEPARATOR = re.compile(rb"\}\s*,\s*\{")
PHASE_FIRST = re.compile(rb'\{(\s*"ph"\s*:\s*")\w"')
STORED = frozenset((b'X"', b'B"', b'E"'))
NOT_STORED = frozenset(bytes((c,)) + b'"' for c in b"iIstfMCbenNODPRcvV")  # the Chrome format's other phases


class Redelimiter:
    """The separators of a file, learned from events that were read one by one."""

    def __init__(self) -> None:
        self.separators: list[bytes] = []
        self._before_phase = b""  # with which every event of the file starts, or nothing

    def learn(self, separator: bytes, following: bytes) -> None:
        """Take the bytes between two events, braces included, and the beginning of the second event."""
        known = self.separators
        if separator in known or len(known) == MAX_SEPARATORS or not ANY_SEPARATOR.fullmatch(separator):
            return
        known.append(separator)
        first = PHASE_FIRST.match(following)
        if first and len(known) == 1:
            self._before_phase = first[1]

    def last_end(self, buffer: bytes, start: int, end: int) -> int | None:
        """Return the offset after the last event of the range that a separator ends; None without one."""
        found = max((buffer.rfind(s, start, end) for s in self.separators), default=-1)
        return found + 1 if found > start else None

    def next_end(self, buffer: bytes, start: int) -> int | None:
        """Return the offset behind the next place that looks like the end of an event followed by another."""
        found = [at for s in self.separators if (at := buffer.find(s, start)) >= 0]
        if not self.separators and (match := ANY_SEPARATOR.search(buffer, start)):
            found = [match.start()]
        return min(found) + 1 if found else None

    def _pieces(self, block: bytes) -> list[bytes]:
        """Split `block`, from brace to brace, into the insides of its events."""
        for separator in self.separators[1:]:
            block = block.replace(separator, self.separators[0])
        pieces = block.split(self.separators[0])
        pieces[0] = pieces[0][1:]
        pieces[-1] = pieces[-1][:-1]
        return pieces

    def text(self, block: bytes) -> tuple[bytes, Counter[str]]:
        """Return the stored events of `block`, one per line, and a count of the phases of the others."""
        if not self.separators:
            return block, Counter()
        if not self._before_phase or block[:1] != b"{":
            for separator in self.separators:
                block = block.replace(separator, b"}\n{")
            return block, Counter()
        pieces = self._pieces(block)
        kept, left_out = self._split(pieces)
        return b"{%s}" % b"}\n{".join(kept) if kept else b"", left_out

    def _split(self, pieces: list[bytes]) -> tuple[list[bytes], Counter[str]]:
        """The pieces worth parsing, and a count of the phases of the others; this runs once for every event."""
        before = self._before_phase
        at = len(before)
        to = at + 2
        kept = [
            p
            for p in pieces
            if p[at:to] in STORED or p[at:to] not in NOT_STORED or not p.startswith(before) or b"]" in p
        ]
        left_out: Counter[str] = Counter()
        if len(kept) < len(pieces):
            phases = [
                p[at] for p in pieces if p[at:to] in NOT_STORED and p.startswith(before) and b"]" not in p
            ]
            for phase, count in Counter(phases).items():
                left_out[chr(phase)] = count
        return kept, left_out

    def offset(self, block: bytes, row: int) -> int:
        """Return the offset in `block` of the event that became line `row`, or 0 where unknown."""
        if len(self.separators) != 1 or not row or block[:1] != b"{":
            return 0
        at = 0
        for piece in self._pieces(block):
            if not self._before_phase or self._split([piece])[0]:
                if row == 0:
                    return at
                row -= 1
            at += len(piece) + len(self.separators[0])
        return 0
