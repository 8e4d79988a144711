"""The keys by which the members of one channel are joined: operations with equal keys are one instance.

A sequence number is the key where all members carry it on most operations, else the ordinal within the profiler step,
else the ordinal after aligning ragged capture windows.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.rank_events.coded_words import Codes
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import ALIGN_LEAST_OVERLAP, COUNTED_SHARE
from tracekit.units import I64


def instance_keys(
    sides: Sequence[I64],
    p2p: bool,
    step: npt.NDArray[np.int32],
    seq: I64,
    end: I64,
    tokens: tuple[list[str], Codes],
) -> list[I64]:
    """Return a key for each operation of each side, in the shape of `sides`; operations with equal keys match.

    `tokens` are the distinct ones and the index of each operation's.

    If most operations carry sequence numbers, an operation without one matches none: its order would shift the others.
    """
    if not p2p and all((seq[s] >= 0).mean() >= COUNTED_SHARE for s in sides):
        return [np.where(seq[s] >= 0, _with_occurrence(seq[s]), -1 - s) for s in sides]
    if all((step[s] != NO_STEP).any() for s in sides):
        return _by_step(sides, step)
    if len({len(s) for s in sides}) == 1 and all((tokens[1][s] == tokens[1][sides[0]]).all() for s in sides):
        return [np.arange(len(s)) for s in sides]
    return _aligned(sides, end, tokens)


def _with_occurrence(keys: I64) -> I64:
    """Return `keys` made unique by order, because coalesced calls share a sequence number."""
    return keys * _COALESCED + np.minimum(_occurrence(keys), _COALESCED - 1)


def _occurrence(keys: I64) -> I64:
    """Return the number of equal keys before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    fresh = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    begin = np.maximum.accumulate(np.where(fresh, np.arange(len(keys)), 0))
    occurrence = np.empty(len(keys), np.int64)
    occurrence[order] = np.arange(len(keys)) - begin
    return occurrence


_COALESCED: Final = 1024  # calls with one sequence number that keys can distinguish
_BEFORE, _AFTER = 2**30, 2**31  # offsets of operations outside steps among the keys of the step beside them


def _by_step(sides: Sequence[I64], step: npt.NDArray[np.int32]) -> list[I64]:
    """Return keys by step and ordinal within the step; a side with a first step cut short is aligned at its end.

    Where that step is the side's last one as well, and another side has later steps, its end was cut, not its begin.
    Operations outside steps count from the end of the step before them, or back from the first step.
    """
    most: dict[int, int] = {}
    for s in sides:
        for number, count in zip(*np.unique(step[s], return_counts=True), strict=True):
            most[int(number)] = max(most.get(int(number), 0), int(count))
    last = max(most)
    keys = []
    for s in sides:
        labels = step[s].astype(np.int64)
        key = _outside(labels)
        seen = [int(n) for n in np.unique(labels) if n != NO_STEP]
        for number in seen:
            where = np.flatnonzero(labels == number)
            ordinal = np.arange(len(where))
            if number == seen[0] and (len(seen) > 1 or number == last):
                ordinal += most[number] - len(where)
            key[where] = (number + 1) * 2**32 + ordinal
        keys.append(key)
    return keys


def _outside(labels: I64) -> I64:
    """Return keys of one side's operations outside steps: the step beside them, and the number of operations between.

    Entries of operations inside steps are meaningless.
    """
    place = np.arange(len(labels))
    inside = labels != NO_STEP
    before = np.maximum.accumulate(np.where(inside, place, -1))
    first = int(np.argmax(inside))
    step = np.where(inside, NO_STEP, labels[np.maximum(before, 0)])
    behind = (step + 1) * 2**32 + _AFTER + _occurrence(step)
    ahead = (labels[first] + 1) * 2**32 + _BEFORE + first - place
    return np.asarray(np.where(before >= 0, behind, ahead), np.int64)


def _aligned(sides: Sequence[I64], end: I64, tokens: tuple[list[str], Codes]) -> list[I64]:
    """Return the ordinals of each side, shifted so that kinds agree and ends differ by a constant.

    Members of a collective end together, so the right shift is the one with end differences that vary least.
    """
    reference = max(range(len(sides)), key=lambda i: len(sides[i]))
    keys = []
    for i, side in enumerate(sides):
        shift = 0 if i == reference else _best_shift(side, sides[reference], end, tokens)
        keys.append(np.arange(len(side)) + shift)
    return [k + (len(sides[reference]) + 1) for k in keys]


def _best_shift(side: I64, reference: I64, end: I64, tokens: tuple[list[str], Codes]) -> int:
    """Return the position in `reference` at which `side` begins: where kinds agree most, then where ends vary least.

    An operation that lost its arguments fits any size.
    """
    words, code = tokens
    kinds, sizes = zip(
        *(_kind_and_size(words[c]) for c in code[np.append(side, reference)].tolist()), strict=True
    )
    kind, size = np.array(kinds, object), np.array(sizes, object)
    best = (2.0, float("inf"), 0)
    need = max(1, ceil(ALIGN_LEAST_OVERLAP * min(len(side), len(reference))))
    for shift in range(need - len(side), len(reference) - need + 1):
        low, high = max(0, -shift), min(len(side), len(reference) - shift)
        mine, theirs = slice(low, high), slice(len(side) + low + shift, len(side) + high + shift)
        known = (size[mine] != None) & (size[theirs] != None)  # noqa: E711
        disagree = float(np.mean((kind[mine] != kind[theirs]) | (known & (size[mine] != size[theirs]))))
        difference = (end[side[low:high]] - end[reference[low + shift : high + shift]]).astype(np.float64)
        spread = float(np.median(np.abs(difference - np.median(difference))))
        best = min(best, (round(disagree, 2), spread, shift))
    return best[2]


def _kind_and_size(token: str) -> tuple[str, str | None]:
    """Return the operation of a token, and its dtype and size; None if the trace does not have them."""
    kind, _, size = token.partition("/")
    return kind, None if token.endswith(UNKNOWN_SIZE) else size
