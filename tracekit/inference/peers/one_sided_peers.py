"""Messages with a peer named on one side only: the other side's kernels are found by their common ends.

A recording may lack its arguments, or its host, while the other ranks' recordings are whole. Their facts about messages
with that rank are set aside until its kernels are linked; no link may contradict them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.inference.peers.open_messages import Link
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.rank_events.operations import RankOps

OPEN: Final = "send_recv"
Told = Mapping[int, Mapping[int, tuple[str, int, int]]]
"""Rank → its operation → the recorded (kind, source, destination)."""


def half_known(ops: Operations) -> Told:
    """Return the messages that name their peer but were not matched, while messages of that peer name none."""
    open_ = {r for r in ops.ranks if (among(ops.per_rank[r].op, (OPEN,)) & (ops.per_rank[r].src < 0)).any()}
    found: dict[int, dict[int, tuple[str, int, int]]] = {}
    for rank in ops.ranks if open_ else ():
        source, where = ops.per_rank[rank], ops.of(rank)
        alone = among(source.op, MESSAGES) & (ops.instance[where] < 0)
        for row in np.flatnonzero(alone).tolist():
            src, dst = int(source.src[row]), int(source.dst[row])
            if (dst if src == rank else src) in open_:
                found.setdefault(rank, {})[row] = (source.op[row], src, dst)
    return found


def set_aside(ranks: Iterable[RankOps], told: Told) -> list[RankOps]:
    """Return the operations of all ranks without the recorded peers to set aside."""
    return [_with(rank, dict.fromkeys(told.get(rank.rank, ()), (OPEN, -1, -1))) for rank in ranks]


def taken_back(ranks: Iterable[RankOps], told: Told) -> list[RankOps]:
    """Return the operations of all ranks with the peers that were set aside restored where no link was found."""
    found = []
    for rank in ranks:
        left = {row: ends for row, ends in told.get(rank.rank, {}).items() if rank.src[row] < 0}
        found.append(_with(rank, left))
    return found


def agreeing(links: Sequence[Link], ops: Operations, told: Told) -> list[Link]:
    """Return the `links` that do not contradict the peers recorded on either rank."""
    wanted: dict[tuple[int, int], set[int]] = {}
    for rank, rows in told.items():
        for row, (_, src, dst) in rows.items():
            key = rank, int(ops.per_rank[rank].kernel[row])
            wanted.setdefault(key, set()).add(dst if src == rank else src)
    kept = []
    for link in links:
        (a, b), (i, j) = link.ranks, link.kernels
        if wanted.get((a, i), {b}) == {b} and wanted.get((b, j), {a}) == {a}:
            kept.append(link)
    return kept


def _with(rank: RankOps, ends: Mapping[int, tuple[str, int, int]]) -> RankOps:
    """Return `rank` with (kind, source, destination) of some operations replaced."""
    if not ends:
        return rank
    op, token, src, dst = list(rank.op), list(rank.token), rank.src.copy(), rank.dst.copy()
    for row, (kind, begin, end) in ends.items():
        op[row], src[row], dst[row] = kind, begin, end
        token[row] = f"{kind if kind == OPEN else 'p2p'}/{token[row].partition('/')[2]}"
    return replace(rank, op=tuple(op), token=tuple(token), src=src, dst=dst)
