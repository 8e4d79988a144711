"""Sequences of two runs that are the same but for padding: each run may pad its micro-batches to another length.

The longer one is the other, and behind it one value that fills all of an input's sequences (padding, a mask), or a
count that goes on (positions). A sequence that is cut short instead ends where another goes on with other values.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch

Key = tuple[bytes, ...]
"""A sequence as the bytes of its inputs; of integers as int64."""

_NUMBER = np.dtype(np.int64)


def key_of(row: torch.Tensor) -> bytes:
    """Return a sequence of one input as bytes."""
    plain = row if row.is_floating_point() or row.is_complex() else row.to(torch.int64)
    return plain.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def counterparts(mine: Sequence[Key], other: Sequence[Key]) -> list[int]:
    """Return by sequence the number of the equal one of the other run, each used once; -1 where none is equal."""
    free: dict[Key, deque[int]] = defaultdict(deque)
    for number, key in enumerate(other):
        free[key].append(number)
    found = [free[key].popleft() if free[key] else -1 for key in mine]
    left = [number for number, at in enumerate(found) if at < 0]
    rest = [number for own in free.values() for number in own]
    if left and rest:
        for here, there in _padded([mine[n] for n in left], [other[n] for n in rest]):
            found[left[here]] = rest[there]
    return found


def _padded(mine: Sequence[Key], other: Sequence[Key]) -> list[tuple[int, int]]:
    """Return the pairs of sequences that differ by padding alone."""
    pairs = list(_prefixed(mine, other))
    fills: Counter[tuple[int, int]] = Counter()
    for here, there in pairs:
        fills.update(fill for fill, _ in _tails(mine[here], other[there]) if fill is not None)
    usual = {
        number: max((f for f in fills if f[0] == number), key=fills.__getitem__)[1] for number, _ in fills
    }
    return [
        (here, there)
        for here, there in pairs
        if all(
            goes_on or (fill is not None and fill[1] == usual[fill[0]])
            for fill, goes_on in _tails(mine[here], other[there])
        )
    ]


def _prefixed(mine: Sequence[Key], other: Sequence[Key]) -> Iterable[tuple[int, int]]:
    """Yield pairs, one of them the beginning of the other in every input, the longest first; each sequence once."""
    by_length: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, key in enumerate(other):
        by_length[tuple(map(len, key))].append(number)
    taken, done = set[int](), set[int]()
    for lengths in sorted(by_length, reverse=True):
        for here, key in enumerate(mine):
            if here in done or len(key) != len(lengths):
                continue
            shared = [min(len(one), length) for one, length in zip(key, lengths, strict=True)]
            begin = [one[:n] for one, n in zip(key, shared, strict=True)]
            for there in by_length[lengths]:
                if there not in taken and begin == [
                    one[:n] for one, n in zip(other[there], shared, strict=True)
                ]:
                    taken.add(there)
                    done.add(here)
                    yield here, there
                    break


def _tails(mine: Key, other: Key) -> list[tuple[tuple[int, int] | None, bool]]:
    """Return of each input that is longer in one run what fills it there, and whether it goes on counting.

    What fills it is (number of the input, value), None where several values do.
    """
    found: list[tuple[tuple[int, int] | None, bool]] = []
    for number, (here, there) in enumerate(zip(mine, other, strict=True)):
        short, long = sorted((here, there), key=len)
        if len(short) == len(long):
            continue
        if (len(short) | len(long)) % _NUMBER.itemsize or not short:
            found.append((None, False))
            continue
        values = np.frombuffer(long, _NUMBER)
        start = len(short) // _NUMBER.itemsize
        tail, steps = values[start:], np.diff(values)
        fill = (number, int(tail[0])) if bool((tail == tail[0]).all()) else None
        found.append((fill, bool((steps == 1).all())))
    return found
