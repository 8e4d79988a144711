"""Sizes of gathers whose ranks recorded only their own part, as Gloo does: the whole is that of all members.

The group's members are known only here: no argument of such a call names them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from tracekit.arrays import numbered_rows
from tracekit.matching.channels import Channel
from tracekit.rank_events.coded_words import Codes, among, joined
from tracekit.rank_events.rank_ops import RankOps
from tracekit.units import I64

_GATHERS: Final = ("all_gather", "gather")


def whole_tokens(
    ranks: Sequence[RankOps], channel: I64, channels: Sequence[Channel]
) -> tuple[list[str], Codes]:
    """Return the tokens of all operations as `joined`, those of gathers with the elements of all members.

    `channel` is that of each operation of `ranks`, -1 for none.
    """
    words, code = joined([r.token for r in ranks])
    parts = [among(r.op, _GATHERS) & (r.nelems > 0) & (r.taken is None or r.taken < 0) for r in ranks]
    rows = np.flatnonzero(np.concatenate([np.zeros(0, bool), *parts]) & (channel >= 0))
    if not len(rows):
        return words, code
    members = np.array([len(c.members) for c in channels])[channel[rows]]
    first, number = numbered_rows(code[rows], members)
    fresh = [_of_all(words[code[rows[i]]], int(members[i])) for i in first.tolist()]
    tokens = np.array(words, object)[code]
    tokens[rows] = np.array(fresh, object)[number]
    return joined([tokens.tolist()])


def _of_all(token: str, members: int) -> str:
    """Return a token with the elements of all members in place of one's."""
    kind, _, elements = token.rpartition("/")
    return f"{kind}/{int(elements) * members}"
