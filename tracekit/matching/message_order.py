"""The order of one channel's operations: the keys by which its members are joined, and repairs of messages' order.

Operations with equal keys are one instance. A sequence number is the key where all members carry it on most operations,
else the ordinal within the profiler step, else the ordinal after aligning ragged capture windows.

Messages of equal size and dtype match in order: the k-th send is the k-th receive, but a recording that lost some in
the middle shifts the rest. Differing sizes reveal it, and the longest common sub-sequence of sizes corrects it.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.arrays import numbered_rows
from tracekit.rank_events.coded_words import Codes, among, joined
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.tables import ALIGN_LEAST_OVERLAP, COUNTED_SHARE, MAX_MESSAGES_ALIGNED, TIE_NS
from tracekit.units import I32, I64


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
        each = (
            np.minimum(_occurrence(seq[s]), _COALESCED - 1) for s in sides
        )  # coalesced calls share a number
        return [
            np.where(seq[s] >= 0, seq[s] * _COALESCED + n, -1 - s) for s, n in zip(sides, each, strict=True)
        ]
    if all((step[s] != NO_STEP).any() for s in sides):
        return _by_step(sides, step)
    if len({len(s) for s in sides}) == 1 and all((tokens[1][s] == tokens[1][sides[0]]).all() for s in sides):
        return [np.arange(len(s)) for s in sides]
    return _aligned(sides, end, tokens)


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


UNKNOWN_SIZE = "/-1"
"""End of the token of a message if the trace does not have its size."""


def by_size(
    sides: Sequence[I64], keys: list[I64], step: I32, tokens: tuple[list[str], Codes], end: I64
) -> list[I64]:
    """Return `keys` of both `sides` of a channel, corrected in steps in which messages of equal keys differ in size.

    `sides` are rows in order of issue; `step` and `end` (ns) are by row, `tokens` the distinct ones and the index of
    each row's. Messages of unknown size keep their keys, and so do steps with more messages than can be compared.
    """
    (mine, theirs), (words, token) = sides, tokens
    if any(words[t].endswith(UNKNOWN_SIZE) for t in {*token[mine].tolist(), *token[theirs].tolist()}):
        return keys
    _, i, j = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    differ = token[mine[i]] != token[theirs[j]]
    if not differ.any():
        return keys
    lead = float(np.median((end[mine[i]] - end[theirs[j]])[~differ])) if not differ.all() else 0.0
    fixed = [k.copy() for k in keys]
    fresh = int(max(k.max() for k in keys)) + 1
    for number in np.unique(step[mine[i[differ]]]).tolist():
        places = [np.flatnonzero(step[s] == number) for s in sides]
        if max(len(p) for p in places) > MAX_MESSAGES_ALIGNED:
            continue
        rows = [s[p] for s, p in zip(sides, places, strict=True)]
        late = np.abs((end[rows[0]][:, None] - end[rows[1]][None, :]) - lead)
        pairs = _common(token[rows[0]][:, None] == token[rows[1]][None, :], TIE_NS / (TIE_NS + late))
        for k, p in zip(fixed, places, strict=True):
            k[p] = fresh + np.arange(len(p))
            fresh += len(p)
        fixed[1][places[1][pairs[1]]] = fixed[0][places[0][pairs[0]]]
    return fixed


def _common(equal: npt.NDArray[np.bool_], close: npt.NDArray[np.float64]) -> tuple[I64, I64]:
    """Return rows and columns of the longest common sub-sequence of two lists, by which entries are `equal`.

    Among several of that length, the one with the highest `close` (0 to 1) in sum counts.
    """
    rows, columns = equal.shape
    worth = np.where(equal, 1.0 + close / (2.0 * max(min(rows, columns), 1)), 0.0)
    best = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        taken = np.maximum(best[i, 1:], best[i, :-1] + worth[i])
        best[i + 1, 1:] = np.maximum.accumulate(taken)
    i, j = rows, columns
    found: list[tuple[int, int]] = []
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    table = np.array(found[::-1], np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


# The order in which the host issued the collectives of one group, where they ran on several streams.
#
# Every member of a group issues its collectives in one order, but from torch 2.8 some of them run on the
# stream of their caller: an all-gather and a reduce-scatter on two streams start in whatever order their
# inputs allow, on each rank in another one. Recorded launches show the order of issue.


def by_issue(rows: I64, issued: I64, stream: I64) -> I64:
    """Return `rows` in the order in which the host issued them; `issued` (ns) and `stream` are by row.

    A stream runs in order of issue, so an operation without a launch was issued no later than the next on its stream.
    """
    return rows[np.argsort(issued_upto(issued[rows], stream[rows]), kind="stable")]


def issued_upto(issued: I64, stream: I64) -> I64:
    """Return an upper bound for the issue of each operation, ns: the next one's on its stream; arguments by start."""
    latest = issued.copy()
    for lane in np.unique(stream).tolist():
        here = np.flatnonzero(stream == lane)
        latest[here] = np.minimum.accumulate(latest[here][::-1])[::-1]
    return latest


# Sizes of gathers: on Gloo each rank records its own part alone, and the whole has the parts of all members.

_GATHERS: Final = ("all_gather", "gather")


def whole_tokens(ranks: Sequence[RankOps], members: I64) -> tuple[list[str], Codes]:
    """Return the tokens of all operations as `joined`, those of gathers with the elements of all members.

    `members` counts the ranks in the group of each operation of `ranks`, 0 where unknown.
    """
    words, code = joined([r.token for r in ranks])
    parts = [among(r.op, _GATHERS) & (r.nelems > 0) & (r.taken is None or r.taken < 0) for r in ranks]
    rows = np.flatnonzero(np.concatenate([np.zeros(0, bool), *parts]) & (members > 0))
    if not len(rows):
        return words, code
    first, number = numbered_rows(code[rows], members[rows])
    fresh = [_of_all(words[code[row]], int(members[row])) for row in rows[first].tolist()]
    tokens = np.array(words, object)[code]
    tokens[rows] = np.array(fresh, object)[number]
    return joined([tokens.tolist()])


def _of_all(token: str, members: int) -> str:
    """Return a token with the elements of all members in place of one's."""
    kind, _, elements = token.rpartition("/")
    return f"{kind}/{int(elements) * members}"
