"""Repairs the disturbed order of one channel's messages: messages of equal size and dtype match in order.

The k-th send is the k-th receive, but a recording that lost some in the middle shifts the rest. Differing sizes reveal
it, and the longest common sub-sequence of sizes corrects it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.arrays import numbered_rows
from tracekit.rank_events.coded_words import Codes, among, joined
from tracekit.rank_events.rank_ops import RankOps
from tracekit.thresholds.tables import MAX_MESSAGES_ALIGNED, TIE_NS
from tracekit.units import I32, I64

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
