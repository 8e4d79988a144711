"""Repetition in a sequence: its shortest period, and the position of each entry in the repeating pattern.

A pattern has no first entry: it is stored in its least rotation, so that sequences of the same work have equal patterns
wherever their recordings begin.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.thresholds.tables import REPEATING_SHARE, WHOLE_REPEATS
from tracekit.units import I64

Pattern = tuple[int, ...]
OUTSIDE: Final = -1
"""Position of an entry that does not follow the pattern."""


@dataclass(frozen=True)
class Repeating:
    """A pattern in its least rotation, and each entry's position in it; OUTSIDE at the rims of a recording."""

    pattern: Pattern
    place: I64

    def after(self, index: int) -> int:
        """Return the position after that of entry `index`."""
        return (int(self.place[index]) + 1) % len(self.pattern)


def repeating(kinds: I64, window: I64, known: Iterable[Pattern] = ()) -> Repeating | None:
    """Return the positions of `kinds` in their own repeating pattern or one of the `known`; None where no pattern fits.

    `window` numbers the capture of each entry, ascending. Windows that hold whole repetitions repeat across their
    borders; else the fullest one shows the pattern. The pattern that covers the most entries is chosen.
    """
    if not len(kinds) or kinds.max() > sys.maxunicode:
        return None
    fullest = kinds[window == np.bincount(window).argmax()]
    candidates = set(known)
    for part in (kinds, fullest)[: len(np.unique(window))]:
        length, _ = period(part.tolist())
        candidates |= {least_rotation(part[-length:].tolist())} if length else set()
    found = [Repeating(c, _places(kinds, window, c)) for c in sorted(candidates, key=lambda c: (len(c), c))]
    best = max(found, key=lambda f: int((f.place != OUTSIDE).sum()), default=None)
    return best if best and (best.place != OUTSIDE).mean() >= REPEATING_SHARE else None


def period(kinds: Sequence[int]) -> tuple[int, int]:
    """Return (length of the repetition, how many of the last `kinds` repeat with it); (0, 0) where too few do.

    Entries before the repetition, such as the first step of a program, may differ. Knuth, Morris and Pratt's
    failure function of the reversed sequence gives the shortest period of every suffix.
    """
    backward = list(reversed(kinds))
    border = [0] * len(backward)
    best = (0, 0)
    for i in range(1, len(backward)):
        k = border[i - 1]
        while k and backward[i] != backward[k]:
            k = border[k - 1]
        border[i] = k + (backward[i] == backward[k])
        if i + 1 >= WHOLE_REPEATS * (i + 1 - border[i]):
            best = (i + 1 - border[i], i + 1)
    return best if best[1] >= REPEATING_SHARE * len(backward) else (0, 0)


def least_rotation(kinds: Sequence[int]) -> Pattern:
    """Return the lexicographically least rotation of `kinds` (Booth's algorithm, in the form with two pointers)."""
    one, two, same, size = 0, 1, 0, len(kinds)
    while one < size and two < size and same < size:
        a, b = kinds[(one + same) % size], kinds[(two + same) % size]
        if a == b:
            same += 1
            continue
        if a > b:
            one += same + 1
        else:
            two += same + 1
        two += one == two
        same = 0
    begin = min(one, two)
    return (*kinds[begin:], *kinds[:begin])


def _places(kinds: I64, window: I64, pattern: Pattern) -> I64:
    """Return the position of each entry of each window, from its end backwards as far as it follows the pattern."""
    place = np.full(len(kinds), OUTSIDE, np.int64)
    once = np.array(pattern, np.int64)
    twice = _text(pattern) * 2
    for number in np.unique(window):
        rows = np.flatnonzero(window == number)
        last = _only_end(_text(kinds[rows[-len(pattern) :]].tolist()), twice)
        if last is None:
            continue
        backward = (last - np.arange(len(rows))) % len(pattern)
        differ = np.flatnonzero(once[backward] != kinds[rows[::-1]])
        covered = int(differ[0]) if len(differ) else len(rows)
        place[rows[::-1][:covered]] = backward[:covered]
    return place


def _text(kinds: Iterable[int]) -> str:
    """Return `kinds` as a text of one character each, which Python searches in linear time."""
    return "".join(map(chr, kinds))


def _only_end(tail: str, twice: str) -> int | None:
    """Return the position of the last entry of `tail` in a pattern, written `twice`; None unless exactly one fits."""
    length = len(twice) // 2
    at = twice.find(tail)
    other = twice.find(tail, at + 1, length + len(tail) - 1)
    return (at + len(tail) - 1) % length if at >= 0 and other < 0 else None


def inserted(mine: tuple[object, ...], usual: tuple[object, ...]) -> tuple[int, int] | None:
    """Return the half-open range that `mine` inserts into `usual` in one place; None where they differ otherwise."""
    more = len(mine) - len(usual)
    if more <= 0:
        return None
    common = next((i for i, (a, b) in enumerate(zip(mine, usual, strict=False)) if a != b), len(usual))
    return (common, common + more) if mine[common + more :] == usual[common:] else None
