"""The lines of interest of a text file of any size, in constant memory.

RE2, which pyarrow brings, says of each piece of a block whether it holds one of the literals; only lines of such pieces
are looked at one by one. Used by `logs`.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import to_numpy
from tracekit.files.source import ByteStream, Source
from tracekit.thresholds.evidence import (
    LOG_EXPANSION,
    LONGEST_LINE,
    LOOK_AHEAD,
    LOOK_BACK,
    SCAN_BLOCK,
    SCAN_PIECE,
)

_CONTROL: Final = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\r")
"""Colours and cursor movements of a terminal, titles of a window, and carriage returns."""
_IN_JSON: Final = re.compile(rb'^\{"log":"(.*?)(?:\\[rn])*","stream":"\w+"[^\n]*$', re.MULTILINE)
"""A line as Docker's json-file driver keeps it."""
_ESCAPED: Final = re.compile(rb"\\u001[bB]\[[0-9;?]*[@-~]")
"""A colour in such a line."""


@dataclass(slots=True)
class Line:
    """A line of interest: its text without colours, its place in the file, and what stands around it.

    whole: whether the line ends in a newline; the last line of a file that is still written does not.
    """

    text: bytes
    offset: int
    before: bytes
    whole: bool
    _after: bytes = field(repr=False)

    def after(self) -> list[bytes]:
        """Return the lines that follow, as far as LOOK_AHEAD, without colours."""
        return strip_colours(self._after).split(b"\n")


@dataclass(slots=True)
class Scan:
    """Counts of one scan: bytes read after decompression, and what is wrong with the file's compression."""

    size: int = 0
    damage: str | None = None


Take = Callable[[bytes, int, int, int], None]
"""Takes a block, two places in it, and the block's offset in the file."""


def strip_colours(text: bytes) -> bytes:
    """Return the text without terminal sequences and carriage returns, and lines of Docker's driver without JSON."""
    if b'{"log":"' in text:
        text = _ESCAPED.sub(b"", _IN_JSON.sub(rb"\1", text)).replace(b'\\"', b'"')
    return _CONTROL.sub(b"", text) if b"\x1b" in text or b"\r" in text else text


def scan_lines(
    source: Source, literals: Sequence[str], scan: Scan, often: tuple[str, Take] | None = None
) -> Iterator[Line]:
    """Yield every line that holds one of the literals, in the order of the file; OSError passes through.

    Memory stays below a few blocks, however large the file or a line of it is. often: a literal of lines that may be
    most of the file, and what takes each piece with them instead, after the lines of that piece.
    """
    exact = re.compile("|".join(map(re.escape, literals)).encode())
    patterns = ["|".join(map(re.escape, literals))]
    patterns = [f"{patterns[0]}|{re.escape(often[0])}", *patterns] if often else patterns
    kept, base, done = b"", 0, 0
    for block, last in _with_last(_blocks(source, scan)):
        data = kept + block
        end = len(data) if last else max(data.rfind(b"\n", 0, max(len(data) - LOOK_AHEAD, 0)) + 1, done)
        if not last and len(data) > SCAN_BLOCK + 2 * LOOK_AHEAD:
            end = max(end, len(data) - LOOK_AHEAD)  # no newline for long: the line is cut
        at = done
        for left, right, plain in _pieces_with_hits(data, done, end, patterns):
            if plain:
                at = yield from _lines_between(data, (max(at, left), right), base, exact, last=last)
            if often is not None:
                often[1](data, left, right, base)
        cut = max(end - LOOK_BACK, 0)
        kept, base, done = data[cut:], base + cut, end - cut
    scan.size = base + len(kept)


def _blocks(source: Source, scan: Scan) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in blocks of at most about SCAN_BLOCK."""
    with source.open() as raw:
        head = raw.read(4)
        raw.seek(0)
        if head[:2] != b"\x1f\x8b" and head != b"\x28\xb5\x2f\xfd":
            while data := raw.read(SCAN_BLOCK):
                yield data
            return
        stream = ByteStream(raw)
        yield from stream.blocks(LOG_EXPANSION)
        scan.damage = stream.damage


def _with_last(blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each block and whether it is the last one; an empty block where there is none."""
    held = next(blocks, b"")
    for block in blocks:
        yield held, False
        held = block
    yield held, True


def _lines_between(
    data: bytes, piece: tuple[int, int], base: int, exact: re.Pattern[bytes], *, last: bool
) -> Generator[Line, None, int]:
    """Yield the lines of interest that begin in a piece of a block; return where the last of them ends."""
    at, right = piece
    while (hit := exact.search(data, at, right)) is not None:
        first = max(data.rfind(b"\n", max(hit.start() - LONGEST_LINE, 0), hit.start()) + 1, at)
        first = max(first, hit.start() - LONGEST_LINE)
        stop = data.find(b"\n", hit.end(), hit.end() + LONGEST_LINE)
        whole = stop >= 0
        stop = stop if whole else min(len(data), hit.end() + LONGEST_LINE)
        yield Line(
            strip_colours(data[first:stop]),
            base + first,
            data[max(first - LOOK_BACK, 0) : first],
            whole or not (last and stop == len(data)),
            data[stop + 1 : stop + 1 + LOOK_AHEAD],
        )
        at = max(stop, hit.end())
    return at


def _pieces_with_hits(
    data: bytes, begin: int, end: int, patterns: Sequence[str]
) -> Iterator[tuple[int, int, bool]]:
    """Yield the pieces of a block, ended by newlines where there are some, that match the first of the patterns.

    The last value says whether a piece also matches the last pattern.
    """
    if end <= begin:
        return
    cuts = [begin]
    while end - cuts[-1] > SCAN_PIECE:
        place = data.rfind(b"\n", cuts[-1] + 1, cuts[-1] + SCAN_PIECE) + 1
        cuts.append(place if place > cuts[-1] else min(cuts[-1] + SCAN_PIECE, end))
    cuts.append(end)
    offsets = np.array(cuts, np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.large_binary(), len(cuts) - 1, buffers)
    found: Any = pc.match_substring_regex(pieces, patterns[0])
    plain: Any = pc.match_substring_regex(pieces.filter(found), patterns[-1]) if len(patterns) > 1 else None
    hits = np.flatnonzero(to_numpy(found)).tolist()
    for number, also in zip(hits, [True] * len(hits) if plain is None else plain.to_pylist(), strict=True):
        yield cuts[number], cuts[number + 1], also
